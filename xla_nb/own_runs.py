"""The runs that this process launched or opened, and whose records stay while they are needed."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import Counter
from pathlib import Path

from xla_nb import notebook
from xla_nb.record import tidying
from xla_nb.run.recorded import RecordedRun
from xla_nb.run.run import Run
from xla_nb.wording import listed, several, size


@functools.cache
def known() -> weakref.WeakSet[RecordedRun]:
    """The runs that this process launched or opened. One that is in progress is kept alive by its
    own thread."""
    return weakref.WeakSet()


def living() -> list[Run]:
    """The runs in progress, oldest first."""
    own = (run for run in known() if isinstance(run, Run))
    return sorted((run for run in own if not run.done), key=lambda run: run.name)


def _needed() -> set[Path]:
    """The records of the runs that something refers to, be it a variable, a list or a launched
    cell whose values have not been used yet. IPython's history of what cells displayed does not
    count: it has nearly every run."""
    here = notebook.current()
    runs = list(known())
    # Without the references that the list and the call have.
    counts = [sys.getrefcount(runs[n]) - 2 for n in range(len(runs))]
    displayed = here.displayed() if here else Counter[int]()
    needed = (run for run, count in zip(runs, counts, strict=True) if count > displayed[id(run)])
    return {run.record.path for run in needed}


@functools.cache
def pace() -> tidying.Pace:
    """When this process removes old records as it runs live cells."""
    return tidying.Pace()


@functools.cache
def _told() -> list[str]:
    """What this process has said about its records, once."""
    return []


def tidy() -> None:
    """Remove the records of old runs; says once where the limits are not enough for those that are
    needed."""
    done, most = tidying.tidy(needed=_needed()), tidying.limits()
    if done.is_over(most) and not _told():
        gc.collect()  # what only garbage refers to is not needed
        done = tidying.tidy(needed=_needed())
    if done.is_over(most) and not _told():
        _told().append(
            f"{several(len(done.needed), 'ended run')} ({size(done.needed_bytes)} of files) are "
            "kept because variables of open notebooks refer to them, more than keep_bytes="
            f"{size(most.nbytes)}: {listed(done.needed, most=3)}. "
            "`del` those you no longer need, or raise the limit with %xla_config."
        )
        print(*_told())


def clean() -> tidying.Tidied:
    """Remove the records of all runs but those in progress and those that something refers to."""
    gc.collect()  # what only garbage refers to is not needed
    done = tidying.clean(needed=_needed())
    parts = tidying.clean("parts")
    done.removed += parts.removed
    done.freed += parts.freed
    return done
