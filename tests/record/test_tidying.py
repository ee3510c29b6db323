"""Which ended runs a home keeps: the newest within its limits, and those still owned."""

import multiprocessing
import os
import shutil
import time

import pytest

from xla_nb.record import files, tidying
from xla_nb.record.files import WEEK, Record, home
from xla_nb.record.tidying import tidy


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """A home for the test's own runs."""
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def limit(monkeypatch):
    """Set how many runs, and how many bytes of them, a home keeps."""

    def limit(runs=20, nbytes=2 << 30):
        monkeypatch.setattr(tidying, "RUNS", runs)
        monkeypatch.setattr(tidying, "NBYTES", nbytes)

    return limit


def orphaned(name, folder="runs"):
    """A record whose notebook has ended."""
    record = Record.create(name, folder)
    (record.path / "owner").write_text("1 0")
    return record


def ended(name, nbytes=0, folder="runs"):
    record = orphaned(name, folder)
    record.log(0).write_bytes(b"x" * nbytes)
    record.close({})
    return record


def kept(folder="runs"):
    return sorted(path.name for path in (home() / folder).iterdir())


def age(record, seconds):
    for path in [*record.path.iterdir(), record.path]:
        os.utime(path, (time.time() - seconds,) * 2)


# ---------------------------------------------------------------- limits


def test_newest_runs_are_kept(limit):
    limit(runs=2)
    for name in ("3", "1", "4", "2"):
        ended(name)
    tidy()
    assert kept() == ["2", "4"]


def test_newest_runs_within_the_byte_limit_are_kept(limit):
    limit(nbytes=2500)
    for name in ("1", "2", "3"):
        ended(name, 1000)
    tidy()
    assert kept() == ["2", "3"]


def test_run_is_removed_with_all_its_files(limit):
    limit(runs=1)
    record = ended("1")
    record.program_folder.mkdir()
    record.program("m").write_text("x = 1")
    ended("2")
    tidy()
    assert kept() == ["2"]


def test_size_of_a_run_is_read_from_its_summary(monkeypatch):
    ended("1", 1000)
    monkeypatch.setattr(files, "_bytes_in", None)
    assert 1000 < Record(home() / "runs" / "1").nbytes < 1100


def test_run_whose_folder_was_deleted_has_size_zero():
    record = ended("1", 1000)
    shutil.rmtree(record.path)
    assert record.nbytes == 0


def test_size_of_a_run_of_an_older_version_is_measured():
    record = ended("1", 1000)
    (record.path / "run.json").write_text("{}")
    assert record.nbytes > 1000


def test_unended_runs_are_kept_and_not_counted(limit):
    limit(runs=1)
    ended("2")
    for name in ("1", "3", "4"):
        orphaned(name)
    tidy()
    assert kept() == ["1", "2", "3", "4"]


def test_unended_runs_untouched_for_a_week_are_removed():
    age(orphaned("lost"), WEEK + 60)
    age(orphaned("waiting"), WEEK - 60)
    tidy()
    assert kept() == ["waiting"]


def test_run_that_writes_for_weeks_is_kept():
    """A folder's modification time does not change while its files grow."""
    record = orphaned("long")
    age(record, 2 * WEEK)
    record.log(0).write_text("still training")
    os.utime(record.path, (1, 1))
    tidy()
    assert kept() == ["long"]


def test_ended_runs_are_kept_at_any_age():
    age(ended("old"), 10 * WEEK)
    tidy()
    assert kept() == ["old"]


def test_tidying_without_runs_does_nothing(at_home):
    tidy()
    assert not (at_home / "runs").exists()


# ---------------------------------------------------------------- owned runs


def test_ended_runs_of_an_open_notebook_are_removed_once_disowned(limit):
    limit(runs=1, nbytes=1)
    made = [Record.create(name) for name in ("1", "2", "3")]
    for record in made:
        record.close({})
    made[1].disown()
    tidy()
    assert kept() == ["1", "3"]


def in_another_process(work):
    """Do `work` in another process that stays alive; return a function that ends it."""
    context = multiprocessing.get_context("fork")
    done, end = context.Event(), context.Event()

    def live():
        work()
        done.set()
        end.wait()

    process = context.Process(target=live)
    process.start()
    assert done.wait(60)

    def over():
        end.set()
        process.join()
        process.close()

    return over


def test_runs_owned_by_another_open_notebook_are_kept_and_disowned_ones_removed(limit):
    limit(runs=1)

    def other():
        made = [Record.create(name) for name in ("1", "2", "3")]
        for record in made:
            record.close({})
        made[1].disown()

    over = in_another_process(other)
    try:
        tidy()
        assert kept() == ["1", "3"]
    finally:
        over()
    tidy()
    assert kept() == ["3"]


def test_run_of_another_notebook_can_be_owned(limit):
    limit(runs=1)
    old = ended("1")
    ended("2")
    old.own()
    tidy()
    assert kept() == ["1"]


# ---------------------------------------------------------------- concurrency


def test_several_processes_can_tidy_one_home_at_once(limit):
    limit(runs=3)
    for number in range(60):
        ended(f"{number:03}", 10)
    context = multiprocessing.get_context("fork")
    together = context.Event()

    def tidy_together():
        together.wait()
        tidy()

    each = [context.Process(target=tidy_together) for _ in range(4)]
    for process in each:
        process.start()
    together.set()
    for process in each:
        process.join()
    assert [process.exitcode for process in each] == [0] * 4
    tidy()  # runs that were being deleted during the last scan
    assert kept() == ["057", "058", "059"]


def test_interrupted_removal_is_completed(at_home):
    ended("1").path.rename(at_home / "runs" / ".removed-1")
    assert files.records() == []
    tidy()
    assert kept() == []


def test_record_removed_by_another_process_is_skipped(limit, monkeypatch):
    limit(runs=1)
    ended("2")
    gone = ended("1").path
    monkeypatch.setattr(type(gone), "rename", lambda *_: (_ for _ in ()).throw(FileNotFoundError))
    tidy()
    assert gone.exists()


# ---------------------------------------------------------------- cells of live ranks


def cell_names(group):
    return sorted(record.path.name for record in group.cells())


def test_cells_of_live_ranks_do_not_push_out_launched_runs(limit):
    limit(runs=2)
    ended("1")
    group = Record.create("2")
    for number in range(5):
        ended(f"cell-{number}", folder=group)
    tidy()
    assert kept() == ["1", "2"]
    assert cell_names(group) == ["cell-3", "cell-4"]


def test_cells_are_removed_with_their_ranks_unless_one_is_owned(limit):
    limit(runs=1)
    group = ended("1")
    cell = Record.create("cell", group)  # of this process
    cell.close({})
    ended("2")
    ended("3")
    tidy()
    assert kept() == ["1"]
    cell.disown()
    ended("4")
    tidy()
    assert kept() == ["4"]


def test_cells_count_towards_the_byte_limit(limit):
    limit(nbytes=2500)
    group = Record.create("2")
    for number in range(3):
        ended(f"cell-{number}", 1000, folder=group)
    tidy()
    assert cell_names(group) == ["cell-1", "cell-2"]
    assert group.nbytes < 1000


def test_interrupted_removal_of_a_cell_is_completed(at_home):
    group = Record.create("1")
    cell = ended("cell", folder=group).path
    cell.rename(cell.with_name(".removed-cell"))
    tidy()
    assert not any(cell.parent.iterdir())


# ---------------------------------------------------------------- parts of other machines' runs


def test_parts_and_runs_are_tidied_separately(limit):
    limit(runs=1)
    for name in ("1", "2"):
        ended(name)
        ended(name, folder="parts")
    tidy("parts")
    assert (kept("parts"), kept()) == (["2"], ["1", "2"])


def test_parts_of_runs_in_progress_are_kept(limit):
    limit(runs=1)
    Record.create("mine", "parts")
    tidy("parts")
    assert kept("parts") == ["mine"]
