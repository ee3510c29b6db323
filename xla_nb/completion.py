"""Tab and Shift-Tab in a notebook: behind a magic its options, and the values of those that have a
few; in a %%xla cell what the ranks have, beside the notebook's own."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xla_nb import live_questions
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.run.group import Group
from xla_nb.run.options import OPTIONS, SETTINGS

#: The ranks of a %%xla line; None where it is not finished, or there are none.
GroupOf = Callable[[str], Group | None]
_LIVE = re.compile(r"%%xla(\s|$)")


def turn_on(shell: Any, parsers: Mapping[str, argparse.ArgumentParser], group_of: GroupOf) -> None:
    """Have the shell's kernel, if it has one, ask here first, once; `parsers`: those of magics with
    options, by magic."""
    kernel = getattr(shell, "kernel", None)
    if kernel is None or "do_complete" in vars(kernel):
        return
    kernel.do_complete = functools.partial(_completed, kernel.do_complete, parsers, group_of)
    kernel.do_inspect = functools.partial(_inspected, kernel.do_inspect, group_of)


def turn_off(shell: Any) -> None:
    """Let the kernel answer by itself again."""
    for name in ("do_complete", "do_inspect"):
        vars(getattr(shell, "kernel", None) or shell).pop(name, None)


def _completed(
    before: Callable[[str, int], dict[str, Any]],
    parsers: Mapping[str, argparse.ArgumentParser],
    group_of: GroupOf,
    code: str,
    cursor: int | None,
) -> dict[str, Any]:
    """What the kernel replies; `cursor` counts characters. Of an object that the ranks know nothing
    else is offered."""
    cursor = len(code) if cursor is None else cursor
    line = code[:cursor].rpartition("\n")[2]
    symbol = re.split(r"[\s=]", line)[-1]
    words = [word for word in _behind(parsers, line, symbol) if word.startswith(symbol)]
    if words:
        return _reply(words, symbol, cursor)
    top = _top_of(code[:cursor])
    group = group_of(top) if top else None
    text = code[:cursor].partition(f"{top}\n")[2]
    offered = live_questions.completions(group, text) if group else None
    if offered is not None and offered.matches and offered.of_object:
        return _reply(offered.matches, offered.fragment, cursor)
    own = before(code, cursor)
    if offered is None or not offered.matches:
        return own
    start = cursor - len(offered.fragment)
    names = own["matches"] if own["cursor_start"] == start else []
    return _reply([*dict.fromkeys((*offered.matches, *names))], offered.fragment, cursor)


def _reply(matches: Sequence[str], fragment: str, cursor: int) -> dict[str, Any]:
    """As ipykernel has it."""
    place = {"cursor_start": cursor - len(fragment), "cursor_end": cursor}
    return {"status": "ok", "matches": list(matches), **place, "metadata": {}}


def _behind(
    parsers: Mapping[str, argparse.ArgumentParser], line: str, symbol: str
) -> Sequence[str]:
    """What is offered behind a magic, and nothing at its own name."""
    magic, space, _ = line.lstrip().partition(" ")
    if space and magic == "%xla_config":
        name, equals, _ = line.rpartition(" ")[2].partition("=")
        if equals:
            return SETTINGS[name].choices if name in SETTINGS else []
        return [*(f"{name}=" for name in SETTINGS), "reset"]
    return _flags(parsers[magic], line, symbol) if space and magic in parsers else []


def _flags(parser: argparse.ArgumentParser, line: str, symbol: str) -> Sequence[str]:
    """The values of the option before the cursor; else all options, unless a name begins there,
    which IPython completes itself."""
    flags = {each.option_strings[0]: each for each in parser._actions if each.option_strings}
    words = line.split()
    before = flags.get(words[-2] if line[-1:].strip() else words[-1])
    if before is not None and before.nargs != 0:
        return OPTIONS[before.dest].choices if before.dest in OPTIONS else []
    return list(flags) if symbol[:1] in ("", "-") else []


def _top_of(before: str) -> str:
    """The line of the %%xla above the cursor's line; "" if there is none."""
    return next((line for line in before.split("\n")[:-1] if _LIVE.match(line)), "")


def _inspected(
    before: Callable[..., Any],
    group_of: GroupOf,
    code: str,
    cursor: int,
    level: int = 0,
    *rest: Any,
) -> Any:
    """What the kernel replies of the object at the cursor: the ranks', where the name is theirs."""
    from IPython.utils.tokenutil import token_at_cursor

    top, expression = _top_of(code[:cursor]), token_at_cursor(code, cursor)
    group = group_of(top) if top else None
    if group is None or expression.partition(".")[0] not in RANK_NAMES | group.remote.keys():
        return before(code, cursor, level, *rest)
    within = live_questions.TOOLTIP
    text = live_questions.about(group, expression, source=level > 0, within=within)
    data = {"text/plain": text} if text else {}
    return {"status": "ok", "data": data, "metadata": {}, "found": bool(text)}
