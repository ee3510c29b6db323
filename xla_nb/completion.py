"""Tab and Shift-Tab in a %%xla cell: names of the ranks, in addition to the notebook's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from xla_nb import live_questions
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.run.group import Group

#: Maps a %%xla line to its live ranks; None if it is unfinished or there are none.
GroupOf = Callable[[str], Group | None]
_LIVE = re.compile(r"%%xla(\s|$)")


def turn_on(shell: Any, group_of: GroupOf) -> None:
    """Make the shell's kernel, if it has one, ask here first. Calling it again does nothing."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or "do_complete" in vars(kernel):
        return
    kernel.do_complete = functools.partial(_completed, kernel.do_complete, group_of)
    kernel.do_inspect = functools.partial(_inspect, kernel.do_inspect, group_of)


def turn_off(shell: Any) -> None:
    """Restore the kernel's own answers."""
    for name in ("do_complete", "do_inspect"):
        vars(getattr(shell, "kernel", None) or shell).pop(name, None)


def _completed(
    original: Callable[[str, int], dict[str, Any]],
    group_of: GroupOf,
    code: str,
    cursor: int | None,
) -> dict[str, Any]:
    """The kernel's reply; `cursor` counts characters. For attributes of an object that the ranks
    know, only theirs are offered."""
    cursor = len(code) if cursor is None else cursor
    line = _find_magic_line(code[:cursor])
    group = group_of(line) if line else None
    text = code[:cursor].partition(f"{line}\n")[2]
    completions = live_questions.completions(group, text) if group else None
    if completions is not None and completions.matches and completions.of_object:
        return _reply(completions.matches, completions.fragment, cursor)
    reply = original(code, cursor)
    if completions is None or not completions.matches:
        return reply
    start = cursor - len(completions.fragment)
    names = reply["matches"] if reply["cursor_start"] == start else []
    return _reply([*dict.fromkeys((*completions.matches, *names))], completions.fragment, cursor)


def _reply(matches: Sequence[str], fragment: str, cursor: int) -> dict[str, Any]:
    """A completion reply in ipykernel's form."""
    span = {"cursor_start": cursor - len(fragment), "cursor_end": cursor}
    return {"status": "ok", "matches": list(matches), **span, "metadata": {}}


def _find_magic_line(before: str) -> str:
    """The %%xla line above the cursor's line; "" if there is none."""
    return next((line for line in before.split("\n")[:-1] if _LIVE.match(line)), "")


def _inspect(
    original: Callable[..., Any],
    group_of: GroupOf,
    code: str,
    cursor: int,
    level: int = 0,
    *args: Any,
) -> Any:
    """The kernel's reply on the object at the cursor: the ranks' object if the name is theirs."""
    from IPython.utils.tokenutil import token_at_cursor

    line, expression = _find_magic_line(code[:cursor]), token_at_cursor(code, cursor)
    group = group_of(line) if line else None
    if group is None or expression.partition(".")[0] not in RANK_NAMES | group.remote.keys():
        return original(code, cursor, level, *args)
    within = live_questions.TOOLTIP
    text = live_questions.about(group, expression, source=level > 0, within=within)
    data = {"text/plain": text} if text else {}
    return {"status": "ok", "data": data, "metadata": {}, "found": bool(text)}
