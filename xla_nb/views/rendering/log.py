"""The output of all ranks as one log; equal lines of several ranks appear once, with their
numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from xla_nb.views import folding
from xla_nb.views.rendering import bounds, colours
from xla_nb.views.rendering.style import FAINT
from xla_nb.views.rendering.tags import div, faint, gap, in_parts, unseen
from xla_nb.views.snapshot import STREAMS, Excerpt, Snapshot, Stream

_ROWS = 24  # lines shown unfolded, approximately
_MARKUP_BYTES = 120  # bytes of markup per line
#: Draws the line that replaces omitted ones.
_Gap = Callable[[bounds.Shown, Excerpt], str]


@dataclass(frozen=True)
class Group:
    """Consecutive lines of one stream of the same ranks."""

    stream: Stream
    ranks: str
    lines: Sequence[str]


def groups(shown: Iterable[tuple[Excerpt, bounds.Shown]], format_gap: _Gap) -> Iterator[Group]:
    """Yield the lines of all streams in the order in which they were seen. If that is unknown, and
    among lines seen at once, stdout comes before stderr."""
    ordered = sorted(shown, key=lambda pair: STREAMS.index(pair[0].stream))
    written = {
        (excerpt.rank, excerpt.stream): list(
            zip(
                _select(excerpt.times, excerpt, lines),
                _select(excerpt.switches, excerpt, lines),
                lines.lines(format_gap(lines, excerpt)),
                strict=True,
            )
        )
        for excerpt, lines in ordered
    }
    for (stream, ranks), group in groupby(folding.folded(written), attrgetter("stream", "who")):
        yield Group(stream, ranks, [line.line for line in group])


def _select(values: Sequence[float], excerpt: Excerpt, lines: bounds.Shown) -> Sequence[float]:
    """Select the values of the lines that are shown; the gap has that of the line before it."""
    all_values = values or (0,) * (len(excerpt.head) + len(excerpt.tail))
    first, last = all_values[: len(lines.head)], all_values[len(all_values) - len(lines.tail) :]
    return (*first, *(first[-1:] or last or all_values)[: bool(lines.left_out)], *last)


def as_html(snapshot: Snapshot, room: int) -> str:
    """Render output in at most `room` bytes."""
    excerpts = snapshot.excerpts[: bounds.STREAMS]
    line_count = sum(len(excerpt.head) + len(excerpt.tail) + 1 for excerpt in excerpts)
    room = min(bounds.OUTPUT, max(room - _MARKUP_BYTES * line_count, 100 * len(excerpts)))
    # If there is room for only a few lines per stream, text matters more than colours.
    draw = colours.coloured if room > 2000 * len(excerpts) else colours.uncoloured

    def format_gap(lines: bounds.Shown, excerpt: Excerpt) -> str:
        return gap(bounds.gap_text(lines, excerpt, snapshot.record))

    shown = list(groups(bounds.excerpts(snapshot, room, draw), format_gap))
    if not shown:
        return ""
    log = in_parts(shown, _list_drawer(shown), "lines", lines=lambda group: group.lines)
    notes = (div(f"font-size:12px;{FAINT}", note) for note in bounds.notes_on_output(snapshot))
    return unseen("Output") + log + "".join(notes)


def _list_drawer(groups: Sequence[Group]) -> Callable[[Sequence[Group]], str]:
    """Return a function that draws groups as lists with aligned lines, and only a few lines per
    group if there are many groups."""
    label_width = min(12, max(len(group.ranks) for group in groups))
    limit = max(2, _ROWS // len(groups))
    style = (
        "font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;"
        "list-style:none;margin:0;padding:0"
    )

    def item(group: Group) -> str:
        label = f'<b style="min-width:{0.62 * label_width + 0.4:.1f}em">{group.ranks}</b>'
        label += faint("stderr") if group.stream == "err" else ""
        lines = in_parts(group.lines, "\n".join, "lines", (limit // 3, limit - limit // 3))
        text = div("flex:1;min-width:0", lines)
        return f'<li style="display:flex;gap:8px;margin:0">{label}{text}</li>'

    return lambda part: f'<ul style="{style}">{"".join(map(item, part))}</ul>'
