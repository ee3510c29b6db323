"""Every way a run can end, with the texts shown for it.

One table, to be read as a whole: headlines, rows of ranks, RunFailed and `%xla_runs` must be
correct and consistent.
"""

import re
from dataclasses import dataclass
from html import unescape
from typing import ClassVar

import pytest

from tests.support.run_double import Run
from xla_nb.messages import events
from xla_nb.record.files import Record
from xla_nb.run import recorded
from xla_nb.run.failed import RunFailed
from xla_nb.views.observer import observe
from xla_nb.views.rendering import ranks, render_text

NAME = "20260101-000000-abcdef"
STOP = events.StopRequested(why="Stopped by an interrupt")
GRACE = events.StopRequested(why="Stopped 5 s after the first failure (grace)")


def raised(rank, kind="ValueError", message="boom", line=4, **more):
    return events.RankFailed(
        rank=rank,
        kind=kind,
        message=message,
        text=f"Traceback (most recent call last):\n{kind}: {message}",
        place=f"Cell In[3], line {line}",
        where=f"{kind}\nCell In[3]:{line}",
        **more,
    )


def returned(*ranks):
    return [events.RankFinished(rank=rank, preview=str(rank), nbytes=1) for rank in ranks]


def died(rank, status, **more):
    return events.ProcessDied(pid=100 + rank, status=status, **more)


def stopped(*ranks, line=5):
    place = f"Cell In[3], line {line}"
    at = [events.RankAt(rank=rank, place=place, stack="") for rank in ranks]
    return [*at, *(events.RankStopped(rank=rank) for rank in ranks)]


def diverged(rank, message, line=7, **more):
    return raised(rank, "CollectiveMismatch", f"{message}:\n  …", line, **more)


LEFT = "Rank 2 returned while ranks 0, 1, 3 were in all_reduce (Cell In[3], line 7)"
DIFFER = "Rank 2 and ranks 0, 1, 3 called different collectives"
HANG = "Ranks 0, 1, 3 have been waiting 5 min in all_reduce at Cell In[3], line 7 for rank 2"


@dataclass
class Ending:
    """The events and the expected texts: the headline, the rows of the first ranks (`rows`) and
    the outcome in the list of runs."""

    happened: list
    headline: str
    rows: list
    outcome: str = "failed"
    ranks: int = 4
    stop: ClassVar = [GRACE, *stopped(0, 2, 3)]


STOPPED = "■ stopped, Cell In[3], line 5"
ENDINGS = {
    "all ranks returned": Ending(
        returned(0, 1, 2, 3), "4 ranks finished", ["✓ finished"], "finished"
    ),
    "one rank raised": Ending(
        [raised(1), *Ending.stop],
        "Rank 1 failed at Cell In[3], line 4: ValueError: boom",
        [STOPPED, "✗ failed, Cell In[3], line 4"],
    ),
    "both ranks raised the same error": Ending(
        [raised(1), raised(0)],
        "Both ranks failed (rank 1 first) at Cell In[3], line 4: ValueError: boom",
        ["✗ failed, Cell In[3], line 4"] * 2,
        ranks=2,
    ),
    "some of many raised the same": Ending(
        [*(raised(rank) for rank in range(0, 64, 3)), *returned(*range(64))],
        "22 of 64 ranks failed (rank 0 first) at Cell In[3], line 4: ValueError: boom",
        [],
        ranks=64,
    ),
    "each rank raised a different error": Ending(
        [
            raised(2, "KeyError", "'k'", 5),
            raised(0, "ZeroDivisionError", "division by zero", 4),
            raised(1, "IndexError", "list index out of range", 6),
            raised(3, "ValueError", "3", 7),
        ],
        "Rank 2 failed at Cell In[3], line 5: KeyError: 'k'; 3 others failed for other reasons",
        ["✗ failed, Cell In[3], line 4", "✗ failed, Cell In[3], line 6"],
    ),
    "one rank raised before a collective": Ending(
        [raised(2), *(diverged(rank, "…", follows=True) for rank in (0, 1, 3))],
        "Rank 2 failed at Cell In[3], line 4: ValueError: boom; 3 others failed because of it",
        ["✗ failed, Cell In[3], line 7"],
    ),
    "sys.exit with a status": Ending(
        [raised(1, "SystemExit", "3"), *Ending.stop],
        "Rank 1 failed at Cell In[3], line 4: SystemExit: 3",
        [STOPPED, "✗ failed, Cell In[3], line 4"],
    ),
    "os._exit": Ending(
        [died(1, 0), *Ending.stop],
        "Rank 1 exited with status 0 before finishing",
        [STOPPED, "† died, exited with status 0"],
    ),
    "SIGSEGV": Ending(
        [died(1, -11), *Ending.stop],
        "Rank 1 crashed with SIGSEGV in native code",
        [STOPPED, "† died, crashed with SIGSEGV"],
    ),
    "abort": Ending(
        [died(1, -6), *Ending.stop],
        "Rank 1 crashed with SIGABRT (see the rank's output)",
        [STOPPED, "† died, crashed with SIGABRT"],
    ),
    "SIGKILL": Ending(
        [died(1, -9), *Ending.stop],
        "Rank 1 was killed by SIGKILL (often out of memory; check dmesg)",
        [STOPPED, "† died, killed by SIGKILL"],
    ),
    "out of memory": Ending(
        [died(1, -9, lack=256 << 20), *Ending.stop],
        "Rank 1 was killed by the OOM killer (the container's limit is 256 MiB)",
        [STOPPED, "† died, killed by the OOM killer"],
    ),
    "SIGSEGV while others are in a collective": Ending(
        [
            died(1, -11),
            *(raised(rank, "RankLost", "rank 1's process ended", follows=True) for rank in (0, 2)),
            *returned(3),
        ],
        "Rank 1 crashed with SIGSEGV in native code; 2 others failed because of it",
        ["✗ failed, Cell In[3], line 4", "† died, crashed with SIGSEGV"],
    ),
    "all ranks killed": Ending(
        [died(rank, -9) for rank in range(4)],
        "All 4 ranks died (rank 0 first): killed by SIGKILL (often out of memory; check dmesg)",
        ["† died, killed by SIGKILL"] * 4,
    ),
    "one rank raised and one exited": Ending(
        [raised(1), died(0, 4), GRACE, *stopped(2), *returned(3)],
        "Rank 1 failed at Cell In[3], line 4: ValueError: boom; rank 0 exited with status 4 before "
        "finishing",
        [
            "† died, exited with status 4",
            "✗ failed, Cell In[3], line 4",
            STOPPED,
            "✓ finished",
        ],
    ),
    "one rank interrupted": Ending(
        [*stopped(1), GRACE, *stopped(0, 2, 3)],
        "Rank 1 was interrupted (SIGINT) at Cell In[3], line 5",
        [STOPPED, "† died, interrupted (SIGINT), after 0 ms, line 5"],
    ),
    "timeout": Ending(
        [events.StopRequested(why="Timed out after 2 s (timeout)"), *stopped(0, 1, 2, 3)],
        "Timed out after 2 s (timeout)",
        [STOPPED] * 4,
        "stopped",
    ),
    "Stop": Ending(
        [STOP, *stopped(0, 1, 2, 3)], "Stopped by an interrupt", [STOPPED] * 4, "stopped"
    ),
    "ranks failed during Stop": Ending(
        [STOP, raised(0), died(1, -11), *stopped(2, 3)],
        "Stopped by an interrupt; ranks 0, 1 failed while they stopped",
        ["✗ failed, Cell In[3], line 4", "† died, crashed with SIGSEGV", STOPPED],
        "stopped",
    ),
    "all ranks returned despite Stop": Ending(
        [STOP, *returned(0, 1, 2, 3)],
        "Stop requested after 4 ranks finished",
        ["✓ finished"],
        "finished",
    ),
    "kernel restart": Ending(
        [
            STOP,
            events.StopRequested(why="Stopped because the kernel was shut down or restarted"),
            *stopped(0, 1, 2, 3),
        ],
        "Stopped because the kernel was shut down or restarted",
        [STOPPED] * 4,
        "stopped",
    ),
    "hang with --hang-stop": Ending(
        [
            events.HangReported(verdict=HANG, ranks=(0, 1, 2, 3), groups=()),
            events.StopRequested(why=f"Stopped at a hang: {HANG}"),
            *stopped(0, 1, 2, 3),
        ],
        f"Stopped at a hang: {HANG}",
        [STOPPED] * 4,
        "stopped",
    ),
    "one rank skipped a collective": Ending(
        [*returned(2), *(diverged(rank, LEFT, early=(2,)) for rank in (0, 1, 3))],
        LEFT,
        [
            *["✗ failed, Cell In[3], line 7"] * 2,
            "⚑ early, returned before a collective that other ranks called",
        ],
    ),
    "different collectives": Ending(
        [diverged(2, DIFFER, 8), *(diverged(rank, DIFFER) for rank in (0, 1, 3))],
        DIFFER,
        [*["✗ failed, Cell In[3], line 7"] * 2, "✗ failed, Cell In[3], line 8"],
    ),
    "job killed": Ending(
        [*returned(0), events.JobEnded(status=-9)],
        "Ranks 1–3 were lost: their job was killed by SIGKILL (often out of memory; check dmesg)",
        ["✓ finished"],
    ),
    "no rank started": Ending(
        [events.JobFailed(kind="E", message="torch_xla cannot be imported: no libtpu", text="")],
        "torch_xla cannot be imported: no libtpu",
        [],
        ranks=0,
    ),
}


@pytest.fixture(params=ENDINGS)
def ending(request):
    return ENDINGS[request.param]


@pytest.fixture
def run(ending):
    """A run with this ending, and its record."""
    path = Record.create(NAME).path
    run = Run(path, ranks=ending.ranks)
    for rank in range(ending.ranks):
        run.state.apply(events.RankStarted(rank=rank, pid=100 + rank, device="", at=1000.0))
    for event in [*ending.happened, events.JobEnded(status=0)]:
        run.state.apply(event)
    return run


def test_headline_matches_ending(run, ending):
    text = render_text(observe(run))
    assert observe(run).headline == ending.headline
    assert text.splitlines()[0][2:].startswith(ending.headline)


def test_run_failed_has_the_headline_as_message(run, ending):
    told, *more = str(RunFailed(run, brief=True)).splitlines()
    assert told == ending.headline
    assert not more or run.state.refused  # only a refused run has more lines


def test_rows_of_ranks_match_ending(run, ending):
    of_rank = {}
    for row in re.findall(r"<tr.*?</tr>", ranks.as_html(observe(run)))[1:]:
        number, *cells = (unescape(re.sub(r"<.*?>", "", cell)) for cell in row.split("</td>"))
        of_rank[int(number)] = " ".join(cells).replace(" · ", ", ")
    for rank, told in enumerate(ending.rows):
        sign, *facts = told.replace("Cell In[3], ", "").split(", ")
        assert of_rank[rank].startswith(sign)
        for fact in facts:
            assert fact in of_rank[rank]


def test_list_of_runs_matches_ending(run, ending):
    run.record.close(run.summary())
    (entry,) = recorded.entries()
    assert (entry.headline, entry.outcome) == (ending.headline, ending.outcome)


def test_diverged_ranks_are_shown_once_without_a_first_rank():
    run = Run(Record.create(NAME).path, ranks=4)
    for event in [*ENDINGS["different collectives"].happened, events.JobEnded(status=0)]:
        run.state.apply(event)
    text = render_text(observe(run))
    assert "the first to fail" not in text
    assert "rank 2:\nTraceback" in text
    assert "ranks 0, 1, 3:\nTraceback" in text


def test_ranks_that_returned_share_a_line_if_others_failed():
    run = Run(Record.create(NAME).path, ranks=64)
    for event in [*ENDINGS["some of many raised the same"].happened, events.JobEnded(status=0)]:
        run.state.apply(event)
    text = render_text(observe(run))
    assert text.count("finished\n") == 1
