"""The names in the text of IPython's syntax: `!cp {source} $target`, `%time f(x)`."""

from __future__ import annotations

import ast
import functools
import re
import string
import types
from collections.abc import Iterator

_VARIABLE = re.compile(r"\$(?:\$|([^\W\d]\w*))")


def in_command(text: str) -> Iterator[str]:
    """The names in `{expression}` and `$name` of a command; none where the braces hold something
    else, as in `awk '{print $1}'`."""
    found: list[str] = []
    try:
        for literal, expression, _, _ in string.Formatter().parse(text):
            found += filter(None, _VARIABLE.findall(literal))
            if expression is not None:
                found += _names(ast.parse(expression.strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from found


@functools.lru_cache(maxsize=4096)
def in_code(code: types.CodeType) -> tuple[str, ...]:
    """The names in all such texts of a function's code, and of what it defines. Which of its texts
    are commands, code does not tell."""
    found: list[str] = []
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += in_code(inner)
    if "get_ipython" in code.co_names:
        texts = [part for part in code.co_consts if isinstance(part, str)]
        found += (name for text in texts for name in in_command(text))
        if "time" in texts:
            found += (name for text in texts if (tree := timed(text)) for name in _names(tree))
    return tuple(found)


def timed(text: str) -> ast.Module | None:
    """The statement behind `%time`; None where it is none."""
    try:
        return ast.parse(text.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(tree: ast.AST) -> list[str]:
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
