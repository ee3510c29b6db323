"""Runs reopened from their record, without the process that launched them."""

import json
import os
import shutil
import sys
import time

import pytest

from tests.support.returned import are_sent
from xla_nb.errors import UsageError, XlaNbError
from xla_nb.messages import events
from xla_nb.pickling import results
from xla_nb.record import figures, private
from xla_nb.record.files import Record
from xla_nb.record.sample import Sample, encode
from xla_nb.run.recorded import RecordedRun, entries
from xla_nb.views import picture

BEGAN = 1000.0


class Made:
    """A record written as a run would write it; its notebook is this process."""

    def __init__(self, name="20260101-000000-abcdef"):
        self.name = name
        self.record = Record.create(name)

    def says(self, *happened):
        for event in happened:
            self.record.add(event)

    def begins(self, ranks=2):
        self.says(
            events.JobStarted(host="h", ranks=ranks, simulated=True, at=BEGAN),
            *(
                events.RankStarted(rank=r, pid=100 + r, device="xla:0", at=BEGAN + 1)
                for r in range(ranks)
            ),
        )

    def returns(self, rank, value, at=BEGAN + 5):
        fd = os.open(self.record.result(rank), os.O_RDWR | os.O_CREAT)
        size = results.pack_home(value).write(fd)
        os.close(fd)
        self.says(events.RankFinished(rank=rank, preview=repr(value), nbytes=size, at=at))

    def ends(self, at=BEGAN + 9):
        self.says(events.JobEnded(status=0, at=at))
        self.record.close(self.opened().summary())

    def samples(self, rank, at):
        sample = Sample(at=at, since=at, place="Cell In[3], line 7")
        self.record.sample(rank).write_bytes(encode(sample))

    def loses_its_kernel(self):
        (self.record.path / "owner").write_text("1 0")

    def opened(self):
        return opened(self.name)


def opened(path):
    return RecordedRun.open(path)


def phases(run):
    return [rank.phase for rank in run.state.ranks.values()]


@pytest.fixture
def made():
    made = Made()
    made.begins()
    return made


@pytest.fixture
def ended(made):
    """Rank 0 returned 42, rank 1 failed."""
    made.returns(0, 42)
    failure = {"kind": "ValueError", "message": "boom", "text": "Traceback …", "where": "w"}
    place = "Cell In[3], line 7"
    made.says(events.RankFailed(rank=1, place=place, at=BEGAN + 6, **failure))
    made.record.log(0).write_bytes(b"one\n\xfftwo\n")
    made.record.log(1, "err").write_text("trouble\n")
    made.record.history(0).write_text(json.dumps([0, BEGAN, None, {"loss": 0.5}]) + "\n")
    made.ends()
    return made


# ---------------------------------------------------------------- opening


def test_open_run_accepts_names_folders_and_records(ended, monkeypatch):
    monkeypatch.chdir(ended.record.path.parent)
    for path in (ended.name, str(ended.record.path), ended.record.path, ended.record):
        run = opened(path)
        assert (run.name, run.record.path) == (ended.name, ended.record.path)


def test_open_run_resolves_relative_paths_at_once(ended, monkeypatch):
    monkeypatch.chdir(ended.record.path)
    run = opened(".")
    monkeypatch.chdir("/")
    assert (run.name, run[0]) == (ended.name, 42)


def test_moved_run_opens_from_its_new_folder(ended, tmp_path):
    ended.record.path.rename(tmp_path / "kept")
    run = opened(tmp_path / "kept")
    assert (run.name, run[0], run.output(1, "err")) == ("kept", 42, "trouble\n")


def test_opening_a_path_ignores_a_broken_home(ended, tmp_path, monkeypatch):
    ended.record.path.rename(tmp_path / "kept")
    (tmp_path / "link").symlink_to("link")
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path / "link"))
    assert opened(tmp_path / "kept")[0] == 42


@pytest.mark.parametrize("path", ["20200101-000000-nosuch", "/nowhere/at/all", ""])
def test_opening_a_missing_run_suggests_xla_runs(path):
    with pytest.raises(UsageError, match=r"No run is recorded at .*%xla_runs"):
        opened(path)


@pytest.mark.parametrize("path", [None, 5, b"r", ["r"]])
def test_opening_a_run_rejects_values_that_are_not_paths(path):
    with pytest.raises(UsageError, match="needs a run's name or folder, not "):
        opened(path)


def test_folder_without_a_record_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="No run is recorded at"):
        opened(tmp_path)


def test_stopped_run_reopens_as_stopped(made):
    made.says(events.StopRequested(why="Stopped by %xla_stop"), events.RankStopped(rank=0))
    made.says(events.SignalSent(number=9), events.ProcessDied(pid=101, status=-9))
    made.ends()
    run = made.opened()
    assert phases(run) == ["stopped", "stopped"]
    assert run.errors == {}
    assert "Stopped by %xla_stop" in repr(run)


# ---------------------------------------------------------------- contents


def test_reopened_run_has_results_of_ranks_that_returned(ended):
    run = ended.opened()
    assert (run.results, run[0], run.ok) == ({0: 42}, 42, False)


def test_missing_result_error_states_what_the_rank_did_instead(ended):
    run = ended.opened()
    with pytest.raises(KeyError, match=r"Rank 1 failed, so it has no result. See run.errors"):
        run[1]
    with pytest.raises(KeyError, match="has no rank 7"):
        run[7]


def test_deleted_result_file_is_reported(ended):
    ended.record.result(0).unlink()
    with pytest.raises(XlaNbError) as told:
        ended.opened()[0]
    assert str(told.value) == (
        f"Rank 0's result is gone: {ended.record.result(0)} existed when the rank returned, "
        "and is missing now. The run's other files are still there."
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: bytes(range(256)) * 4,
        lambda data: bytes(len(data)),
        lambda data: data[:8],
        lambda data: data[:-200],
        lambda data: data[: len(data) // 2],
        lambda data: data[:16] + b"[" + data[17:],
        lambda data: data.replace(b'"stream": ', b'"stream": 9'),
        lambda data: data.replace(b'"stream": ', b'"stream":-'),
        lambda data: data.replace(b'"buffers"', b'"buffets"'),
        lambda data: data.replace(b"[[0, ", b"[[7, "),
        lambda data: data.replace(b"\x80\x05", b"\xff\xff"),
        lambda data: data.replace(b"result", b"tluser"),
    ],
)
def test_damaged_result_is_rejected_with_its_path(made, change):
    import numpy

    made.returns(0, numpy.arange(1000))
    path = made.record.result(0)
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    with pytest.raises(XlaNbError, match=rf"Rank 0's result is damaged: {path} .*\.$"):
        made.opened()[0]


def test_stray_result_files_are_ignored(made):
    (made.record.path / "rank-x.result").touch()
    made.returns(0, 42)
    made.loses_its_kernel()
    assert made.opened().results == {0: 42}


@pytest.mark.parametrize("line", [b"print\n", b"[]\n", b"3\n", b'[0, 1, null, {"loss": "x"}]\n'])
def test_damaged_history_is_rejected_with_its_path(ended, line):
    with ended.record.history(0).open("ab") as file:
        file.write(line)
    run = ended.opened()
    with pytest.raises(XlaNbError, match=rf"{ended.record.history(0)} is damaged: "):
        list(run.history)


def test_truncated_sample_reads_as_none(made):
    made.samples(0, BEGAN)
    path = made.record.sample(0)
    path.write_bytes(path.read_bytes()[:-9])
    made.loses_its_kernel()
    assert made.opened().sample(0) is None


def test_reopened_run_has_errors_of_failed_ranks(ended):
    (error,) = ended.opened().errors.values()
    assert (error.rank, error.kind, error.place) == (1, "ValueError", "Cell In[3], line 7")


def test_output_with_invalid_utf8_is_read_completely(ended):
    run = ended.opened()
    assert run.output(0) == "one\n\N{REPLACEMENT CHARACTER}two\n"
    assert (run.output(1), run.output(1, "err")) == ("", "trouble\n")


def test_output_keeps_carriage_returns_of_progress_bars(ended):
    run = ended.opened()
    run.record.log(0, "out").write_bytes(b"\r 1/2\r 2/2\nwindows\r\n")
    assert run.output(0) == "\r 1/2\r 2/2\nwindows\r\n"


def test_reopened_run_has_reported_figures(ended):
    assert ended.opened().history["loss"] == {0: [0.5]}


def test_reopened_run_has_newest_sample_of_each_rank(ended):
    ended.samples(1, BEGAN + 4)
    run = ended.opened()
    assert (run.sample(0), run.sample(1).place) == (None, "Cell In[3], line 7")


def test_half_written_sample_reads_as_none(ended):
    ended.record.sample(0).write_bytes(b'{"at": 1')
    assert ended.opened().sample(0) is None


def test_elapsed_time_ends_with_the_last_rank(ended):
    assert ended.opened().elapsed == 6.0


def test_repr_of_a_reopened_run_summarizes_it(ended):
    name = "20260101-000000-abcdef"
    failed = "Rank 1 failed at Cell In[3], line 7: ValueError: boom"
    assert repr(ended.opened()) == f"<Run {name}: {failed}, 6 s; [0] returned 42>"


def test_label_comes_from_the_summary(ended):
    ended.record.close({**ended.opened().summary(), "cell": "Cell In[3]"})
    assert ended.opened().label == "Cell In[3]"


# ---------------------------------------------------------------- runs without an end


def test_run_in_progress_in_another_kernel_is_running(made):
    made.returns(0, 42)
    run = made.opened()
    assert (phases(run), run.state.ended, run.results) == (["finished", "running"], None, {0: 42})


def test_elapsed_time_of_a_run_in_progress_counts_to_now():
    made = Made()
    made.says(
        events.JobStarted(host="h", ranks=1, simulated=True, at=time.time() - 100),
    )
    assert made.opened().elapsed == pytest.approx(100, abs=5)


def test_run_of_a_dead_kernel_has_ended_and_its_ranks_died(made):
    made.returns(0, 42)
    made.loses_its_kernel()
    run = made.opened()
    assert phases(run) == ["finished", "died"]
    assert (run.ok, run.results, run.errors[1].kind) == (False, {0: 42}, "Died")


def test_run_of_a_dead_kernel_ended_at_its_last_event_or_sample(made):
    made.loses_its_kernel()
    assert made.opened().state.ended == BEGAN + 1
    made.record.summary.unlink()
    made.samples(0, at=BEGAN + 50)
    made.samples(1, at=BEGAN + 40)
    assert (made.opened().state.ended, made.opened().elapsed) == (BEGAN + 50, 50)


def test_rejected_launch_has_ended_even_while_its_notebook_is_alive():
    refused = Made()
    refused.record.close({"run": refused.name, "ok": False, "headline": "not started"})
    run = refused.opened()
    assert run.state.settled
    assert "No rank was started" in repr(run)


# ---------------------------------------------------------------- incomplete records


@pytest.fixture
def mixed():
    """An ended run of 3 ranks: rank 0 returned 42, rank 1 failed, rank 2 exited with status 5."""
    mixed = Made()
    mixed.begins(3)
    mixed.returns(0, 42)
    mixed.says(
        events.RankFailed(rank=1, kind="E", message="boom", text="t", place="p", where="w"),
        events.ProcessDied(pid=102, status=5),
    )
    mixed.record.log(1, "err").write_text("trouble\n")
    mixed.record.log(2).touch()
    mixed.ends()
    return mixed


def lines_of(data):
    return data.splitlines(keepends=True)


def in_the_middle(data, line):
    first, *rest = lines_of(data)
    return b"".join([first, line, *rest])


DAMAGE = {
    "empty": lambda data: b"",
    "garbage": lambda data: bytes(range(256)) * 4,
    "invalid line": lambda data: in_the_middle(data, b"print\n"),
    "endless nesting": lambda data: in_the_middle(data, b"[" * 100_000 + b"\n"),
}


def damage(made, change):
    path = made.record.path / "events.jsonl"
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("name", ["invalid line", "endless nesting"])
def test_unreadable_event_lines_are_skipped_with_a_notice_and_the_run_is_not_ok(made, name):
    made.returns(0, 42)
    made.returns(1, 43)
    made.ends()
    assert made.opened().ok
    damage(made, DAMAGE[name])
    run = made.opened()
    assert (run.ok, run.results) == (False, {0: 42, 1: 43})
    (told,) = [notice.text for notice in run.state.notices]
    assert "1 line of" in told and "events.jsonl could not be read; skipped." in told


def test_record_without_events_is_rejected(mixed):
    (mixed.record.path / "events.jsonl").unlink()
    with pytest.raises(UsageError, match=r"is damaged: .*events\.jsonl does not say how the run"):
        mixed.opened()


def test_damaged_record_is_still_listed_with_its_outcome(mixed):
    damage(mixed, DAMAGE["garbage"])
    (entry,) = entries()
    assert (entry.outcome, entry.headline[:13]) == ("failed", "Rank 1 failed")


def test_run_in_progress_is_listed_as_running_despite_damaged_events(made):
    for damaged in DAMAGE["invalid line"], lambda data: b"":
        damage(made, damaged)
        (entry,) = entries()
        assert entry.outcome == "running"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_partial_last_event_of_a_dead_kernel_is_skipped(made, cut):
    made.returns(0, 42)
    made.loses_its_kernel()
    damage(made, lambda data: data + lines_of(data)[-1][:cut])
    run = made.opened()
    assert (phases(run), run.results) == (["finished", "died"], {0: 42})


@pytest.mark.parametrize("ends", [False, True])
def test_record_with_results_but_no_events_is_rejected(made, ends):
    made.returns(0, 42)
    (made.loses_its_kernel if not ends else made.record.summary.touch)()
    damage(made, DAMAGE["empty"])
    with pytest.raises(UsageError, match="does not say how the run began"):
        made.opened()


def test_unknown_event_of_a_later_version_is_skipped(made):
    with (made.record.path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "Invented", "at": 3}\n')
    made.returns(0, 42)
    assert made.opened().results == {0: 42}


@pytest.mark.parametrize("text", ['{"run": "20', "", "[]", "3", '{"ok": 1}', '{"headline": []}'])
def test_damaged_summary_is_ignored(ended, text):
    (ended.record.path / "run.json").write_text(text)
    assert ended.opened().results == {0: 42}
    (entry,) = entries()
    assert entry.headline == "Rank 1 failed at Cell In[3], line 7: ValueError: boom"


# ---------------------------------------------------------------- the list of runs


def test_runs_are_listed_newest_first():
    for name in ("20260102-000000-a", "20260103-000000-a", "20260101-000000-a"):
        Made(name)
    assert [entry.name[:8] for entry in entries()] == ["20260103", "20260102", "20260101"]


def test_list_of_runs_is_empty_before_any_run():
    assert entries() == []


def test_list_shows_the_last_figures_of_rank_0(ended):
    rows = (figures.encode(n, 1.0, None, {"loss": 1 / (n + 1)}) for n in range(4))
    ended.record.history(0).write_bytes(b"".join(rows))
    (entry,) = entries()
    assert entry.figures == {"loss": 0.25}
    shown = picture.runs([entry])
    assert " loss 0.25 " in shown["text/plain"]
    assert ">loss 0.25<" in shown["text/html"]
    with ended.record.history(0).open("ab") as file:
        file.write(figures.encode(4, 1.0, None, {"accuracy": 0.5}))
        file.write(b"[5, ")  # the disk was full
    (entry,) = entries()
    assert entry.figures == {"loss": 0.25, "accuracy": 0.5}


def test_list_shows_figures_of_the_newest_cell_of_live_ranks_that_has_any(ended):
    ended.record.history(0).unlink()
    for number, losses in enumerate(([0.5], [0.25], [])):
        cell = ended.record.cell(f"2026010{number + 1}-000000-a")
        cell.path.mkdir(parents=True)
        rows = (figures.encode(n, 1.0, None, {"loss": loss}) for n, loss in enumerate(losses))
        cell.history(0).write_bytes(b"".join(rows))
    (entry,) = entries()
    assert entry.figures == {"loss": 0.25}


def test_list_shows_outcome_and_headline_of_an_ended_run(ended):
    (entry,) = entries()
    assert (entry.outcome, entry.elapsed) == ("failed", 6.0)
    assert entry.headline == "Rank 1 failed at Cell In[3], line 7: ValueError: boom"


def test_list_shows_successful_run_as_finished(made):
    for rank in (0, 1):
        made.returns(rank, rank)
    made.ends()
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("finished", "2 ranks finished")


def test_list_shows_stopped_run_as_stopped(made):
    made.says(events.StopRequested(why="Stopped by %xla_stop"))
    made.says(events.RankStopped(rank=0), events.RankStopped(rank=1))
    made.ends()
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("stopped", "Stopped by %xla_stop")


def test_list_shows_run_in_progress_as_running(made):
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("running", "2 ranks running")
    assert entry.elapsed is not None


HANG = events.HangReported(verdict="Rank 1 hangs", ranks=(1,), groups=())


def test_reopened_run_has_its_hang_report(made):
    made.says(HANG)
    assert made.opened().state.hang == HANG


def test_list_shows_run_of_a_dead_kernel_as_failed(made):
    made.loses_its_kernel()
    (entry,) = entries()
    assert entry.outcome == "failed"
    assert "kernel ended before the run did" in entry.headline


def test_run_opened_in_progress_stays_as_it_was(made, monkeypatch):
    opened = RecordedRun.open(made.record.path)
    elapsed = opened.elapsed
    monkeypatch.setattr(time, "time", lambda: 10 * BEGAN**3)
    assert opened.elapsed == elapsed


def test_run_of_a_dead_kernel_is_failed_while_another_has_it_open(made):
    made.loses_its_kernel()
    opened = RecordedRun.open(made.record.path)
    opened.record.own()
    (entry,) = entries()
    assert (entry.outcome, entry.cell) == ("failed", opened.label)


def test_list_ignores_other_files(ended):
    (ended.record.path.parent / "notes.txt").write_text("mine")
    assert [entry.name for entry in entries()] == [ended.name]


# ---------------------------------------------------------------- compared with the live run

CELL = """
%%xla_spawn -n 3 --keep-going -o lived --view none
class RecordedHere:
    def __eq__(self, other):
        return type(self) is type(other)
def recorded_run(rank):
    import sys, xla_nb
    xla_nb.report(loss=rank / 2)
    print("out of", rank)
    print("err of", rank, file=sys.stderr)
    if rank == 2:
        raise ValueError("boom")
    return RecordedHere(), rank
"""


@pytest.fixture(scope="module")
def reopened(kernel):
    """A kernel with an ended run `lived`, and the same run opened from its record, `reopened`."""
    kernel.ok(CELL.strip())
    kernel.ok("reopened = __import__('xla_nb').open_run(lived.name)")
    return kernel


@pytest.mark.parametrize(
    "what",
    [
        "{run}.results",
        "{run}.errors",
        "{run}.ok",
        "{run}.state",
        "{run}.name",
        "{run}.label",
        "{run}.history.rows",
        "{run}.record.path",
        "[{run}.output(rank, stream) for rank in range(3) for stream in ('out', 'err')]",
        "[{run}.sample(rank) for rank in range(3)]",
    ],
)
def test_reopened_run_equals_the_live_run(reopened, what):
    live, read = what.format(run="lived"), what.format(run="reopened")
    assert reopened.value(f"{live} == {read}") == "True", reopened.value(f"{live}, {read}")


def test_unreadable_sample_reads_as_none(made, monkeypatch):
    def refuses(path):
        raise PermissionError

    monkeypatch.setattr(private, "read", refuses)
    assert opened(made.name).sample(0) is None


def test_reopened_run_has_the_same_elapsed_time(reopened):
    assert reopened.value("0 < lived.elapsed == reopened.elapsed") == "True"


def test_result_of_a_class_missing_in_the_notebook_names_the_class(made, monkeypatch):
    class Point:
        pass

    Point.__module__, Point.__qualname__ = "__main__", "Point"
    monkeypatch.setattr(sys.modules["__main__"], "Point", Point, raising=False)
    are_sent({"Point": Point})
    fd = os.open(made.record.result(0), os.O_RDWR | os.O_CREAT)
    results.pack_home(Point()).write(fd)
    os.close(fd)
    made.says(events.RankFinished(rank=0, preview="a point", nbytes=1))
    monkeypatch.delattr(sys.modules["__main__"], "Point")
    run = made.opened()
    with pytest.raises(XlaNbError, match="result needs Point, which the notebook does not define"):
        run[0]


def test_output_of_unknown_rank_or_stream_is_rejected(ended):
    with pytest.raises(KeyError, match="has no rank 7"):
        ended.opened().output(7)
    with pytest.raises(UsageError, match=r"Unknown stream 'foo'. Choose out or err"):
        ended.opened().output(0, "foo")


# ---------------------------------------------------------------- records of other users


def test_record_with_a_file_writable_by_others_is_rejected(ended):
    ended.record.result(0).chmod(0o660)
    with pytest.raises(UsageError, match=r"Other users can write to .*rank-0.result.*trust=True"):
        ended.opened()


def test_record_with_a_folder_writable_by_others_is_rejected(ended, tmp_path):
    moved = ended.record.path.rename(tmp_path / "copied")
    moved.chmod(0o775)
    with pytest.raises(UsageError, match=r"Other users can write to .*copied \(mode 0775\)"):
        opened(moved)


def test_record_of_another_user_is_rejected(ended, tmp_path, monkeypatch):
    moved = ended.record.path.rename(tmp_path / "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"theirs belongs to .*trust=True"):
        opened(moved)


def test_trusted_record_of_another_user_is_opened(ended, tmp_path, monkeypatch):
    moved = ended.record.path.rename(tmp_path / "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    run = RecordedRun.open(moved, trust=True)
    assert (run[0], run.output(1, "err")) == (42, "trouble\n")


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", ["events.jsonl", "run.json", "rank-0.result", "rank-0.history"])
def test_fifo_in_a_record_is_rejected_without_blocking(ended, name, trust):
    path = ended.record.path / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match=f"{name} is not a plain file"):
        RecordedRun.open(ended.name, trust=trust)


def test_symbolic_link_in_a_record_is_rejected(ended, tmp_path):
    path = ended.record.result(0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is not a plain file"):
        ended.opened()


def test_fifo_does_not_block_the_list_of_runs(ended):
    (ended.record.path / "run.json").unlink()
    os.mkfifo(ended.record.path / "run.json")
    assert [entry.name for entry in entries()] == [ended.name]


def test_permissions_of_a_home_writable_by_others_are_tightened(ended):
    runs = ended.record.path.parent
    runs.chmod(0o777)
    entries()
    assert runs.stat().st_mode & 0o777 == 0o700


def test_runs_in_a_folder_of_another_user_are_neither_listed_nor_opened(ended, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for use in (entries, ended.opened):
        with pytest.raises(UsageError, match=r"belongs to .*Set XLA_NB_HOME to a folder of yours"):
            use()


# ---------------------------------------------------------------- deleted records


@pytest.mark.parametrize(
    "use", [lambda run: run.results, lambda run: run.output(0), lambda run: run.history]
)
def test_reading_from_a_deleted_record_raises(ended, use):
    run = ended.opened()
    shutil.rmtree(ended.record.path)
    with pytest.raises(XlaNbError, match=r"The files of .* are gone .*Run the cell again"):
        use(run)
