"""Launching: what is written, requested and rejected before any rank starts."""

import contextlib
import errno
import functools
import json
import os
import sys
from pathlib import Path

import pytest

from tests.run.conftest import (
    PATIENCE,
)
from xla_nb import old_names
from xla_nb.errors import LaunchError, UsageError
from xla_nb.messages import channel, events
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.monitor.state import RunState
from xla_nb.pickling import pickler
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap
from xla_nb.record import files
from xla_nb.run.launch import launch as launch_program
from xla_nb.run.launch import name_at
from xla_nb.run.options import Options
from xla_nb.topology.chips import SIMULATED


@pytest.fixture(autouse=True)
def no_tpu(monkeypatch):
    """Hide any TPU of the machine."""
    monkeypatch.setattr("xla_nb.runtimes.fit.count_chips", lambda: 0)
    for name in ("PJRT_DEVICE", "XLA_USE_SPMD"):
        monkeypatch.delenv(name, raising=False)


SOURCE = "def f(rank, x):\n    return rank + x + n\n"


def cell(**changes):
    fields = {
        "name": "xla_nb_cell_3",
        "label": "Cell In[3]",
        "parcel": pickler.pack({"n": 41, ARGUMENTS: (1,)}, Live()),
        "entry": "f",
        "sources": {"Cell In[3]": SOURCE},
        **changes,
    }
    return Program(**fields)


@pytest.fixture
def launch(engine):
    """Launch a program whose run ends with the test."""
    made, ends = [], []

    def launch(program, **options):
        engine.sock, engine.job = channel.pair()
        ends.append((engine.sock, engine.job))
        made.append(launch_program(program, Options(**options), engine))
        return made[-1]

    yield launch
    for ours, theirs in ends:
        theirs.close()
        if not made:
            ours.close()
    for run in made:
        assert run._ended.wait(PATIENCE)


def the_record():
    (path,) = (files.home() / "runs").iterdir()
    return files.Record(path)


def parcels():
    """The parcels open in this process."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own fd, or just closed
            found.append(str(fd.readlink()))
    return [path for path in found if "xla_nb-parcel" in path]


@pytest.mark.parametrize(("n", "count"), [(None, SIMULATED), (1, 1), (7, 7)])
def test_ranks_are_simulated_without_a_tpu(launch, engine, n, count):
    launch(cell(), n=n)
    assert (engine.fitted.device, engine.fitted.ranks) == ("CPU", count)


def test_impossible_number_of_ranks_on_a_tpu_is_rejected(launch, monkeypatch):
    monkeypatch.setattr("xla_nb.runtimes.fit.count_chips", lambda: 8)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    with pytest.raises(UsageError):
        launch(cell(), n=3)
    assert not (files.home() / "runs").exists()


def test_ranks_are_simulated_on_a_tpu_host_if_requested(launch, engine, monkeypatch):
    monkeypatch.setattr("xla_nb.runtimes.fit.count_chips", lambda: 8)
    launch(cell(), env={"PJRT_DEVICE": "CPU"})
    assert (engine.fitted.device, engine.fitted.ranks) == ("CPU", SIMULATED)


def test_launch_writes_the_program_as_a_loadable_module(launch, engine):
    run = launch(cell())
    path = run.record.program("xla_nb_cell_3")
    assert engine.request.program == str(path)
    assert "restore(globals())" in path.read_text()
    table = ModuleMap.open(path)
    assert table.sources == {"Cell In[3]": SOURCE}
    assert table.body is None


def test_cell_of_statements_is_written_with_its_body(launch):
    body = "\nrank + 1\n"
    run = launch(cell(entry=None, body=body))
    table = ModuleMap.open(run.record.program("xla_nb_cell_3"))
    assert (table.label, table.body) == ("Cell In[3]", body)


def test_request_has_everything_a_job_needs(launch, engine, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = launch(cell(takes_lock=True), env={"MINE": "1"})
    request = engine.request
    assert (request.run, request.record) == (run.name, str(run.record.path))
    assert (request.entry, request.takes_lock) == ("f", True)
    assert request.cwd == str(tmp_path)
    assert request.sys_path[: len(sys.path)] == tuple(sys.path)
    assert request.user_env == {"MINE": "1"}
    assert engine.fitted.env["MINE"] == "1"
    assert engine.fitted.env["PATH"] == os.environ["PATH"]


def test_parcel_contains_values_and_arguments(launch, engine):
    launch(cell())
    assert engine.values == {"n": 41, ARGUMENTS: (1,)}


def test_parcel_is_closed_after_the_handover(launch, engine):
    launch(cell())
    assert parcels() == []


def test_failed_launch_leaves_no_open_parcel_and_an_ended_record(launch, engine):
    engine.refuses = LaunchError("no torch_xla")
    with pytest.raises(LaunchError, match="no torch_xla"):
        launch(cell())
    assert parcels() == []
    written = json.loads((the_record().path / "run.json").read_text())
    assert (written["ok"], written["headline"]) == (False, "not started")


def test_interrupted_launch_leaves_no_open_parcel(launch, engine):
    engine.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        launch(cell())
    assert parcels() == []


def test_unwritable_record_error_suggests_a_fix(launch, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path / "file"))
    with pytest.raises(LaunchError, match="Set XLA_NB_HOME to a folder of yours"):
        launch(cell())


def test_launch_that_cannot_write_its_program_leaves_no_record(launch, monkeypatch):
    def full(program, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module_file, "write", full)
    with pytest.raises(LaunchError, match="No space left on device"):
        launch(cell())
    assert list((files.home() / "runs").iterdir()) == []


@pytest.mark.parametrize("target", ["nowhere", "link"], ids=["dangling", "to itself"])
def test_home_below_a_broken_link_is_rejected_with_a_fix(launch, monkeypatch, tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path / "link" / "xla_nb"))
    with pytest.raises(LaunchError, match=r"Cannot write the run's files: .*Set XLA_NB_HOME to"):
        launch(cell())


def test_notes_of_program_and_environment_are_the_first_notices(launch, monkeypatch):
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    run = launch(cell(notes=("a note",)))
    first, second = (notice.text for notice in run.state.notices)
    assert first == "a note"
    assert "XLA_USE_SPMD" in second


def test_environment_notices_appear_once_and_again_when_it_changes(launch, monkeypatch):
    monkeypatch.setattr(old_names, "_here", functools.cache(old_names._Here))  # as at startup
    notes = []
    for name in ("XLA_USE_SPMD", "XLA_USE_SPMD", "XLA_AUTO_SPMD"):
        monkeypatch.setenv(name, "1")
        run = launch(cell(notes=("of the program",)))
        notes.append([notice.text for notice in run.state.notices])
    (_, spmd), (again,), (_, other) = notes
    assert again == "of the program"
    assert "XLA_USE_SPMD" in spmd
    assert "XLA_AUTO_SPMD" in other


def test_launched_run_receives_events_from_the_engine(launch, engine):
    run = launch(cell())
    launched = run.state.launched
    assert run.state == RunState(started=run.state.started, launched=launched)
    assert (launched.label, launched.called) == ("Cell In[3]", "")
    channel.Sender(engine.job).send(events.JobEnded(status=1))
    assert run._ended.wait(PATIENCE)
    assert run.label == "Cell In[3]"


def test_launch_reports_how_long_it_has_waited_for_the_engine(engine):
    engine.refuses = LaunchError("enough")
    told = []
    with pytest.raises(LaunchError):
        launch_program(cell(), Options(), engine, lambda *said: told.append(said))
    assert told == [(0.5, "a server")]


def test_launch_without_free_file_descriptors_names_the_limit(launch, engine):
    engine.refuses = OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(LaunchError, match=r"Too many open files.*`ulimit -n`"):
        launch(cell())
    assert parcels() == []


def test_run_whose_follower_cannot_start_is_killed(launch, engine, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(LaunchError, match=r"can't start new thread.*`ulimit -u`"):
        launch(cell())
    assert engine.killed == [the_record().path.name]
    assert json.loads(the_record().summary.read_text())["ok"] is False


def test_names_of_runs_started_within_a_second_sort_by_start_time():
    names = [name_at(1_000_000_000 + tenth / 10) for tenth in range(10)]
    assert sorted(names) == names
    assert name_at(1_000_000_000) != name_at(1_000_000_000)
