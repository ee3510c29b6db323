"""Hang report: its verdict and, in saved HTML, the stacks folded below it."""

from __future__ import annotations

from xla_nb import wording
from xla_nb.messages.events import StackGroup
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
    time = faint(f"(reported at {facts.clock(hang.at)})")
    room = _ROOM // max(1, sum(bool(stack_group.stack) for stack_group in hang.groups))
    groups = [group(stack_group, room) for stack_group in hang.groups]
    stacks = details("Where each rank was", "".join(groups), False) if groups else ""
    verdict = "" if hang.verdict in facts.title(snapshot) else escaped(hang.verdict, _LONGEST)
    return div(style, f"<b>hang</b> {verdict} {time}", stacks)


def group(stack_group: StackGroup, room: int) -> str:
    """Render ranks with the same stack, in `room` bytes."""
    at = f" {faint('at')} {place(stack_group.place)}" if stack_group.place else ""
    note = f" {faint(escaped(stack_group.note))}" if stack_group.note else ""
    heading = div("margin-top:4px", f"<b>{wording.ranks(stack_group.ranks)}</b>{at}{note}")
    if not stack_group.stack:
        return heading
    stack = bounds.bounded(stack_group.stack.split("\n"), room, colours.uncoloured)
    return heading + boxed(stack.lines(gap), AMBER)


def as_text(snapshot: Snapshot) -> list[str]:
    hang = snapshot.hang
    if hang is None:
        return []
    verdict = "" if hang.verdict in facts.title(snapshot) else facts.cut(hang.verdict, _LONGEST)
    heading = f"hang: {verdict}" if verdict else "hang"
    return ["", f"{heading} (reported at {facts.clock(hang.at)})"]
