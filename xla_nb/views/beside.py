"""Beside a view: what the ranks display, as it comes.

In a notebook it stands below what the view shows, and is updated in place; elsewhere its text is
printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from xla_nb.record.displays import Display, Reader, Shown
from xla_nb.run.recorded import RecordedRun
from xla_nb.views import composed
from xla_nb.views.composed import Output
from xla_nb.views.loop import View

_BEAT = 0.1  # seconds between two looks, and the least between two updates
_MANY = 64  # ranks; of more, looks are rarer
_FLOW = 8e6  # bytes a second that a page gets of one run
_LINES = 60  # of one display, where its text is printed
_NOTHING = Output({"text/html": "", "text/plain": ""}, {})


class Place(Protocol):
    """Where displays are shown."""

    def show(self, shown: Mapping[int, Shown]) -> int:
        """Show what ranks show now; gives how many bytes that took."""


class Beside:
    """A view with what the ranks display. `behind`: it is drawn in a thread, and only what is made
    now belongs to the cell that is being executed."""

    def __init__(self, view: View, run: RecordedRun, *, behind: bool = False) -> None:
        self._view = view
        self._displays = Displays(run)
        self._place: Place = Outputs(behind=behind) if in_notebook() else Lines()
        self._due = 0.0

    def draw(self) -> float:
        """Show what is new. Returns the seconds until the next call."""
        pause = self._view.draw()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._displays.pause
            self._show()
        return max(0.0, min(pause, self._due - time.monotonic()))

    def finish(self) -> None:
        """Show how the run ended, and what the notebook keeps of its displays."""
        try:
            self._show()
        finally:
            self._view.finish()

    def withdraw(self) -> None:
        """Have the front end wait no longer for the answer to a question."""
        self._view.withdraw()

    def _show(self) -> None:
        if self._displays.look():
            self._due += self._place.show(self._displays.shown) / _FLOW


class Displays:
    """What the ranks of a run show, read as it grows."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._readers: dict[int, Reader] = {}

    @property
    def pause(self) -> float:
        """Seconds between two looks."""
        return _BEAT * max(1.0, len(self._readers) / _MANY)

    @property
    def shown(self) -> dict[int, Shown]:
        return {rank: reader.shown for rank, reader in self._readers.items()}

    def look(self) -> bool:
        """Read what is new; whether there was anything."""
        for rank in list(self._run.state.ranks):
            if rank not in self._readers:
                self._readers[rank] = Reader(self._run.record.displays(rank))
        news = [reader.look() for reader in self._readers.values()]  # all of them
        return any(news)


def show(run: RecordedRun) -> None:
    """Show in the cell that is being executed what the ranks of a run have displayed."""
    displays = Displays(run)
    if displays.look():
        Outputs().show(displays.shown)


def of(run: RecordedRun) -> dict[str, str]:
    """What the ranks of a run have displayed, as one output; empty if that is nothing."""
    displays = Displays(run)
    return composed.alone(displays.shown) if displays.look() else {}


# ---------------------------------------------------------------- where it is shown


class Outputs:
    """Outputs of a notebook's cell. `behind`: the first one is made now, and there is no other."""

    def __init__(self, *, behind: bool = False) -> None:
        self._behind = behind
        self._made: list[tuple[Any, Output]] = []
        if behind:
            self._put(0, _NOTHING)

    def show(self, shown: Mapping[int, Shown]) -> int:
        if self._behind:
            all_of_it = composed.alone(shown)
            wanted = [Output(all_of_it, {})] if all_of_it else []
        else:
            wanted = composed.outputs(shown)
        missing = len(self._made) - len(wanted)
        return sum(self._put(*each) for each in enumerate([*wanted, *[_NOTHING] * missing]))

    def _put(self, number: int, output: Output) -> int:
        """Make it the output of this number; gives how many bytes are sent."""
        from IPython.display import DisplayHandle

        if number == len(self._made):
            handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
            self._made.append((handle, output))
            send = handle.display
        else:
            handle, before = self._made[number]
            if before == output:
                return 0
            self._made[number] = handle, output
            send = handle.update
        send(dict(output.data), raw=True, metadata=dict(output.metadata))
        return sum(len(each) for each in output.data.values() if isinstance(each, str))


class Lines:
    """Lines of text, as `[0] <Figure …>`; an update is a line of its own."""

    def __init__(self) -> None:
        self._printed: dict[int, list[Display]] = {}

    def show(self, shown: Mapping[int, Shown]) -> int:
        for rank in sorted(shown):
            before, now = self._printed.get(rank, []), shown[rank].displays
            for display in now:
                if not any(display is one for one in before):
                    self._print(composed.lines([rank], display))
            self._printed[rank] = list(now)
        return 0

    def _print(self, lines: list[str]) -> None:
        rest = [f"… {len(lines) - _LINES:,} more lines"] if lines[_LINES:] else []
        print(*lines[:_LINES], *rest, sep="\n", flush=True)


def in_notebook() -> bool:
    """Whether a front end shows what this process displays."""
    ipython: Any = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None
