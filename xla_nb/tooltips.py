"""What a page shows of the object at the cursor (Shift-Tab) in a %%xla cell: the ranks', where the
name is theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xla_nb import completion

#: Text on the object that an expression leads to in a cell with this line at its top, "" if there
#: is none; None where the name is the notebook's. The last argument asks for its source.
Explain = Callable[[str, str, bool], str | None]


def turn_on(shell: Any, explain: Explain) -> None:
    """Have the shell's kernel, if it has one, ask `explain` first, once."""
    before = getattr(getattr(shell, "kernel", None), "do_inspect", None)
    if before is not None and "do_inspect" not in vars(shell.kernel):
        shell.kernel.do_inspect = functools.partial(_inspected, before, explain)


def turn_off(shell: Any) -> None:
    """Let the kernel answer by itself again."""
    vars(getattr(shell, "kernel", None) or shell).pop("do_inspect", None)


def _inspected(
    before: Callable[..., Any], explain: Explain, code: str, cursor: int, level: int = 0, *rest: Any
) -> Any:
    """What the kernel replies; `cursor` counts characters."""
    from IPython.utils.tokenutil import token_at_cursor

    line = completion.top_of(code, code[:cursor].count("\n"))
    text = explain(line, token_at_cursor(code, cursor), level > 0) if line else None
    if text is None:
        return before(code, cursor, level, *rest)
    data = {"text/plain": text} if text else {}
    return {"status": "ok", "data": data, "metadata": {}, "found": bool(text)}
