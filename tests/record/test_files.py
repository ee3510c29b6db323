"""The files of a run: their names, and who can read them."""

import ast
import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xla_nb.messages import events
from xla_nb.record import files, private
from xla_nb.record.files import Record, home


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """A home for the test's own runs."""
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path))
    return tmp_path


def test_home_is_set_by_a_variable(monkeypatch):
    monkeypatch.setenv("XLA_NB_HOME", "/elsewhere")
    assert home() == Path("/elsewhere")
    monkeypatch.setenv("XLA_NB_HOME", "~/runs")
    assert home() == Path.home() / "runs"


def test_home_defaults_to_the_users_state_directory(monkeypatch):
    monkeypatch.delenv("XLA_NB_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert home() == Path("/state/xla_nb")


@pytest.mark.parametrize("unset", [None, ""])
def test_state_directory_has_a_default(monkeypatch, unset):
    monkeypatch.delenv("XLA_NB_HOME")
    monkeypatch.setenv("HOME", "/users/me")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if unset is not None:
        monkeypatch.setenv("XDG_STATE_HOME", unset)
    assert home() == Path("/users/me/.local/state/xla_nb")


def test_record_names_its_files():
    record = Record(Path("/r"))
    assert record.program("m") == Path("/r/program/m.py")
    assert (record.log(3), record.log(3, "err")) == (Path("/r/rank-3.out"), Path("/r/rank-3.err"))
    assert record.log(None, "err") == Path("/r/job.err")
    assert record.result(0) == Path("/r/rank-0.result")
    assert record.history(0) == Path("/r/rank-0.history")
    assert record.sample(0) == Path("/r/rank-0.now")
    assert (record.events, record.summary) == (Path("/r/events.jsonl"), Path("/r/run.json"))
    assert (record.stacks_request, record.others_ended) == ("/r/stacks", Path("/r/alone"))


def test_growing_files_are_identified_by_their_suffixes():
    record = Record(Path("/r"))
    grow = [record.log(3, "err"), record.log(None), record.history(3), record.result(3)]
    others = [record.events, record.summary, Path(record.stacks_request), record.others_ended]
    others += [record.program_folder, record.path / "owner", files.partial(record.result(3))]
    grows = [path.name.rpartition(".")[2] in files.GROWING for path in (*grow, *others)]
    assert grows == [True] * len(grow) + [False] * len(others)
    assert record.sample(3).suffix == f".{files.SAMPLE}"


PACKAGE = Path(files.__file__).parents[1]
#: Parts of names that refer to a record's file in any string, and words that do so in a path.
PARTS = re.compile(
    r"rank-(\d+)?|(rank-\d+|job|run\.json)?\.(out|err|history|result|now|partial)"
    r"|events\.jsonl|run\.json"
)
WORDS = {"stacks", "alone", "owner", "program"}


def spelled(source: str) -> Iterator[str]:
    """Names of a record's files that a module spells out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and PARTS.fullmatch(str(node.value)):
            yield str(node.value)
        parts = [node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Path":
            parts = node.args
        names = (part.value for part in parts if isinstance(part, ast.Constant))
        yield from (name for name in names if name in WORDS)


def test_no_other_module_spells_out_names_of_files():
    modules = set(PACKAGE.rglob("*.py")) - {Path(files.__file__)}
    assert {path: names for path in modules if (names := list(spelled(path.read_text())))} == {}


@pytest.mark.parametrize(
    "source",
    [
        'f"rank-{rank}.out"',
        'path.with_suffix(".partial")',
        'folder / "events.jsonl"',
        'open(f"{folder}/" + "run.json")',
        'folder / "stacks"',
        'Path(order.record, "alone")',
    ],
)
def test_spelled_out_name_is_detected(source):
    assert list(spelled(source))


@pytest.mark.parametrize("source", ['send("stacks")', 'name_process(f"xla_nb-rank-{rank}")'])
def test_other_strings_are_not_names_of_files(source):
    assert not list(spelled(source))


def test_record_can_be_used_as_a_path():
    record = Record(Path("/r"))
    assert os.fspath(record) == "/r"


def test_new_record_is_in_the_home(at_home):
    record = Record.create("now")
    assert record.path == at_home / "runs" / "now"
    assert record.path.is_dir()


def test_only_the_owner_can_read_a_record(at_home):
    before = os.umask(0)
    try:
        record = Record.create("now")
    finally:
        os.umask(before)
    assert record.path.stat().st_mode & 0o777 == 0o700


def test_record_that_cannot_be_written_leaves_no_folder(at_home, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.private, "write", full)
    with pytest.raises(OSError, match="No space left"):
        Record.create("now")
    assert list((files.home() / "runs").iterdir()) == []


def test_record_is_never_created_twice(at_home):
    Record.create("now")
    with pytest.raises(FileExistsError):
        Record.create("now")


def test_creating_a_record_in_an_unwritable_home_raises(at_home):
    (at_home / "runs").write_text("no folder")
    with pytest.raises(OSError):
        Record.create("now")


def test_events_are_recorded_in_order_one_per_line(at_home):
    record = Record.create("now")
    sent = [events.Notice(text="one\ntwo"), events.RankFinished(rank=1, preview="ü", nbytes=1)]
    for event in sent:
        record.add(event)
    lines = (record.path / "events.jsonl").read_bytes().splitlines()
    assert [events.decode(line) for line in lines] == sent


def test_event_that_cannot_be_recorded_raises_and_is_written_later(at_home):
    record = Record(at_home / "later")
    with pytest.raises(FileNotFoundError):
        record.add(events.Notice(text="first"))
    record.path.mkdir(parents=True)
    record.add(events.Notice(text="second"))
    lines = record.events.read_bytes().splitlines()
    assert [events.decode(line).text for line in lines] == ["first", "second"]


def test_record_without_its_folder_can_be_closed(at_home):
    gone = Record(at_home / "nowhere")
    gone.close({})
    assert not gone.path.exists()


def test_closing_writes_the_summary_and_leaves_no_partial_file(at_home):
    record = Record.create("now")
    record.log(0).write_bytes(b"x" * 1000)
    record.close({"ok": True})
    summary = json.loads((record.path / "run.json").read_text())
    assert summary == {"ok": True, "bytes": 1000 + record.path.joinpath("owner").stat().st_size}
    names = sorted(path.name for path in record.path.iterdir())
    assert names == ["owner", "rank-0.out", "run.json"]


def test_summary_that_does_not_fit_is_cut(at_home, monkeypatch):
    record = Record.create("now")
    write = private.write

    def full(path, content):
        write(path, content[:3])
        raise OSError("no space left")

    monkeypatch.setattr(private, "write", full)
    record.close({"ok": True})
    assert (record.path / "run.json").read_text() == "{\n "


# ---------------------------------------------------------------- parts of other machines' runs


def test_parts_have_their_own_folder(at_home):
    record = Record.create("r1-0", "parts")
    assert record.path == at_home / "parts" / "r1-0"
    assert record.path.stat().st_mode & 0o777 == 0o700
    assert not (at_home / "runs").exists()


def test_record_of_another_machine_counts_as_owned_for_a_week(at_home):
    """Its process cannot be checked from this machine."""
    record = Record.create("elsewhere")
    owner = record.path / "owner"
    owner.write_text("1 0 another-machine")
    assert record.is_owned
    record.own()
    record.disown()  # not owned by this process
    assert owner.exists()
    os.utime(owner, (1, 1))
    assert not record.is_owned


def test_record_belongs_to_a_process_and_not_to_its_pid(at_home):
    record = Record.create("mine")
    pid, _, machine = (record.path / "owner").read_text().split()
    (record.path / "owner").write_text(f"{pid} 1 {machine}")
    assert not record.is_owned


def test_ended_process_owns_nothing_before_its_parent_notices(at_home):
    ended = subprocess.Popen(["/bin/true"])
    record = Record.create("orphan")
    while _state(ended.pid) != "Z":
        time.sleep(0.01)
    start = Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[19]
    (record.path / "owner").write_text(f"{ended.pid} {start} {os.uname().nodename}")
    assert not record.is_owned
    ended.wait()


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_relative_home_is_in_the_notebooks_folder(at_home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_NB_HOME", "runs-here")
    assert Record.create("now").path == tmp_path / "runs-here" / "runs" / "now"
