"""How ranks are ended that do not end by themselves: asked, then told, then killed.

Every rung has its time, so that nothing a rank does keeps a cell from ending; whoever stops the run
again skips what is left of it.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence

from xla_nb.engines import Engine
from xla_nb.engines.child import Feed

#: Seconds that a process has to end after SIGTERM.
TERM_PATIENCE = 1.0
#: Seconds until what is left of a run is killed once more.
KILL_PATIENCE = 5.0
_IN_VAIN = 6  # from this rung on, the process that should have ended them is ended itself


class Ladder:
    """KeyboardInterrupt in the ranks, `grace` seconds later SIGTERM, then SIGKILL to every process
    of the run. `due` is when the next rung comes, None before the first."""

    def __init__(self, run: str, engine: Engine, grace: float) -> None:
        self._run, self._engine, self._grace = run, engine, grace
        self._rung = 0
        self._told: set[tuple[str, int]] = set()  # of the last rung
        self.due: float | None = None

    @property
    def is_killing(self) -> bool:
        return self._rung > 2

    def next_signal(self, some_run: bool) -> signal.Signals:
        """The signal of the next rung. Where no rank runs, the rest is killed."""
        rung = min(self._rung, 2) if some_run else 2
        return (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[rung]

    def climb(
        self,
        now: float,
        feed: Feed,
        pids: Mapping[str, Sequence[int]] | None,
        waiting: Collection[int] = (),
    ) -> None:
        """Take the next rung, at `now`. `pids` are the processes of the ranks that run, by host;
        None: none runs. Those that are `waiting` have not begun yet, and take no notice of an
        interrupt."""
        self._rung = max(3, self._rung + 1) if pids is None else self._rung + 1
        pids = pids or {}
        told = ((host, pid) for host, numbers in pids.items() for pid in numbers)
        self._told = {one for one in told if one[1] not in waiting}
        if self._rung == 1:
            self._engine.signal(self._run, pids, signal.SIGINT)
            self.due = now + self._grace
        elif self._rung == 2:
            self._engine.signal(self._run, pids, signal.SIGTERM)
            self.due = now + TERM_PATIENCE
        else:
            if self._rung < _IN_VAIN:
                self._engine.kill(self._run)
            else:
                feed.kill()
            self.due = now + KILL_PATIENCE

    def meet(self, host: str, pid: int) -> None:
        """A rank that has begun only now is told what the others were."""
        if self._rung in (1, 2) and (host, pid) not in self._told:
            self._told.add((host, pid))
            number = signal.SIGINT if self._rung == 1 else signal.SIGTERM
            self._engine.signal(self._run, {host: [pid]}, number)
