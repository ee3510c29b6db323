"""Which processes of a run are stopped (state T), looked up where they are.

A stopped process can tell nobody. The notebook looks after those of its own machine, a host of a
cluster after its own; both say the same event.
"""

from __future__ import annotations

from xla_nb.linux import is_stopped
from xla_nb.protocol import events

#: Seconds between two looks.
EVERY = 1.0


class StoppedProcesses:
    """The processes of one host that its events have named: the job and the ranks."""

    def __init__(self) -> None:
        self._host = ""
        self._pids: dict[int, None] = {}
        self._stopped: tuple[int, ...] = ()
        self._due = 0.0

    def take(self, event: events.Event) -> None:
        """Learn the processes from the host's own events."""
        match event:
            case events.JobStarted():
                self._host = event.host
                self._pids |= dict.fromkeys((event.pid, *event.pids))
            case events.RankStarted():
                self._pids[event.pid] = None
            case events.ProcessDied():
                self._pids.pop(event.pid, None)

    def look(self, now: float) -> events.ProcessesStopped | None:
        """What has changed; looks at most every EVERY seconds, `now` of `time.monotonic()`."""
        if now < self._due:
            return None
        self._due = now + EVERY
        stopped = tuple(pid for pid in self._pids if is_stopped(pid))
        if stopped == self._stopped:
            return None
        self._stopped = stopped
        return events.ProcessesStopped(host=self._host, pids=stopped)
