"""End what a run has left: its processes at once, but for resource trackers, which have some time.

A tracker of multiprocessing unlinks the shared memory and semaphores that its processes have left,
as soon as all of them have ended. That takes milliseconds; killed before, it would leave them in
/dev/shm for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from xla_nb import linux

_KILLED = 1.0  # seconds for trackers that had to be killed to end


def end_group(group: int) -> None:
    """Kill the processes of a group, but for trackers; one that is just being started is not yet
    known to be one.

    All are stopped first, so that none starts another one meanwhile. The leader is the last to be
    killed: it is what ties the group to its session, and Linux hangs up (SIGHUP) a group that has
    lost that and has a stopped process (credentials(7), setpgid(2)); trackers would end of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGSTOP)
    for pid in sorted(linux.in_group(group), key=lambda pid: pid == group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT if linux.is_tracker(pid) else signal.SIGKILL)


def end_all(find: Callable[[], list[int]], seconds: float) -> None:
    """Kill the processes that `find` gives until it gives none, and wait for the trackers among
    them. After `seconds` all that is left is killed: a tracker that does not end, too."""
    deadline = time.monotonic() + seconds
    while (pids := find()) and (left := deadline - time.monotonic()) > 0:
        users = [pid for pid in pids if not linux.is_tracker(pid)]
        if users:
            linux.end(users, left)
        else:
            linux.wait(pids, left)
    linux.end(pids, _KILLED if pids else 0)
