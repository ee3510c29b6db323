"""What ranks display, as outputs of a notebook.

One has all that HTML can show, the first ranks open and the others folded. Behind it, under its
rank's number, is what a front end draws itself: Markdown, LaTeX, Vega, Plotly,
HTML with scripts, and HTML that does not close what it opens.
"""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from xla_nb import ansi
from xla_nb.record.displays import Display, Reader, Shown
from xla_nb.run.recorded import RecordedRun
from xla_nb.views.loop import View, shell, slot
from xla_nb.views.rendering.style import EDGE, FAINT, SANS
from xla_nb.views.rendering.tags import details, div, faint, pre
from xla_nb.wording import listed, ranks, several, size

#: Bytes of the HTML of one run, and of what a front end draws itself; characters of one text.
LARGEST, _TEXT = 16_000_000, 20_000
_MOST = 40  # displays that a front end draws itself
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: What ranks above HTML and images in a front end, or has no place in HTML.
_OWN = ("text/markdown", "text/latex", "application/json", "application/javascript")


@dataclass(frozen=True)
class Output:
    """An output of the cell: forms by MIME type, and what is to be known of them."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class _Group:
    """Ranks that display the same."""

    ranks: list[int]
    shown: Shown

    @property
    def name(self) -> str:
        return ranks(self.ranks)


def outputs(shown: Mapping[int, Shown]) -> list[Output]:
    """The outputs of a cell; none while nothing is displayed."""
    groups = _groups(shown)
    if not groups:
        return []
    first = Output({"text/html": _html(groups, alone=False), "text/plain": text(shown)}, {})
    return [first, *_others(groups)]


def alone(shown: Mapping[int, Shown]) -> dict[str, str]:
    """All of it in one output: what a front end would draw itself is there as text."""
    groups = _groups(shown)
    return {"text/html": _html(groups, alone=True), "text/plain": text(shown)} if groups else {}


def text(shown: Mapping[int, Shown]) -> str:
    """All of it as lines of text, each behind its ranks."""
    return "\n".join(line for group in _groups(shown) for line in _lines(group))


def lines(numbers: Iterable[int], display: Display) -> list[str]:
    """One display as lines of text."""
    name = ranks(numbers).partition(" ")[2]
    return [f"[{name}] {ansi.plain(line)}" for line in display.text.splitlines() or [""]]


def _groups(shown: Mapping[int, Shown]) -> list[_Group]:
    """Ranks with the same displays, in order; those without any are left out."""
    found: list[_Group] = []
    for rank in sorted(shown):
        one = shown[rank]
        if not (one.displays or one.dropped or one.unreadable):
            continue
        same = next((group for group in found if _are_equal(group.shown, one)), None)
        if same is None:
            found.append(_Group([rank], one))
        else:
            same.ranks.append(rank)
    return found


def _are_equal(one: Shown, other: Shown) -> bool:
    """But for their ids, which are made up."""
    return (one.dropped, one.unreadable) == (other.dropped, other.unreadable) and [
        (display.data, display.metadata, display.result) for display in one.displays
    ] == [(display.data, display.metadata, display.result) for display in other.displays]


# ---------------------------------------------------------------- HTML and text


def _html(groups: list[_Group], alone: bool) -> str:
    room = LARGEST
    drawn = []
    for number, group in enumerate(groups):
        inner = [div(FAINT, line) for line in _gaps(group.shown)]
        for index, display in enumerate(group.shown.displays):
            piece = _piece(display, alone)
            if len(piece) > room:
                where = f"run.displays[{group.ranks[0]}][{index}]"
                piece = div(FAINT, f"{size(len(piece))} left out here: <code>{where}</code>")
            room -= len(piece)
            inner.append(piece)
        drawn.append(details(_summary(group), "".join(inner), number == 0))
    style = f"{SANS};font-size:13px;border-left:4px solid {EDGE};padding:2px 0 2px 12px"
    return div(style, *drawn)


def _summary(group: _Group) -> str:
    number = len(group.shown.displays)
    each = " each" if len(group.ranks) > 1 else ""
    told = f" · {several(number, 'display')}{each}" if number > 1 else ""
    numbers = ",".join(map(str, group.ranks))  # for page/displays.js
    return f'<b data-ranks="{numbers}">{group.name}</b>{faint(told)}'


def _gaps(shown: Shown) -> Iterator[str]:
    if shown.dropped:
        earlier = several(shown.dropped, "earlier display")
        yield f"{earlier} left out: the newest {len(shown.displays)} are kept"
    if shown.unreadable:
        yield f"{several(shown.unreadable, 'display')} cut off or damaged"


def _piece(display: Display, alone: bool) -> str:
    """One display as HTML; empty where the front end draws it itself."""
    if _is_own(display):
        if not alone:
            return ""
        inner = _text(display)
    else:
        inner = _drawn(display)
    label = div(FAINT, "returned") if display.result else ""
    return div("margin:4px 0 8px;overflow:auto", label, inner)


def _drawn(display: Display) -> str:
    data = display.data
    if isinstance(html := data.get("text/html"), str):
        return div("", html)
    if isinstance(svg := data.get("image/svg+xml"), str):
        return _image("image/svg+xml", base64.b64encode(svg.encode()).decode(), display)
    for kind in _IMAGES:
        if isinstance(image := data.get(kind), str):
            return _image(kind, image, display)
    return _text(display)


def _image(kind: str, content: str, display: Display) -> str:
    about = display.metadata.get(kind)
    sizes = about if isinstance(about, dict) else {}
    given = "".join(
        f' {name}="{int(sizes[name])}"'
        for name in ("width", "height")
        if isinstance(sizes.get(name), int | float) and math.isfinite(sizes[name])
    )
    alt = escape(ansi.plain(display.text)[:300])
    source = escape("".join(content.split()))  # a rank may call anything an image
    return f'<img alt="{alt}" src="data:{kind};base64,{source}"{given}>'


def _text(display: Display) -> str:
    shown = display.text[:_TEXT]
    more = len(display.text) - len(shown)
    rest = [f"… {more:,} more characters"] if more else []
    return pre([escape(ansi.plain(line)) for line in [*shown.splitlines(), *rest]], EDGE)


def _lines(group: _Group) -> Iterator[str]:
    name = group.name.partition(" ")[2]
    for told in _gaps(group.shown):
        yield f"[{name}] … {told}"
    for display in group.shown.displays:
        yield from lines(group.ranks, display)


# ---------------------------------------------------------------- what a front end draws itself


def _is_own(display: Display) -> bool:
    data = display.data
    if any(name.startswith("application/vnd.") for name in data):
        return True
    if isinstance(html := data.get("text/html"), str):
        return "<script" in html.lower() or not display.is_closed
    return any(name in data for name in _OWN) and not any(name in data for name in _IMAGES)


def _others(groups: list[_Group]) -> Iterator[Output]:
    own = [(group, one) for group in groups for one in group.shown.displays if _is_own(one)]
    sizes = accumulate(display.nbytes for _, display in own)
    count = min(_MOST, sum(size <= LARGEST for size in sizes))
    last: _Group | None = None
    for group, display in own[:count]:
        if group is not last:
            yield _note(group.name, f"[{group.name.partition(' ')[2]}]")
        last = group
        yield Output(display.data, display.metadata)
    if own[count:]:
        rest = several(len(own) - count, "more display")
        where = listed(
            {f"run.displays[{group.ranks[0]}]": None for group, _ in own[count:]}, most=3
        )
        yield _note(f"{rest}: {where}", f"… {rest}: {where}")


def _note(words: str, plain: str) -> Output:
    html = div(f"{SANS};font-size:13px;font-weight:600", escape(words))
    return Output({"text/html": html, "text/plain": plain}, {})


_BEAT = 0.1  # seconds between two looks, and the least between two updates
_MANY = 64  # ranks; of more, looks are rarer
_FLOW = 8e6  # bytes a second that a page gets of one run
_LINES = 60  # of one display, where its text is printed
_NOTHING = Output({"text/html": "", "text/plain": ""}, {})


class Beside:
    """A view with what the ranks display. `behind`: it is drawn in a thread, and only what is made
    now belongs to the cell that is being executed. Else only what the main thread displays does: it
    displays nothing while it waits for an answer."""

    def __init__(self, view: View, run: RecordedRun, *, behind: bool = False) -> None:
        self._view = view
        self._displays = Displays(run)
        self._behind = behind
        is_shown = getattr(shell(), "kernel", None) is not None  # on a page
        self._place = Outputs(behind=behind) if is_shown else Lines()
        self._due = 0.0

    def draw(self) -> float:
        """Show what is new. Returns the seconds until the next call."""
        pause = self._view.draw()
        now = time.monotonic()
        displays = self._behind or threading.current_thread() is threading.main_thread()
        if now >= self._due and displays:
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
    return alone(displays.shown) if displays.look() else {}


# ---------------------------------------------------------------- where it is shown


class Outputs:
    """Outputs of a notebook's cell. `behind`: the first one is made now, and there is no other."""

    def __init__(self, *, behind: bool = False) -> None:
        self._behind = behind
        self._made: list[tuple[Any, Output]] = []
        if behind:
            self._put(0, _NOTHING)

    def show(self, shown: Mapping[int, Shown]) -> int:
        """Show what ranks show now; gives how many bytes that took."""
        if self._behind:
            all_of_it = alone(shown)
            wanted = [Output(all_of_it, {})] if all_of_it else []
        else:
            wanted = outputs(shown)
        missing = len(self._made) - len(wanted)
        return sum(self._put(*each) for each in enumerate([*wanted, *[_NOTHING] * missing]))

    def _put(self, number: int, output: Output) -> int:
        """Make it the output of this number; gives how many bytes are sent."""
        if number == len(self._made):
            handle = slot()
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
                    self._print(lines([rank], display))
            self._printed[rank] = list(now)
        return 0

    def _print(self, lines: list[str]) -> None:
        rest = [f"… {len(lines) - _LINES:,} more lines"] if lines[_LINES:] else []
        print(*lines[:_LINES], *rest, sep="\n", flush=True)
