"""Show displays of ranks as outputs of a notebook cell: the front end draws each, below a line
naming the ranks that display the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from xla_nb import ansi
from xla_nb.record.displays import Display, Reader, Shown
from xla_nb.run.recorded import RecordedRun
from xla_nb.views.loop import View, shell, slot
from xla_nb.views.rendering.style import SANS
from xla_nb.views.rendering.tags import div, faint
from xla_nb.wording import ranks, several, spans

#: Displays shown of one run, and their bytes.
_MAX_DISPLAYS, LARGEST = 100, 16_000_000
_RETURNED = ("returned",)  # what follows is the result, not a display


class _Note(Display):
    """Our line between displays."""


def outputs(shown: Mapping[int, Shown]) -> list[Display]:
    """Build the outputs of a cell; none while nothing is displayed."""
    built: list[Display] = []
    count = size = omitted = 0
    for numbers, alike in _groups(shown):
        has_heading = any(display.result for display in alike.displays[:1])
        built.append(_heading(numbers, [*_gaps(alike), *(_RETURNED if has_heading else ())]))
        for display in alike.displays:
            count, size = count + 1, size + display.nbytes
            if count > _MAX_DISPLAYS or size > LARGEST:
                omitted += 1
                continue
            if display.result and not has_heading:
                built.append(_heading(numbers, _RETURNED))
            built.append(display)
    if omitted:
        note = f"… {several(omitted, 'more display')}: run.displays"
        built.append(_note(note, note))
    return built


def counted(shown: Mapping[int, Shown]) -> list[Display]:
    """Build the only output of a background run: how many displays there are."""
    if count := sum(len(current.displays) for current in shown.values()):
        note = f"{several(count, 'display')} of ranks: show the run, or see run.displays"
        return [_note(escape(note), note)]
    return []


def _groups(shown: Mapping[int, Shown]) -> list[tuple[list[int], Shown]]:
    """Group ranks with the same displays, in order; ranks without displays are omitted."""
    groups: list[tuple[list[int], Shown]] = []
    for rank, current in sorted(shown.items()):
        equal = next((numbers for numbers, other in groups if other == current), None)
        if equal is not None:
            equal.append(rank)
        elif current.displays or current.dropped or current.unreadable:
            groups.append(([rank], current))
    return groups


def _gaps(shown: Shown) -> Iterator[str]:
    if shown.dropped:
        earlier = several(shown.dropped, "earlier display")
        yield f"{earlier} left out: the newest {len(shown.displays)} are kept"
    if shown.unreadable:
        yield f"{several(shown.unreadable, 'display')} cut off or damaged"


def _heading(numbers: Sequence[int], notes: Sequence[str]) -> _Note:
    """Build a line that names the ranks whose displays follow."""
    suffix = "".join(f" · {escape(note)}" for note in notes)
    text = " ".join([f"[{spans(numbers)}]", *notes])
    return _note(f"<b>{ranks(numbers)}</b>{faint(suffix)}", text)


def _note(html: str, text: str) -> _Note:
    return _Note({"text/html": div(f"{SANS};font-size:13px", html), "text/plain": text})


_BEAT = 0.1  # seconds between reads, and the minimum between updates
_BYTES_PER_SECOND = 8e6  # bytes per second sent to a page for one run
_MAX_LINES = 60  # lines of one display printed as text
_EMPTY = _Note({"text/html": "", "text/plain": ""})


class Beside(View):
    """A view together with the ranks' displays. `behind`: the view is drawn in a thread, so only an
    output created now belongs to the cell being executed. Otherwise, only outputs from the main
    thread do, so displays are not updated while it waits for an answer."""

    def __init__(self, view: View, run: RecordedRun, *, behind: bool = False) -> None:
        self._view = view
        self._displays = Displays(run)
        self._behind = behind
        is_shown = getattr(shell(), "kernel", None) is not None  # on a page
        self._destination = Outputs(behind=behind) if is_shown else Lines()
        self._due = 0.0

    def draw(self) -> float:
        pause = self._view.draw()
        now = time.monotonic()
        can_display = self._behind or threading.current_thread() is threading.main_thread()
        if now >= self._due and can_display:
            self._due = now + _BEAT
            self._show()
        return max(0.0, min(pause, self._due - time.monotonic()))

    def finish(self) -> None:
        """Show how the run ended, and the displays that the notebook keeps."""
        try:
            self._show()
        finally:
            self._view.finish()

    def withdraw(self) -> None:
        self._view.withdraw()

    def _show(self) -> None:
        if shown := self._displays.look():
            self._due += self._destination.show(shown) / _BYTES_PER_SECOND


class Displays:
    """Displays of a run's ranks, read as they arrive."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._readers: dict[int, Reader] = {}

    def look(self) -> dict[int, Shown]:
        """Read new displays. Returns all displays by rank; nothing if there are no new ones."""
        for rank in list(self._run.state.ranks):
            if rank not in self._readers:
                self._readers[rank] = Reader(self._run.record.displays(rank))
        news = [reader.look() for reader in self._readers.values()]  # all of them
        return {rank: reader.shown for rank, reader in self._readers.items()} if any(news) else {}


def show(run: RecordedRun) -> None:
    """Show the displays of a run's ranks in the cell being executed."""
    Outputs().show(Displays(run).look())


# ---------------------------------------------------------------- destinations


class Outputs:
    """Outputs of a notebook cell. `behind`: a single output, created immediately."""

    def __init__(self, *, behind: bool = False) -> None:
        self._behind = behind
        self._sent: list[tuple[Any, Display]] = []
        if behind:
            self._put(0, _EMPTY)

    def show(self, shown: Mapping[int, Shown]) -> int:
        """Show the current displays. Returns the number of bytes sent."""
        wanted = counted(shown) if self._behind else outputs(shown)
        surplus = len(self._sent) - len(wanted)
        return sum(self._put(*item) for item in enumerate([*wanted, *[_EMPTY] * surplus]))

    def _put(self, number: int, output: Display) -> int:
        """Set output `number`. Returns the number of bytes sent."""
        if number == len(self._sent):
            handle = slot()
            self._sent.append((handle, output))
            send = handle.display
        else:
            handle, previous = self._sent[number]
            if previous == output:
                return 0
            self._sent[number] = handle, output
            send = handle.update
        send(dict(output.data), raw=True, metadata=dict(output.metadata))
        return sum(len(value) for value in output.data.values() if isinstance(value, str))


class Lines:
    """Lines of text, such as `[0] <Figure …>`, of each new display."""

    def __init__(self) -> None:
        self._printed: dict[int, int] = {}  # displays by rank

    def show(self, shown: Mapping[int, Shown]) -> int:
        for rank, current in sorted(shown.items()):
            count = current.dropped + len(current.displays)
            printed = min(self._printed.get(rank, 0), count)  # less after a clearing
            self._printed[rank] = count
            for display in current.displays[max(0, printed - current.dropped) :]:
                lines = [f"[{rank}] {ansi.plain(line)}" for line in display.text.splitlines()]
                more = [f"… {len(lines) - _MAX_LINES:,} more lines"] if lines[_MAX_LINES:] else []
                print(*lines[:_MAX_LINES], *more, sep="\n", flush=True)
        return 0
