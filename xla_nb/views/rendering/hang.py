"""The report of a hang in saved HTML and text: the verdict, and the stacks folded below it."""

from __future__ import annotations

from xla_nb import wording
from xla_nb.messages.events import HangReported, StackGroup
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, colours
from xla_nb.views.rendering.style import AMBER
from xla_nb.views.rendering.tags import boxed, details, div, escaped, faint, gap, place
from xla_nb.views.snapshot import Snapshot

_ROOM = 24_000  # bytes of all stacks
_LONGEST = 900  # characters of the verdict


def as_html(snapshot: Snapshot) -> str:
    hang = snapshot.hang
    if hang is None:
        return ""
    style = f"margin:4px 0;padding:2px 10px;border-left:3px solid {AMBER};background:{AMBER}1a"
    when = faint(f"(report of {facts.clock(hang.at)})")
    drawn = [group(one, _room(hang)) for one in hang.groups]
    stacks = details("Where each rank was", "".join(drawn), False) if drawn else ""
    verdict = "" if hang.verdict in facts.title(snapshot) else escaped(hang.verdict, _LONGEST)
    return div(style, f"<b>hang</b> {verdict} {when}", stacks)


def group(one: StackGroup, room: int) -> str:
    """Ranks with the same stack, in `room` bytes."""
    at = f" {faint('at')} {place(one.place)}" if one.place else ""
    note = f" {faint(escaped(one.note))}" if one.note else ""
    heading = div("margin-top:4px", f"<b>{wording.ranks(one.ranks)}</b>{at}{note}")
    if not one.stack:
        return heading
    stack = bounds.bounded(one.stack.split("\n"), 0, (), room, colours.uncoloured)
    return heading + boxed(stack.lines(gap(bounds.gap_text(stack))), AMBER)


def as_text(snapshot: Snapshot) -> list[str]:
    hang = snapshot.hang
    if hang is None:
        return []
    verdict = "" if hang.verdict in facts.title(snapshot) else facts.cut(hang.verdict, _LONGEST)
    heading = f"hang: {verdict}" if verdict else "hang"
    lines = ["", f"{heading} (report of {facts.clock(hang.at)})"]
    for group in hang.groups:
        at = f" at {facts.cut(group.place, 200)}" if group.place else ""
        note = f": {facts.cut(group.note, 300)}" if group.note else ""
        lines.append(f"{wording.ranks(group.ranks)}{at}{note}")
        if group.stack:
            stack = bounds.bounded(group.stack.split("\n"), 0, (), _room(hang), bounds.plain_line)
            lines += stack.lines(bounds.gap_text(stack))
    return lines


def _room(hang: HangReported) -> int:
    """Bytes of one stack."""
    return _ROOM // max(1, sum(bool(group.stack) for group in hang.groups))
