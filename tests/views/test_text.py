"""The text view: whole lines with their rank, and counts of omitted lines."""

import errno
import io

import pytest

from tests.support.run_double import Run
from tests.support.text_view import viewing, written
from xla_nb.messages import events
from xla_nb.views import folding, text
from xla_nb.views.loop import Guarded


class Terminal(io.StringIO):
    def isatty(self):
        return True

    @property
    def screen(self):
        """The lines that a terminal shows, without trailing spaces."""
        lines = []
        for line in self.getvalue().split("\n"):
            cells = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            lines.append("".join(cells).rstrip())
        return lines


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Show lines without waiting for other ranks."""
    monkeypatch.setattr(folding, "HOLD", 0.0)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def view(run):
    """A view with plain streams, `view.out` and `view.err`."""
    return viewing(run)


@pytest.fixture
def live(run, monkeypatch):
    """A view in a terminal, redrawn at each call."""
    monkeypatch.setattr(text, "_REDRAW", 0)
    return viewing(run, Terminal())


# ---------------------------------------------------------------- output


def test_lines_start_with_their_rank(run, view):
    run.prints(0, "zero\n")
    run.prints(1, "one\n")
    view.draw()
    assert written(view.out) == "[0] zero\n[1] one\n"
    before = view.out.getvalue(), view.err.getvalue()
    view.draw()
    assert (view.out.getvalue(), view.err.getvalue()) == before


def test_full_disk_under_notebook_output_does_not_end_the_run(run):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    view = viewing(run, Full())
    guarded = Guarded(run, view)
    run.prints(0, "zero\n")
    guarded.draw()
    run.prints(0, "one\n")
    guarded.finish()
    assert written(view.out) == "[0] zero\n[0] one\n"


def test_lines_of_two_ranks_are_never_mixed(run, view):
    run.prints(0, "left ")
    run.prints(1, "other\n")
    view.draw()
    run.prints(1, "rest ")
    run.prints(0, "right\n")
    view.draw()
    view.finish()
    assert written(view.out) == "[1] other\n[0] left right\n[1] rest \n"


def test_stderr_of_rank_goes_to_stderr(run, view):
    run.prints(1, "warning\n", "err")
    run.prints(1, "value\n")
    view.draw()
    assert view.err.getvalue() == "[1] warning\n"
    assert written(view.out) == "[1] value\n"


# ---------------------------------------------------------------- equal lines


def test_equal_lines_from_several_ranks_are_merged(run, view):
    for rank in (0, 1):
        run.prints(rank, "same\n")
        run.prints(rank, "warning\n", "err")
    view.draw()
    assert written(view.out) == "[0, 1] same\n"
    assert view.err.getvalue() == "[0, 1] warning\n"


def holding(run, monkeypatch, seconds):
    monkeypatch.setattr(folding, "HOLD", seconds)
    return viewing(run)


def test_stderr_line_follows_earlier_stdout_of_its_ranks(run, monkeypatch):
    view = holding(run, monkeypatch, 3600)
    for rank in (0, 1):
        run.prints(rank, f"line of {rank}\n")
        run.prints(rank, "warning\n", "err")
        view.draw()
    assert view.out.getvalue() == "[0] line of 0\n[1] line of 1\n"
    view = holding(run, monkeypatch, 0.0)
    view._out = view._err = both = io.StringIO()
    view.draw()
    assert both.getvalue() == "[0] line of 0\n[1] line of 1\n[0, 1] warning\n"


def test_line_waits_for_the_same_line_from_other_ranks(run, monkeypatch):
    view = holding(run, monkeypatch, 3600)
    run.prints(0, "same\n")
    assert view.draw() <= text._HOLDING
    assert written(view.out) == ""
    run.prints(1, "same\n")
    view.draw()
    assert written(view.out) == "[0, 1] same\n"


def test_line_of_a_single_rank_does_not_wait(tmp_path, monkeypatch):
    alone = Run(tmp_path, ranks=1)
    view = holding(alone, monkeypatch, 3600)
    alone.prints(0, "mine\n")
    view.draw()
    assert written(view.out) == "[0] mine\n"


def test_line_does_not_wait_for_ended_ranks(run, monkeypatch):
    view = holding(run, monkeypatch, 3600)
    run.prints(0, "last\n")
    view.draw()
    run.state.apply(events.RankFinished(rank=1, preview="1", nbytes=1))
    view.draw()
    assert written(view.out) == "[0] last\n"


def test_waiting_lines_are_shown_at_the_end(run, monkeypatch):
    view = holding(run, monkeypatch, 3600)
    run.prints(0, "first\nsecond\n")
    run.prints(1, "second\n")
    view.draw()
    view.finish()
    assert written(view.out) == "[0] first\n[0, 1] second\n"


# ---------------------------------------------------------------- more output


def test_late_rank_is_shown_from_its_first_line(run, view):
    run.prints(5, "early\n")
    before = view.out.getvalue(), view.err.getvalue()
    view.draw()
    assert (view.out.getvalue(), view.err.getvalue()) == before
    run.state.apply(events.RankStarted(rank=5, pid=9, device="d"))
    view.draw()
    assert written(view.out) == "[5] early\n"


def numbered(first, last):
    return "".join(f"{number}\n" for number in range(first, last + 1))


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(text, "HEAD", 3)
    monkeypatch.setattr(text, "TAIL", 2)


def test_output_beyond_limit_shows_first_and_last_lines_and_counts_rest(bound, run, view):
    run.prints(0, numbered(1, 6))
    view.draw()
    run.prints(0, numbered(7, 2000))
    view.draw()
    assert view.out.getvalue().split() == ["[0]", "1", "[0]", "2", "[0]", "3"]
    view.finish()
    assert written(view.out).splitlines()[3:] == [
        f"[0] … 1,995 more lines in {run.record.log(0)}",
        "[0] 1999",
        "[0] 2000",
    ]


@pytest.mark.parametrize("count", range(1, 6))
def test_output_up_to_head_and_tail_is_shown_whole(bound, run, view, count):
    run.prints(0, numbered(1, count))
    view.draw()
    view.finish()
    assert written(view.out) == "".join(f"[0] {n}\n" for n in range(1, count + 1))


def test_one_line_beyond_limit_is_omitted(bound, run, view):
    run.prints(0, numbered(1, 6))
    view.finish()
    assert f"… 1 more lines in {run.record.log(0)}" in view.out.getvalue()
    assert "[0] 4\n" not in view.out.getvalue()


def test_each_stream_of_each_rank_has_its_own_limit(bound, run, view):
    for rank in (0, 1):
        run.prints(rank, numbered(1, 9))
    run.prints(0, "but one\n", "err")
    view.finish()
    assert view.out.getvalue().count("… 4 more lines") == 2
    assert view.err.getvalue() == "[0] but one\n"


def test_unfinished_line_is_shown_at_the_end(bound, run, view):
    run.prints(0, numbered(1, 6) + "cut")
    view.finish()
    assert written(view.out).endswith("[0] 6\n[0] cut\n")


# ---------------------------------------------------------------- news


def test_notice_is_shown_once_on_stderr(run, view):
    run.state.apply(events.Notice(text="removed A=1"))
    run.state.apply(events.Notice(text="slow", rank=1))
    view.draw()
    before = view.out.getvalue(), view.err.getvalue()
    view.draw()
    assert (view.out.getvalue(), view.err.getvalue()) == before
    view.finish()
    assert view.err.getvalue() == "removed A=1\n[1] slow\n"
    assert written(view.out) == ""


def test_failure_is_shown_once_with_rank_and_line(run, view):
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
    view.draw()
    view.finish()
    assert view.err.getvalue() == "[1] failed at Cell In[3], line 2: ValueError: boom\n"


def test_rank_with_same_error_does_not_repeat_it(run, view):
    for rank in (0, 1):
        run.state.apply(
            events.RankFailed(
                rank=rank, kind="ValueError", message="boom", text="t", place="", where=""
            )
        )
    view.draw()
    assert view.err.getvalue().splitlines() == [
        "[0] failed: ValueError: boom",
        "[1] failed with the same error",
    ]


def test_ranks_that_fail_together_with_same_error_share_a_line(tmp_path):
    run = Run(tmp_path, ranks=8)
    view = viewing(run)
    for rank in (2, 0, 1, 5):
        run.state.apply(
            events.RankFailed(rank=rank, kind="E", message="m", text="t", place="p", where="w")
        )
    view.draw()
    assert view.err.getvalue().splitlines() == [
        "[0] failed at p: E: m",
        "[1, 2, 5] failed with the same error",
    ]


# ---------------------------------------------------------------- the status line


def test_unfinished_lines_share_a_status_line_in_a_terminal(run, live):
    run.prints(0, "\r10%")
    run.prints(1, "\r20%", "err")
    live.draw()
    assert live.out.screen == ["[0] 10%  [1] 20%"]
    run.prints(0, "\r5%")
    live.draw()
    assert live.out.screen == ["[0] 5%  [1] 20%"]


def test_status_line_is_erased_before_other_lines(run, live):
    run.prints(0, "\ra long bar 10%")
    live.draw()
    run.prints(1, "x\n")
    live.draw()
    assert live.out.screen == ["[1] x", "[0] a long bar 10%"]
    run.prints(0, "\r100%\n")
    live.draw()
    live.finish()
    assert live.out.screen[:2] == ["[1] x", "[0] 100%"]


def test_status_line_is_erased_before_notices_on_stderr(run, live):
    run.prints(0, "\r10%")
    live.draw()
    run.state.apply(events.Notice(text="news"))
    live.draw()
    assert "\r       \r" in live.out.getvalue()


def test_status_line_fits_the_screen(run, live):
    run.prints(0, "x" * 500)
    live.draw()
    assert len(live.out.screen[0]) == 160
    assert live.out.screen[0].endswith("…")


def test_status_line_is_not_redrawn_too_often(run, monkeypatch):
    monkeypatch.setattr(text, "_REDRAW", 3600)
    live = viewing(run, Terminal())
    run.prints(0, "\r10%")
    live._drawn = text.time.monotonic()
    live.draw()
    assert live.out.getvalue() == ""


def test_notebook_stream_has_a_status_line(run, live):
    class Stream(io.StringIO):
        pub_thread = None

    seen = viewing(run, Stream())
    run.prints(0, "\r10%")
    seen.draw()
    assert seen.out.getvalue() == "\r[0] 10%"


def test_plain_stream_has_no_status_line(run, view, monkeypatch):
    monkeypatch.setattr(text, "_REDRAW", 0)
    run.prints(0, "\r10%")
    view.draw()
    run.prints(0, "\r100%\n")
    view.draw()
    view.finish()
    assert written(view.out) == "[0] 100%\n"


# ---------------------------------------------------------------- the end


def test_summary_has_headline_time_and_files(run, view):
    for rank in (0, 1):
        run.state.apply(events.RankFinished(rank=rank, preview="1", nbytes=1))
    view.finish()
    summary = f"2 ranks finished · 1.25 s · files in {run.record.path}\n"
    assert view.out.getvalue() == f"[0, 1] returned 1\n{summary}"


def test_silent_run_is_checked_less_often(run, view):
    run.prints(0, "one\n")
    busy = view.draw()
    quiet = [view.draw() for _ in range(30)]
    assert busy < quiet[-1] <= 0.05


def test_last_lines_are_shown_when_all_ranks_have_returned(bound, run, view):
    run.prints(0, "".join(f"{n}\n" for n in range(100)))
    view.draw()
    assert "[0] 99\n" not in view.out.getvalue()
    for rank in (0, 1):
        run.state.apply(events.RankFinished(rank=rank, preview="1", nbytes=1))
    view.draw()
    assert written(view.out).endswith("[0] 99\n")
    run.prints(0, "from a thread\n")
    view.finish()
    assert written(view.out).endswith("[0] 99\n[0] from a thread\n[0, 1] returned 1\n")
    assert written(view.out).count("more lines") == 1


def test_one_draw_reads_a_bounded_part_of_a_flood(run, view):
    run.prints(0, "y\n" * 4_000_000)
    view.draw()
    view.draw()
    assert view.out.getvalue().count("[0] y\n") == text.HEAD
    view.finish()
    assert "[0] … 3,998,980 more lines in " in view.out.getvalue()
    assert view.out.getvalue().count("[0] y\n") == text.HEAD + text.TAIL


def test_output_of_ranks_cannot_move_cursor_or_rename_window(run, view):
    run.prints(0, "\x1b]0;title\x07\x1b[2J\x9b2Jtext \x1b[31mred\x1b[0m \u202eabc\n")
    view.draw()
    shown = view.out.getvalue()
    assert "\x1b[31mred" in shown
    for odd in ("\x1b]", "\x1b[2J", "\x9b", "\u202e"):
        assert odd not in shown


# ---------------------------------------------------------------- hangs


def hang(run, groups=2, frames=1, verdict="Rank 0 has been waiting for rank 1"):
    stack = "\n".join(f'  File "Cell In[3]", line {n}, in f' for n in range(frames))
    found = [events.StackGroup((rank,), "Cell In[3], line 1", stack) for rank in range(groups)]
    run.state.apply(events.HangReported(verdict=verdict, ranks=(0, 1), groups=tuple(found)))


def test_hang_report_is_shown_once_with_stacks(run, view):
    hang(run)
    view.draw()
    view.draw()
    assert view.err.getvalue() == (
        "Hang report: Rank 0 has been waiting for rank 1\n"
        "  rank 0 at Cell In[3], line 1\n"
        '    File "Cell In[3]", line 0, in f\n'
        "  rank 1 at Cell In[3], line 1\n"
        '    File "Cell In[3]", line 0, in f\n'
    )


def test_end_of_hang_and_next_hang_are_each_shown_once(run, view):
    hang(run)
    view.draw()
    run.state.apply(events.HangOver(why="Rank 1 made progress"))
    view.draw()
    view.draw()
    assert view.err.getvalue().count("The hang is over: Rank 1 made progress\n") == 1
    hang(run, verdict="Rank 1 is stopped")
    view.draw()
    assert view.err.getvalue().count("Hang report: ") == 2


def test_hang_report_with_many_places_is_short(run, view):
    hang(run, groups=256, frames=60, verdict="\x1b[2J")
    view.draw()
    lines = view.err.getvalue().splitlines()
    assert len(lines) < 300
    assert lines[-1] == "  … and 252 more places"
    assert "\x1b" not in view.err.getvalue()


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([events.RankFinished(rank=n, preview="", nbytes=0) for n in (0, 1)], "in 1.25 s; line 9"),
        ([events.StopRequested(why="Stopped by you")], "Stopped by you; line 9"),
    ],
)
def test_summary_includes_the_conclusion(run, view, ends, told):
    for event in (*ends, events.Concluded(kind="compiling", sentence="line 9 compiled")):
        run.state.apply(event)
    view.finish()
    last = view.out.getvalue().splitlines()[-1]
    assert f"{told} compiled · " in last
    assert last.count("1.25 s") == 1
