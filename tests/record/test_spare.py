"""The record that is made ahead for the next run of live ranks."""

import os
import stat
from pathlib import Path

import pytest

from xla_nb.record import spare
from xla_nb.record.files import Record, home, records
from xla_nb.record.spare import Spare
from xla_nb.record.tidying import clean, tidy

RUN = "20260101-000000-abcdef"


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path))


@pytest.fixture
def made():
    made = Spare("program")
    made.make((0, 1))
    return made


def spares():
    return sorted((home() / "runs").glob(f"{spare.NAMES}*"))


def files(record):
    return {
        str(path.relative_to(record.path)): (path.stat().st_size, stat.S_IMODE(path.stat().st_mode))
        for path in record.path.rglob("*")
        if path.is_file()
    }


def test_it_is_no_run(made):
    assert len(spares()) == 1
    assert records() == []


def test_it_becomes_the_record_of_the_next_run(made):
    record = made.take(RUN, (0, 1))
    assert record.path == home() / "runs" / RUN
    assert [one.path for one in records()] == [record.path]
    assert spares() == []
    assert record.is_mine
    assert Path(record.stacks_request).stat().st_mtime == 0
    empty = ["rank-0.out", "rank-0.err", "rank-0.now", "rank-1.out", "rank-1.err", "rank-1.now"]
    empty += ["events.jsonl", "program/program.py", "program/program.json", "stacks"]
    there = files(record)
    assert {name: there.pop(name) for name in empty} == dict.fromkeys(empty, (0, 0o600))
    assert set(there) == {"owner"}


def test_there_is_never_more_than_one(made):
    made.make((0, 1))
    assert len(spares()) == 1


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2), ()])
def test_a_run_of_other_ranks_gets_a_new_record(ranks, made):
    record = made.take(RUN, ranks)
    assert set(files(record)) == {"owner", "stacks"}
    assert spares() == []


def test_a_run_in_another_home_gets_a_record_there(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path / "other"))
    record = made.take(RUN, (0, 1))
    assert record.path == tmp_path / "other" / "runs" / RUN
    assert record.is_mine


def test_one_that_somebody_has_removed_is_made_again(made):
    for path in spares():
        Record(path).discard()
    assert set(files(made.take(RUN, (0, 1)))) == {"owner", "stacks"}


def test_a_name_that_is_taken_is_refused_as_without_it(made):
    Record.create(RUN)
    with pytest.raises(FileExistsError):
        made.take(RUN, (0, 1))
    assert spares() == []


def test_it_is_discarded_for_good(made):
    made.discard()
    made.make((0, 1))
    assert spares() == []
    assert made.take(RUN, (0, 1)).path.is_dir()


def test_where_none_can_be_made_the_run_says_why(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Record, "make_files", full)
    made = Spare("program")
    made.make((0,))
    assert spares() == []


def test_a_process_that_the_notebook_forks_leaves_it_alone(made):
    def below():
        record = made.take(RUN, (0, 1))
        made.discard()
        return set(files(record)) == {"owner", "stacks"}

    child = os.fork()
    if child == 0:
        os._exit(0 if below() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(spares()) == 1


def test_what_only_has_the_name_of_one_keeps_nothing_from_being_tidied(made, tmp_path):
    (home() / "runs" / f"{spare.NAMES}file").touch()
    (home() / "runs" / f"{spare.NAMES}link").symlink_to(tmp_path)
    ended = Record.create(RUN)
    (ended.path / "owner").write_text("1 0")
    ended.close({})
    assert clean().removed == [RUN]


def test_tidying_removes_those_of_processes_that_were_killed(made):
    killed = Record.create(f"{spare.NAMES}killed")
    (killed.path / "owner").write_text("1 0")
    tidy()
    assert killed.path not in spares()
    assert len(spares()) == 1
