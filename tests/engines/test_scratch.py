"""A fork server's folder in TMPDIR: whose it is, and who removes it."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from xla_nb.engines import scratch
from xla_nb.engines.scratch import Scratch


@pytest.fixture
def made():
    one = Scratch.create()
    yield one
    one.remove()


def abandoned():
    """The folder of a process that was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, os.fsencode(Scratch.create().path))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        return Path(os.fsdecode(file.read()))


def test_a_folder_that_nobody_uses_is_removed_by_the_next_one():
    left = abandoned()
    assert left.exists()
    Scratch.create().remove()
    assert not left.exists()


def test_a_folder_in_use_stays(made):
    Scratch.create().remove()
    assert made.path.exists()


def test_a_folder_stays_while_one_of_several_processes_uses_it(made):
    path = made.path
    child = Scratch(path)  # as the server opens it
    os.close(made._lock)
    made._lock = None
    Scratch.create().remove()
    assert path.exists()
    child.remove()


def test_somebody_elses_folder_of_such_a_name_stays():
    other = Path(tempfile.mkdtemp(prefix="xnb-"))
    Scratch.create().remove()
    assert other.exists()
    other.rmdir()


def test_imports_make_their_folders_in_it(made):
    before = tempfile.gettempdir()
    with made.taking_in():
        folder = Path(tempfile.mkdtemp())
    assert folder.parent == made.path
    assert tempfile.gettempdir() == before


def test_multiprocessing_keeps_its_files_in_the_jobs_folder(made, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {})
    scratch.keep_processes_in(made.of_job(12))
    assert multiprocessing.util.get_temp_dir() == str(made.path / "c")
    made.remove_of_job(12)
    assert not made.of_job(12).exists()


def test_where_sockets_would_have_too_long_a_name_multiprocessing_goes_its_own_way(
    made, monkeypatch
):
    config = {}
    monkeypatch.setattr(multiprocessing.current_process(), "_config", config)
    scratch.keep_processes_in(made.path / ("x" * 90))
    assert config == {}
