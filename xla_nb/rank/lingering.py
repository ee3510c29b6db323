"""Processes that ranks have started and that go on after them: the job waits for them.

How long is for the notebook to decide, which ends the job. What serves others and ends by itself is
not waited for: relays, which have in hand what the notebook may still read, and the trackers of
multiprocessing.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Collection

from xla_nb import linux
from xla_nb.protocol import relay


def wait(known: Collection[int], tell: Callable[[tuple[str, ...]], None]) -> None:
    """Wait until this process, which adopts orphans, has no children left but `known`.

    `tell` gets the names of those it waits for, each time they change; none at the end. It is not
    called where there are none.
    """
    told: tuple[str, ...] = ()
    while True:
        # Twice: a list read while a child ends may lack others (proc(5), children).
        left = _left(known) or _left(known)
        # One that is on its way out is not told: by then a tracker cannot be told from others.
        names = tuple(sorted({linux.name(pid) for pid in left if not linux.is_ending(pid)} - {""}))
        if names != told:
            tell(names)
            told = names
        if not left:
            return
        _wait_for_one(left)


def _left(known: Collection[int]) -> list[int]:
    """The children to be waited for; reaps those that have ended."""
    return [
        pid
        for pid in linux.children()
        if pid not in known
        and not linux.reaped(pid)
        and not linux.was_started_with(pid, relay.FILE)
        and not linux.is_tracker(pid)
    ]


def _wait_for_one(pids: list[int]) -> None:
    """Wait until one of these children has ended: what it has started is ours then."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for pid in pids:
            watched = os.pidfd_open(pid)
            stack.callback(os.close, watched)
            poll.register(watched, select.POLLIN)
        poll.poll()
