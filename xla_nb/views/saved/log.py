"""The output of all ranks as one log: equal lines of several ranks once, under their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from xla_nb.views import folding
from xla_nb.views.saved import bounds, colours
from xla_nb.views.saved.style import FAINT
from xla_nb.views.saved.tags import div, faint, gap, in_parts, unseen
from xla_nb.views.snapshot import Excerpt, Snapshot

_Source = int | None
_ROWS = 24  # lines that are to be seen at once, about
_OF_ROW = 120  # bytes that a line takes beside its own
#: A line stands for those left out.
_Gap = Callable[[bounds.Shown, Excerpt], str]


def rows(
    shown: Iterable[tuple[Excerpt, bounds.Shown]], told: _Gap
) -> Iterable[tuple[str, tuple[_Source, ...], list[str]]]:
    """Stream, ranks and their lines: stdout of all ranks first, where a rank's lines are in order,
    then stderr."""
    each = list(shown)
    for stream in ("out", "err"):
        written = {
            excerpt.rank: lines.lines(told(lines, excerpt))
            for excerpt, lines in each
            if excerpt.stream == stream
        }
        for ranks, group in groupby(folding.folded(written), lambda one: one.ranks):
            yield stream, ranks, [line for _, line in group]


def as_html(snapshot: Snapshot, room: int) -> str:
    """Output in at most `room` bytes."""
    chosen = bounds.selected(snapshot)
    lines_of = sum(len(one.head) + len(one.tail) + 1 for one in chosen)
    room = min(bounds.OUTPUT, max(room - _OF_ROW * lines_of, 100 * len(chosen)))
    # If there is only room for a few lines of each stream, their words matter more than colours.
    draw = colours.coloured if room > 2000 * len(chosen) else colours.uncoloured

    def told(lines: bounds.Shown, excerpt: Excerpt) -> str:
        return gap(bounds.gap_text(lines, excerpt, snapshot.record))

    groups = [
        _Group(stream, folding.who(ranks), lines)
        for stream, ranks, lines in rows(bounds.excerpts(snapshot, room, draw), told)
    ]
    if not groups:
        return ""
    note = bounds.unshown(snapshot)
    log = in_parts(groups, _Lists(groups), "entries")
    last = div(f"font-size:12px;{FAINT}", note) if note else ""
    return unseen("Output") + log + last


@dataclass(frozen=True)
class _Group:
    """Lines that follow each other in one stream of the same ranks."""

    stream: str
    ranks: str
    lines: Sequence[str]


class _Lists:
    """Draws groups as lists, with the lines of all below each other, and few of each if there are
    many."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        widest = min(12, max(len(group.ranks) for group in groups))
        self._width = f"min-width:{0.62 * widest + 0.4:.1f}em"
        each = max(2, _ROWS // len(groups))
        self._ends = each // 3, each - each // 3

    def __call__(self, groups: Sequence[_Group]) -> str:
        style = (
            "font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;"
            "list-style:none;margin:0;padding:0"
        )
        return f'<ul style="{style}">{"".join(map(self._item, groups))}</ul>'

    def _item(self, group: _Group) -> str:
        label = f'<b style="{self._width}">{group.ranks}</b>'
        label += faint("stderr") if group.stream == "err" else ""
        text = div("flex:1;min-width:0", in_parts(group.lines, _joined, "lines", self._ends))
        return f'<li style="display:flex;gap:8px;margin:0">{label}{text}</li>'


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines)
