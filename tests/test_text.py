"""A run told in lines: each whole and under its rank, what is left out said."""

import io
import signal
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

from xla_nb import events, report, text
from xla_nb.record import Record
from xla_nb.state import RunState
from xla_nb.text import Tail, TextView, follow


class Run:
    """As much of a session's Run as a view sees; `looks` is how often `done` says no."""

    def __init__(self, path, ranks=2, looks=0):
        self.record = Record(path)
        self.state = RunState()
        self.state.apply(events.JobStarted(pid=1, host="h", ranks=ranks, simulated=True))
        self.changed = threading.Condition()
        self.stopped = []
        self.looks = looks

    @property
    def errors(self):
        return report.errors(self.state)

    @property
    def done(self):
        self.looks -= 1
        return self.looks < 0

    def stop(self, why):
        self.stopped.append(why)

    def prints(self, rank, written, stream="out"):
        with self.record.log(rank, stream).open("ab") as file:
            file.write(written if isinstance(written, bytes) else written.encode())


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def screen(self):
        """What is left standing, each line's trailing blanks aside."""
        lines = []
        for line in self.getvalue().split("\n"):
            cells = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            lines.append("".join(cells).rstrip())
        return lines


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def view(run):
    """A view on plain streams; `view.out` and `view.err` are the streams."""
    return viewing(run)


@pytest.fixture
def live(run, monkeypatch):
    """A view on a terminal that is drawn each time."""
    monkeypatch.setattr(text, "_REDRAW", 0)
    return viewing(run, Terminal())


def viewing(run, out=None):
    out, err = out or io.StringIO(), io.StringIO()
    made = TextView(run, out, err)
    made.out, made.err = out, err
    return made


@pytest.fixture
def tail(tmp_path):
    """A tail of a file; `tail.add` appends to the file."""
    made = Tail(tmp_path / "log")

    def add(written):
        with made.path.open("ab") as file:
            file.write(written)

    made.add = add
    return made


# ---------------------------------------------------------------- one file


def test_a_file_that_is_not_there_yet_has_no_lines(tail):
    assert list(tail.lines()) == []
    assert list(tail.finish()) == []


def test_a_line_is_given_once(tail):
    tail.add(b"one\ntwo\n")
    assert list(tail.lines()) == ["one", "two"]
    tail.add(b"three\n")
    assert list(tail.lines()) == ["three"]
    assert list(tail.finish()) == []


def test_a_partial_line_waits_until_it_is_whole(tail):
    tail.add(b"be")
    assert list(tail.lines()) == []
    assert tail.open_line == "be"
    tail.add(b"gun\nnext")
    assert list(tail.lines()) == ["begun"]
    assert tail.open_line == "next"


def test_at_the_end_a_partial_line_is_a_line(tail):
    tail.add(b"one\nlast words")
    assert list(tail.finish()) == ["one", "last words"]
    assert tail.open_line == ""


def test_an_empty_line_is_a_line(tail):
    tail.add(b"\n\n")
    assert list(tail.lines()) == ["", ""]


def test_a_progress_bar_is_one_line_its_last_state(tail):
    tail.add(b"\r 10%")
    assert list(tail.lines()) == []
    assert tail.open_line == " 10%"
    tail.add(b"\r 90%\r")
    assert list(tail.lines()) == []
    assert tail.open_line == " 90%"
    tail.add(b"\r100%\ndone\n")
    assert list(tail.lines()) == ["100%", "done"]


def test_a_carriage_return_before_the_newline_is_no_part_of_the_line(tail):
    tail.add(b"dos\r\n10%\r100%\r\n")
    assert list(tail.lines()) == ["dos", "100%"]


def test_bytes_that_are_no_text_are_shown_as_replacement_characters(tail):
    tail.add(b"a\xff\xfeb\n\xe2\x82\n")
    assert list(tail.lines()) == ["a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b",
                                  "\N{REPLACEMENT CHARACTER}"]  # fmt: skip


def test_nul_bytes_do_not_end_a_line(tail):
    tail.add(b"a\0b\n\0\n")
    assert list(tail.lines()) == ["a\0b", "\0"]


@pytest.mark.parametrize("size", range(1, 8))
def test_characters_and_lines_may_lie_across_two_reads(tail, monkeypatch, size):
    monkeypatch.setattr(text, "_CHUNK", size)
    tail.add("αβ €\n\n\N{GRINNING FACE}x\r\nend".encode())
    assert list(tail.finish()) == ["αβ €", "", "\N{GRINNING FACE}x", "end"]


def test_a_character_may_be_written_in_two_parts(tail):
    tail.add("€".encode()[:2])
    assert list(tail.lines()) == []
    tail.add("€".encode()[2:] + b"\n")
    assert list(tail.lines()) == ["€"]


def test_a_long_line_is_cut_and_says_so(tail):
    tail.add(b"x" * (text._LONGEST + 1) + b"\n" + b"y" * text._LONGEST + b"\n")
    long, whole = tail.lines()
    assert long == "x" * text._LONGEST + " …"
    assert whole == "y" * text._LONGEST


def test_an_endless_line_takes_no_more_memory_than_a_few_reads(tail, monkeypatch):
    monkeypatch.setattr(text, "_CHUNK", 1 << 16)
    tail.add(b"x" * 10_000_000 + b"the end")
    tracemalloc.start()
    try:
        assert list(tail.lines()) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        assert len(tail.open_line) < 2 * text._LONGEST
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- what a rank prints


def test_lines_carry_their_rank(run, view):
    run.prints(0, "zero\n")
    run.prints(1, "one\n")
    assert view.draw()
    assert view.out.getvalue() == "[0] zero\n[1] one\n"
    assert not view.draw()


def test_lines_of_two_ranks_are_never_mixed_within_a_line(run, view):
    run.prints(0, "left ")
    run.prints(1, "other\n")
    view.draw()
    run.prints(1, "rest ")
    run.prints(0, "right\n")
    view.draw()
    view.finish()
    assert view.out.getvalue() == "[1] other\n[0] left right\n[1] rest \n"


def test_stderr_of_a_rank_goes_to_stderr(run, view):
    run.prints(1, "warning\n", "err")
    run.prints(1, "value\n")
    view.draw()
    assert view.err.getvalue() == "[1] warning\n"
    assert view.out.getvalue() == "[1] value\n"


def test_a_rank_heard_of_later_is_shown_from_its_first_line(run, view):
    run.prints(5, "early\n")
    assert not view.draw()
    run.state.apply(events.RankStarted(rank=5, local_rank=0, pid=9, device="d"))
    view.draw()
    assert view.out.getvalue() == "[5] early\n"


def numbered(first, last):
    return "".join(f"{number}\n" for number in range(first, last + 1))


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(text, "HEAD", 3)
    monkeypatch.setattr(text, "TAIL", 2)


def test_of_too_many_lines_the_first_and_the_last_are_shown_and_the_rest_counted(bound, run, view):
    run.prints(0, numbered(1, 6))
    view.draw()
    run.prints(0, numbered(7, 2000))
    view.draw()
    assert view.out.getvalue().split() == ["[0]", "1", "[0]", "2", "[0]", "3"]
    view.finish()
    assert view.out.getvalue().splitlines()[3:] == [
        f"[0] … 1,995 more lines in {run.record.log(0)}",
        "[0] 1999",
        "[0] 2000",
    ]


@pytest.mark.parametrize("count", range(1, 6))
def test_as_many_lines_as_head_and_tail_are_shown_without_a_gap(bound, run, view, count):
    run.prints(0, numbered(1, count))
    view.draw()
    view.finish()
    assert view.out.getvalue() == "".join(f"[0] {n}\n" for n in range(1, count + 1))


def test_one_line_more_than_that_is_left_out(bound, run, view):
    run.prints(0, numbered(1, 6))
    view.finish()
    assert f"… 1 more lines in {run.record.log(0)}" in view.out.getvalue()
    assert "[0] 4\n" not in view.out.getvalue()


def test_the_bound_holds_for_each_rank_and_stream_alone(bound, run, view):
    for rank in (0, 1):
        run.prints(rank, numbered(1, 9))
    run.prints(0, "but one\n", "err")
    view.finish()
    assert view.out.getvalue().count("… 4 more lines") == 2
    assert view.err.getvalue() == "[0] but one\n"


def test_an_unfinished_line_counts_at_the_end(bound, run, view):
    run.prints(0, numbered(1, 6) + "cut")
    view.finish()
    assert view.out.getvalue().endswith("[0] 6\n[0] cut\n")


# ---------------------------------------------------------------- news


def test_a_notice_is_shown_once_on_stderr(run, view):
    run.state.apply(events.Notice(text="removed A=1"))
    run.state.apply(events.Notice(text="slow", rank=1))
    assert view.draw()
    assert not view.draw()
    view.finish()
    assert view.err.getvalue() == "removed A=1\n[1] slow\n"
    assert view.out.getvalue() == ""


def test_a_failure_is_shown_once_with_its_rank_and_place(run, view):
    run.state.apply(
        events.RankFailed(
            rank=1,
            kind="ValueError",
            message="boom",
            text="t",
            place="Cell In[3], line 2",
            where="",
        )
    )
    assert view.draw()
    view.finish()
    assert view.err.getvalue() == "[1] failed at Cell In[3], line 2: ValueError: boom\n"


# ---------------------------------------------------------------- the changing line


def test_unfinished_lines_are_one_changing_line_on_a_terminal(run, live):
    run.prints(0, "\r10%")
    run.prints(1, "\r20%", "err")
    live.draw()
    assert live.out.screen == ["[0] 10%  [1] 20%"]
    run.prints(0, "\r5%")
    live.draw()
    assert live.out.screen == ["[0] 5%  [1] 20%"]


def test_the_changing_line_is_erased_before_other_lines(run, live):
    run.prints(0, "\ra long bar 10%")
    live.draw()
    run.prints(1, "x\n")
    live.draw()
    assert live.out.screen == ["[1] x", "[0] a long bar 10%"]
    run.prints(0, "\r100%\n")
    live.draw()
    live.finish()
    assert live.out.screen == ["[1] x", "[0] 100%", ""]


def test_the_changing_line_is_erased_before_news_on_stderr(run, live):
    run.prints(0, "\r10%")
    live.draw()
    run.state.apply(events.Notice(text="news"))
    live.draw()
    assert "\r       \r" in live.out.getvalue()


def test_the_changing_line_is_not_wider_than_a_screen(run, live):
    run.prints(0, "x" * 500)
    live.draw()
    assert len(live.out.screen[0]) == 160
    assert live.out.screen[0].endswith("…")


def test_the_changing_line_is_not_drawn_again_too_soon(run, monkeypatch):
    monkeypatch.setattr(text, "_REDRAW", 3600)
    live = viewing(run, Terminal())
    run.prints(0, "\r10%")
    live._drawn = text.time.monotonic()
    live.draw()
    assert live.out.getvalue() == ""


def test_a_notebooks_stream_is_live_too(run, live):
    class Stream(io.StringIO):
        pub_thread = None

    seen = viewing(run, Stream())
    run.prints(0, "\r10%")
    seen.draw()
    assert seen.out.getvalue() == "\r[0] 10%"


def test_on_a_plain_stream_there_is_no_changing_line(run, view, monkeypatch):
    monkeypatch.setattr(text, "_REDRAW", 0)
    run.prints(0, "\r10%")
    view.draw()
    run.prints(0, "\r100%\n")
    view.draw()
    view.finish()
    assert view.out.getvalue() == "[0] 100%\n"


# ---------------------------------------------------------------- following


def test_a_run_is_followed_to_its_end_and_the_rest_is_shown(tmp_path):
    run = Run(tmp_path, looks=3)
    view = viewing(run)
    run.prints(0, "one\ntwo")
    follow(run, view)
    assert view.out.getvalue() == "[0] one\n[0] two\n"
    assert run.stopped == []


def test_an_interrupt_stops_the_run_and_following_goes_on_until_it_is_done(tmp_path):
    run = Run(tmp_path, looks=3)
    view = viewing(run)
    drawn, before = [], signal.getsignal(signal.SIGINT)

    def draw():
        drawn.append(True)
        if len(drawn) < 2:
            signal.raise_signal(signal.SIGINT)
        run.prints(0, "after\n")
        return True

    follow(run, SimpleNamespace(draw=draw, finish=view.finish))
    assert set(run.stopped) == {"you interrupted it"}
    assert len(drawn) == 3
    assert view.out.getvalue() == "[0] after\n" * 3
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_loses_no_line(tmp_path):
    class Interrupted(io.StringIO):
        def write(self, shown):
            signal.raise_signal(signal.SIGINT)
            return super().write(shown)

    run = Run(tmp_path, looks=2)
    view = viewing(run, Interrupted())
    run.prints(0, "one\n")
    follow(run, view)
    assert view.out.getvalue() == "[0] one\n"
