"""What ranks display, as outputs of a notebook.

One has all that HTML can show, the first ranks open and the others folded. Behind it, under its
rank's number, is what a front end draws itself: Markdown, LaTeX, Vega, Plotly,
HTML with scripts, and HTML that does not close what it opens.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from typing import Any

from xla_nb import ansi
from xla_nb.record.displays import Display, Shown
from xla_nb.views.saved.style import EDGE, FAINT, SANS
from xla_nb.views.saved.tags import details, div, faint, pre
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
