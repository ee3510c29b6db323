"""A run as its record tells it, without the process that launched it."""

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
    """A record that is written as a run would write it; its notebook is this process."""

    def __init__(self, name="20260101-000000-abcdef"):
        self.name = name
        self.record = Record.create(name)

    def says(self, *happened):
        for event in happened:
            self.record.add(event)

    def begins(self, ranks=2):
        self.says(
            events.JobStarted(pid=1, host="h", ranks=ranks, simulated=True, at=BEGAN),
            *(
                events.RankStarted(rank=r, local_rank=r, pid=100 + r, device="xla:0", at=BEGAN + 1)
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


def test_a_run_is_opened_by_its_name_or_its_folder(ended, monkeypatch):
    monkeypatch.chdir(ended.record.path.parent)
    for path in (ended.name, str(ended.record.path), ended.record.path, ended.record):
        run = opened(path)
        assert (run.name, run.record.path) == (ended.name, ended.record.path)


def test_a_run_is_opened_from_where_one_stands(ended, monkeypatch):
    monkeypatch.chdir(ended.record.path)
    run = opened(".")
    monkeypatch.chdir("/")
    assert (run.name, run[0]) == (ended.name, 42)


def test_a_run_that_was_moved_is_opened_where_it_lies_now(ended, tmp_path):
    ended.record.path.rename(tmp_path / "kept")
    run = opened(tmp_path / "kept")
    assert (run.name, run[0], run.output(1, "err")) == ("kept", 42, "trouble\n")


def test_a_run_is_opened_whatever_the_home_is(ended, tmp_path, monkeypatch):
    ended.record.path.rename(tmp_path / "kept")
    (tmp_path / "link").symlink_to("link")
    monkeypatch.setenv("XLA_NB_HOME", str(tmp_path / "link"))
    assert opened(tmp_path / "kept")[0] == 42


@pytest.mark.parametrize("path", ["20200101-000000-nosuch", "/nowhere/at/all", ""])
def test_where_no_run_is_recorded_the_runs_there_are_can_be_listed(path):
    with pytest.raises(UsageError, match=r"No run is recorded at .*%xla_runs"):
        opened(path)


@pytest.mark.parametrize("path", [None, 5, b"r", ["r"]])
def test_what_is_no_name_is_refused(path):
    with pytest.raises(UsageError, match="needs a run's name or folder, not "):
        opened(path)


def test_a_folder_that_is_no_record_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No run is recorded at"):
        opened(tmp_path)


def test_a_run_that_was_stopped_is_opened_as_stopped(made):
    made.says(events.StopRequested(why="Stopped by %xla_stop"), events.RankStopped(rank=0))
    made.says(events.SignalSent(number=9), events.ProcessDied(pid=101, status=-9))
    made.ends()
    run = made.opened()
    assert phases(run) == ["stopped", "stopped"]
    assert run.errors == {}
    assert "Stopped by %xla_stop" in repr(run)


# ---------------------------------------------------------------- what it holds


def test_it_has_the_results_of_the_ranks_that_returned(ended):
    run = ended.opened()
    assert (run.results, run[0], run.ok) == ({0: 42}, 42, False)


def test_a_rank_without_a_result_is_told_with_what_it_did_instead(ended):
    run = ended.opened()
    with pytest.raises(KeyError, match=r"Rank 1 failed, so it has no result. See run.errors"):
        run[1]
    with pytest.raises(KeyError, match="has no rank 7"):
        run[7]


def test_a_result_whose_file_is_gone_is_said_to_be(ended):
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
def test_a_result_whose_file_is_damaged_is_refused_by_name(made, change):
    import numpy

    made.returns(0, numpy.arange(1000))
    path = made.record.result(0)
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    with pytest.raises(XlaNbError, match=rf"Rank 0's result is damaged: {path} .*\.$"):
        made.opened()[0]


def test_what_is_no_result_is_none(made):
    (made.record.path / "rank-x.result").touch()
    made.returns(0, 42)
    made.loses_its_kernel()
    assert made.opened().results == {0: 42}


@pytest.mark.parametrize("line", [b"print\n", b"[]\n", b"3\n", b'[0, 1, null, {"loss": "x"}]\n'])
def test_a_history_that_is_damaged_is_refused_by_name(ended, line):
    with ended.record.history(0).open("ab") as file:
        file.write(line)
    run = ended.opened()
    with pytest.raises(XlaNbError, match=rf"{ended.record.history(0)} is damaged: "):
        list(run.history)


def test_a_sample_that_is_damaged_is_none(made):
    made.samples(0, BEGAN)
    path = made.record.sample(0)
    path.write_bytes(path.read_bytes()[:-9])
    made.loses_its_kernel()
    assert made.opened().sample(0) is None


def test_it_has_the_errors_of_the_ranks_that_failed(ended):
    (error,) = ended.opened().errors.values()
    assert (error.rank, error.kind, error.place) == (1, "ValueError", "Cell In[3], line 7")


def test_output_is_whole_whatever_bytes_it_has(ended):
    run = ended.opened()
    assert run.output(0) == "one\n\N{REPLACEMENT CHARACTER}two\n"
    assert (run.output(1), run.output(1, "err")) == ("", "trouble\n")


def test_output_keeps_the_carriage_returns_of_bars(ended):
    run = ended.opened()
    run.record.log(0, "out").write_bytes(b"\r 1/2\r 2/2\nwindows\r\n")
    assert run.output(0) == "\r 1/2\r 2/2\nwindows\r\n"


def test_it_has_what_was_reported(ended):
    assert ended.opened().history["loss"] == {0: [0.5]}


def test_it_has_the_newest_sample_of_a_rank(ended):
    ended.samples(1, BEGAN + 4)
    run = ended.opened()
    assert (run.sample(0), run.sample(1).place) == (None, "Cell In[3], line 7")


def test_a_sample_that_is_being_written_is_none(ended):
    ended.record.sample(0).write_bytes(b'{"at": 1')
    assert ended.opened().sample(0) is None


def test_it_took_until_its_last_rank_ended(ended):
    assert ended.opened().elapsed == 6.0


def test_it_says_in_a_line_how_it_went(ended):
    name = "20260101-000000-abcdef"
    failed = "Rank 1 failed at Cell In[3], line 7: ValueError: boom"
    assert repr(ended.opened()) == f"<Run {name}: {failed}, 6.00 s; [0] returned 42>"


def test_its_cell_is_the_one_that_its_summary_names(ended):
    ended.record.close({**ended.opened().summary(), "cell": "Cell In[3]"})
    assert ended.opened().label == "Cell In[3]"


# ---------------------------------------------------------------- runs that have no end


def test_a_run_that_goes_on_elsewhere_is_running(made):
    made.returns(0, 42)
    run = made.opened()
    assert (phases(run), run.state.ended, run.results) == (["finished", "running"], None, {0: 42})


def test_a_run_that_goes_on_has_taken_until_now():
    made = Made()
    made.says(
        events.JobStarted(pid=1, host="h", ranks=1, simulated=True, at=time.time() - 100),
    )
    assert made.opened().elapsed == pytest.approx(100, abs=5)


def test_a_run_whose_kernel_is_gone_has_ended_and_its_ranks_were_killed(made):
    made.returns(0, 42)
    made.loses_its_kernel()
    run = made.opened()
    assert phases(run) == ["finished", "died"]
    assert (run.ok, run.results, run.errors[1].kind) == (False, {0: 42}, "Died")


def test_a_run_whose_kernel_is_gone_ended_when_it_was_last_heard_of(made):
    made.loses_its_kernel()
    assert made.opened().state.ended == BEGAN + 1
    made.samples(0, at=BEGAN + 50)
    made.samples(1, at=BEGAN + 40)
    assert (made.opened().state.ended, made.opened().elapsed) == (BEGAN + 50, 50)


def test_a_launch_that_was_refused_has_ended_though_its_notebook_lives():
    refused = Made()
    refused.record.close({"run": refused.name, "ok": False, "headline": "not started"})
    run = refused.opened()
    assert run.state.settled
    assert "No rank was started" in repr(run)


# ---------------------------------------------------------------- records that are not whole


@pytest.fixture
def mixed():
    """An ended run of 3 ranks: rank 0 returned 42, rank 1 failed, rank 2 left with status 5."""
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
    "a line that is none": lambda data: in_the_middle(data, b"print\n"),
    "levels without end": lambda data: in_the_middle(data, b"[" * 100_000 + b"\n"),
}


def damage(made, change):
    path = made.record.path / "events.jsonl"
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("name", ["a line that is none", "levels without end"])
def test_lines_that_cannot_be_read_are_left_out_and_said_and_the_run_is_not_ok(made, name):
    made.returns(0, 42)
    made.returns(1, 43)
    made.ends()
    assert made.opened().ok
    damage(made, DAMAGE[name])
    run = made.opened()
    assert (run.ok, run.results) == (False, {0: 42, 1: 43})
    (told,) = [notice.text for notice in run.state.notices]
    assert "1 line of" in told and "events.jsonl could not be read; skipped." in told


def test_a_record_without_its_events_is_refused(mixed):
    (mixed.record.path / "events.jsonl").unlink()
    with pytest.raises(UsageError, match=r"is damaged: .*events\.jsonl does not say how the run"):
        mixed.opened()


def test_a_damaged_record_is_listed_as_its_run_ended(mixed):
    damage(mixed, DAMAGE["garbage"])
    (entry,) = entries()
    assert (entry.outcome, entry.headline[:13]) == ("failed", "Rank 1 failed")


def test_a_run_in_progress_is_listed_whatever_its_events_are(made):
    for damaged in DAMAGE["a line that is none"], lambda data: b"":
        damage(made, damaged)
        (entry,) = entries()
        assert entry.outcome == "running"


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_half_a_last_event_of_a_run_whose_kernel_is_gone_is_passed_over(made, cut):
    made.returns(0, 42)
    made.loses_its_kernel()
    damage(made, lambda data: data + lines_of(data)[-1][:cut])
    run = made.opened()
    assert (phases(run), run.results) == (["finished", "died"], {0: 42})


@pytest.mark.parametrize("ends", [False, True])
def test_results_that_no_event_explains_are_no_whole_run(made, ends):
    made.returns(0, 42)
    (made.loses_its_kernel if not ends else made.record.summary.touch)()
    damage(made, DAMAGE["empty"])
    with pytest.raises(UsageError, match="does not say how the run began"):
        made.opened()


def test_an_event_of_a_later_version_is_passed_over(made):
    with (made.record.path / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "Invented", "at": 3}\n')
    made.returns(0, 42)
    assert made.opened().results == {0: 42}


@pytest.mark.parametrize("text", ['{"run": "20', "", "[]", "3", '{"ok": 1}', '{"headline": []}'])
def test_half_a_summary_is_as_good_as_none(ended, text):
    (ended.record.path / "run.json").write_text(text)
    assert ended.opened().results == {0: 42}
    (entry,) = entries()
    assert entry.headline == "Rank 1 failed at Cell In[3], line 7: ValueError: boom"


# ---------------------------------------------------------------- all of them


def test_runs_are_listed_newest_first():
    for name in ("20260102-000000-a", "20260103-000000-a", "20260101-000000-a"):
        Made(name)
    assert [entry.name[:8] for entry in entries()] == ["20260103", "20260102", "20260101"]


def test_where_nothing_was_ever_run_the_list_is_empty():
    assert entries() == []


def test_a_run_is_listed_with_the_figures_that_rank_0_reported_last(ended):
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


def test_live_ranks_are_listed_with_the_figures_of_their_newest_cell_that_has_some(ended):
    ended.record.history(0).unlink()
    for number, losses in enumerate(([0.5], [0.25], [])):
        cell = ended.record.cell(f"2026010{number + 1}-000000-a")
        cell.path.mkdir(parents=True)
        rows = (figures.encode(n, 1.0, None, {"loss": loss}) for n, loss in enumerate(losses))
        cell.history(0).write_bytes(b"".join(rows))
    (entry,) = entries()
    assert entry.figures == {"loss": 0.25}


def test_an_ended_run_is_listed_with_how_it_went(ended):
    (entry,) = entries()
    assert (entry.outcome, entry.elapsed) == ("failed", 6.0)
    assert entry.headline == "Rank 1 failed at Cell In[3], line 7: ValueError: boom"


def test_a_run_that_went_well_is_listed_as_finished(made):
    for rank in (0, 1):
        made.returns(rank, rank)
    made.ends()
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("finished", "2 ranks finished")


def test_a_run_that_was_stopped_is_listed_as_stopped(made):
    made.says(events.StopRequested(why="Stopped by %xla_stop"))
    made.says(events.RankStopped(rank=0), events.RankStopped(rank=1))
    made.ends()
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("stopped", "Stopped by %xla_stop")


def test_a_run_that_goes_on_is_listed_as_running(made):
    (entry,) = entries()
    assert (entry.outcome, entry.headline) == ("running", "2 ranks running")
    assert entry.elapsed is not None


HANG = events.HangReported(verdict="Rank 1 hangs", ranks=(1,), groups=())


def test_a_reopened_run_has_the_report(made):
    made.says(HANG)
    assert made.opened().state.hang.report == HANG


def test_a_run_whose_kernel_is_gone_is_listed_as_lost(made):
    made.loses_its_kernel()
    (entry,) = entries()
    assert entry.outcome == "failed"
    assert "kernel ended before the run did" in entry.headline


def test_what_is_no_run_is_not_listed(ended):
    (ended.record.path.parent / "notes.txt").write_text("mine")
    assert [entry.name for entry in entries()] == [ended.name]


# ---------------------------------------------------------------- the same as the live run

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
    """A kernel with a run `lived` that has ended, and the same from its record, `reopened`."""
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
def test_a_run_from_its_record_is_as_it_was_when_it_lived(reopened, what):
    live, read = what.format(run="lived"), what.format(run="reopened")
    assert reopened.value(f"{live} == {read}") == "True", reopened.value(f"{live}, {read}")


def test_a_sample_that_cannot_be_read_is_none(made, monkeypatch):
    def refuses(path):
        raise PermissionError

    monkeypatch.setattr(private, "read", refuses)
    assert opened(made.name).sample(0) is None


def test_a_run_from_its_record_took_as_long_as_when_it_lived(reopened):
    assert reopened.value("0 < lived.elapsed == reopened.elapsed") == "True"


def test_a_result_of_a_class_that_the_notebook_lacks_names_the_class(made, monkeypatch):
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


def test_output_of_a_rank_or_stream_that_does_not_exist_is_refused(ended):
    with pytest.raises(KeyError, match="has no rank 7"):
        ended.opened().output(7)
    with pytest.raises(UsageError, match=r"Unknown stream 'foo'. Choose out or err"):
        ended.opened().output(0, "foo")


# ---------------------------------------------------------------- records of others


def test_a_record_with_a_file_that_others_can_write_is_refused(ended):
    ended.record.result(0).chmod(0o660)
    with pytest.raises(UsageError, match=r"Other users can write to .*rank-0.result.*trust=True"):
        ended.opened()


def test_a_record_with_a_folder_that_others_can_write_is_refused(ended, tmp_path):
    moved = ended.record.path.rename(tmp_path / "copied")
    moved.chmod(0o775)
    with pytest.raises(UsageError, match=r"Other users can write to .*copied \(mode 0775\)"):
        opened(moved)


def test_a_record_of_another_user_is_refused(ended, tmp_path, monkeypatch):
    moved = ended.record.path.rename(tmp_path / "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"theirs belongs to .*trust=True"):
        opened(moved)


def test_a_record_of_another_user_is_opened_if_it_is_trusted(ended, tmp_path, monkeypatch):
    moved = ended.record.path.rename(tmp_path / "theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    run = RecordedRun.open(moved, trust=True)
    assert (run[0], run.output(1, "err")) == (42, "trouble\n")


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", ["events.jsonl", "run.json", "rank-0.result", "rank-0.history"])
def test_a_fifo_in_a_record_is_refused_and_never_waited_for(ended, name, trust):
    path = ended.record.path / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match=f"{name} is not a plain file"):
        RecordedRun.open(ended.name, trust=trust)


def test_a_symbolic_link_in_a_record_is_refused(ended, tmp_path):
    path = ended.record.result(0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is not a plain file"):
        ended.opened()


def test_a_fifo_does_not_hold_up_the_list_of_runs(ended):
    (ended.record.path / "run.json").unlink()
    os.mkfifo(ended.record.path / "run.json")
    assert [entry.name for entry in entries()] == [ended.name]


def test_a_home_that_others_can_write_is_closed_to_them(ended):
    runs = ended.record.path.parent
    runs.chmod(0o777)
    entries()
    assert runs.stat().st_mode & 0o777 == 0o700


def test_runs_in_a_folder_of_another_user_are_neither_listed_nor_opened(ended, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for use in (entries, ended.opened):
        with pytest.raises(UsageError, match=r"belongs to .*Set XLA_NB_HOME to a folder of yours"):
            use()


# ---------------------------------------------------------------- records that were removed


@pytest.mark.parametrize(
    "use", [lambda run: run.results, lambda run: run.output(0), lambda run: run.history]
)
def test_what_is_gone_with_a_record_is_said_and_not_empty(ended, use):
    run = ended.opened()
    shutil.rmtree(ended.record.path)
    with pytest.raises(XlaNbError, match=r"The files of .* are gone .*Run the cell again"):
        use(run)
