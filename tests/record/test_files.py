"""The files of a run: where they lie, who may read them, when they go."""

import json
import os
import time
from pathlib import Path

import pytest

from xla_nb.protocol import events
from xla_nb.record import files
from xla_nb.record.files import Record, home, tidy

WEEK = 7 * 24 * 3600


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A home of the test's own, where runs are made by name."""
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path))
    return tmp_path


def orphaned(name):
    """A record whose notebook has ended."""
    made = Record.create(name)
    (made.path / "owner").write_text("1 0")
    return made


def ended(name):
    made = orphaned(name)
    made.close({})
    return made


def kept():
    return sorted(path.name for path in (home() / "runs").iterdir())


def age(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_home_is_where_the_variable_says(monkeypatch):
    monkeypatch.setenv("XLA_NB_HOME", "/elsewhere")
    assert home() == Path("/elsewhere")


def test_home_is_else_in_the_users_state_directory(monkeypatch):
    monkeypatch.delenv("XLA_NB_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert home() == Path("/state/xla_nb")


@pytest.mark.parametrize("unset", [None, ""])
def test_the_users_state_directory_has_a_default(monkeypatch, unset):
    monkeypatch.delenv("XLA_NB_HOME")
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if unset is not None:
        monkeypatch.setenv("XDG_STATE_HOME", unset)
    assert home() == Path("/users/me/.local/state/xla_nb")


def test_each_file_has_its_name():
    it = Record(Path("/r"))
    assert it.program("m") == Path("/r/program/m.py")
    assert (it.log(3), it.log(3, "err")) == (Path("/r/rank-3.out"), Path("/r/rank-3.err"))
    assert it.result(0) == Path("/r/rank-0.result")
    assert it.log(None, "err") == Path("/r/job.err")


def test_a_record_can_be_used_as_its_path():
    it = Record(Path("/r"))
    assert os.fspath(it) == "/r"
    assert repr(it) == "Record('/r')"


def test_a_new_record_lies_at_home_and_has_a_folder_for_the_program(at_home):
    made = Record.create("now")
    assert made.path == at_home / "runs" / "now"
    assert made.program("m").parent.is_dir()


def test_a_record_is_its_owners_alone(at_home):
    before = os.umask(0)
    try:
        made = Record.create("now")
    finally:
        os.umask(before)
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert made.program("m").parent.stat().st_mode & 0o777 == 0o700


def test_a_record_is_never_made_twice(at_home):
    Record.create("now")
    with pytest.raises(FileExistsError):
        Record.create("now")


def test_a_record_that_cannot_be_written_is_an_error(at_home):
    (at_home / "runs").write_text("no folder")
    with pytest.raises(OSError):
        Record.create("now")


def test_events_are_kept_in_their_order_a_line_each(at_home):
    made = Record.create("now")
    happened = [events.Notice(text="one\ntwo"), events.RankFinished(rank=1, preview="ü", nbytes=1)]
    for event in happened:
        made.add(event)
    lines = (made.path / "events.jsonl").read_bytes().splitlines()
    assert [events.decode(line) for line in lines] == happened


def test_what_cannot_be_written_does_not_end_the_run(at_home):
    gone = Record(at_home / "nowhere")
    gone.add(events.Notice(text="lost"))
    gone.close({})
    assert not gone.path.exists()


def test_closing_writes_the_summary_and_leaves_no_partial_file(at_home):
    made = Record.create("now")
    made.close({"ok": True})
    assert json.loads((made.path / "run.json").read_text()) == {"ok": True}
    assert sorted(path.name for path in made.path.iterdir()) == ["owner", "program", "run.json"]


def test_a_summary_that_could_not_be_written_whole_is_not_there(at_home, monkeypatch):
    made = Record.create("now")
    write = Path.write_text

    def full(path, text):
        write(path, text[:3])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    made.close({"ok": True})
    assert not (made.path / "run.json").exists()


def test_tidying_keeps_the_newest_ended_runs(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 2)
    for name in ("20260103-1", "20260101-1", "20260104-1", "20260102-1"):
        ended(name)
    tidy()
    assert kept() == ["20260103-1", "20260104-1"]


def test_tidying_removes_a_run_with_all_its_files(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 0)
    made = ended("1")
    made.program("m").write_text("x = 1")
    made.log(0).write_text("out")
    tidy()
    assert kept() == []


def test_a_run_that_has_not_ended_is_not_tidied_away_nor_counted(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 1)
    ended("2")
    for name in ("1", "3", "4"):
        orphaned(name)
    tidy()
    assert kept() == ["1", "2", "3", "4"]


def test_a_run_nobody_touched_for_a_week_is_tidied_away(at_home):
    lost, waiting = orphaned("lost"), orphaned("waiting")
    for path in (lost.path / "program", lost.path / "owner", lost.path):
        age(path, WEEK + 60)
    for path in (waiting.path / "program", waiting.path / "owner", waiting.path):
        age(path, WEEK - 60)
    tidy()
    assert kept() == ["waiting"]


def test_a_run_that_goes_on_for_weeks_is_kept(at_home):
    """A folder's time stands still while the files in it grow."""
    made = Record.create("long")
    made.log(0).write_text("still training")
    for path in (made.path / "program", made.path):
        age(path, 2 * WEEK)
    tidy()
    assert kept() == ["long"]


def test_ended_runs_are_kept_however_old(at_home):
    old = ended("old").path
    for path in [*old.iterdir(), old]:
        age(path, 10 * WEEK)
    tidy()
    assert kept() == ["old"]


def test_tidying_without_any_run_is_no_error(at_home):
    tidy()
    assert not (at_home / "runs").exists()


def test_what_a_living_notebook_launched_is_never_tidied_away(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 0)
    Record.create("mine").close({})
    ended("gone")
    tidy()
    assert kept() == ["mine"]


# ---------------------------------------------------------------- parts of another machine's runs


def test_a_part_of_another_machines_run_lies_beside_the_runs(at_home):
    made = Record.create("r1-0", "parts")
    assert made.path == at_home / "parts" / "r1-0"
    assert made.path.stat().st_mode & 0o777 == 0o700
    assert not (at_home / "runs").exists()


def test_parts_and_runs_are_tidied_each_for_themselves(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 1)
    for name in ("1", "2"):
        ended(name)
        part = Record.create(name, "parts")
        (part.path / "owner").write_text("1 0")
        part.close({})
    tidy("parts")
    assert [path.name for path in (at_home / "parts").iterdir()] == ["2"]
    assert kept() == ["1", "2"]


def test_parts_of_a_living_process_are_kept(at_home, monkeypatch):
    monkeypatch.setattr(files, "KEPT", 0)
    Record.create("mine", "parts").close({})
    tidy("parts")
    assert [path.name for path in (at_home / "parts").iterdir()] == ["mine"]
