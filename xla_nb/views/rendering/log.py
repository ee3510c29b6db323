"""The output of all ranks as one log; equal lines of several ranks appear once, with their
numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from xla_nb.monitor.snapshot import STREAMS, Excerpt, Snapshot
from xla_nb.views import facts, folding
from xla_nb.views.folding import Folded
from xla_nb.views.rendering import bounds
from xla_nb.views.rendering.style import FAINT, OUTPUT
from xla_nb.views.rendering.tags import coloured, div, faint, gap, in_parts, uncoloured, unseen

_ENDS = (8, 16)  # lines shown unfolded, at the start and at the end
_MARKUP_BYTES = 120  # bytes of markup per line


def folded(
    snapshot: Snapshot, room: int, draw: bounds.Draw, draw_gap: Callable[[str], str] = str
) -> list[Folded]:
    """Fold the lines of all streams, which share `room` bytes equally, in the order in which they
    were seen. If that is unknown, and among lines seen at once, stdout comes before stderr."""
    excerpts = snapshot.excerpts[: bounds.STREAMS]
    share = room // max(len(excerpts), 1)
    written = {}
    for excerpt in sorted(excerpts, key=lambda excerpt: STREAMS.index(excerpt.stream)):
        shown = bounds.bounded(excerpt.head, share, draw, excerpt.left_out, excerpt.tail)
        file = facts.cut(excerpt.path.removeprefix(f"{snapshot.record}/"), 400)
        lines = shown.lines(draw_gap, f", in {file}")
        times = _select(excerpt.times, excerpt, shown)
        switches = _select(excerpt.switches, excerpt, shown)
        written[excerpt.rank, excerpt.stream] = [*zip(times, switches, lines, strict=True)]
    return folding.folded(written)


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
    draw = coloured if room > 2000 * len(excerpts) else uncoloured
    lines = folded(snapshot, room, draw, gap)
    if not lines:
        return ""
    label_width = min(12, max(len(line.who) for line in lines))

    def draw_list(part: Sequence[Folded]) -> str:
        groups = groupby(part, attrgetter("stream", "who"))
        items = (_item(*head, [line.line for line in group], label_width) for head, group in groups)
        return f'<ul style="{OUTPUT};list-style:none">{"".join(items)}</ul>'

    log = in_parts(lines, draw_list, "lines", _ENDS, attrgetter("line"))
    notes = (div(f"font-size:12px;{FAINT}", note) for note in bounds.notes_on_output(snapshot))
    return unseen("Output") + log + "".join(notes)


def _item(stream: str, ranks: str, lines: Sequence[str], label_width: int) -> str:
    """Draw consecutive lines of the same ranks."""
    label = f'<b style="min-width:{0.62 * label_width + 0.4:.1f}em">{ranks}</b>'
    label += faint("stderr") if stream == "err" else ""
    text = div("flex:1;min-width:0", "\n".join(lines))
    return f'<li style="display:flex;gap:8px;margin:0">{label}{text}</li>'
