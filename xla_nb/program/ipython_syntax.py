"""IPython's syntax (`!command`, `%magic`) in code that will run on ranks.

A rank has no IPython. `rank.loader` runs what can work the same there, magics that only configure
the notebook are skipped with a note, and others are refused before anything starts. This module
reads the plain calls to which IPython translates its syntax.
"""

from __future__ import annotations

import ast

from xla_nb.errors import ProgramError
from xla_nb.wording import listed

IGNORED = frozenset({"matplotlib", "load_ext", "reload_ext", "autoreload", "config"})
SUPPORTED = frozenset({"env", "set_env", "cd", "pwd"})
_SHELL_CALLS = {"system": "!", "getoutput": "!"}
_MAGIC_CALLS = {"run_line_magic": "%", "run_cell_magic": "%%", "magic": "%"}
_ADVICE = {
    "pip": "install packages in a separate cell, before the launch",
    "conda": "install packages in a separate cell, before the launch",
    "run": "import the file's functions",
    "time": "write %%time above the whole cell, or use time.perf_counter()",
    "timeit": "use time.perf_counter()",
    "prun": "use cProfile inside the function",
}


def find(tree: ast.AST) -> list[tuple[int, str, str]]:
    """The uses of IPython's syntax in the tree, in line order: the line, the sign ("!", "%" or
    "%%") and the magic's name."""
    uses = [_parse_call(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted(filter(None, uses))


def _parse_call(call: ast.Call) -> tuple[int, str, str] | None:
    method = call.func
    if not isinstance(method, ast.Attribute) or not _is_shell(method.value):
        return None
    if method.attr in _SHELL_CALLS:
        return call.lineno, _SHELL_CALLS[method.attr], ""
    if method.attr not in _MAGIC_CALLS or not call.args:
        return None
    name = call.args[0].value if isinstance(call.args[0], ast.Constant) else "?"
    return call.lineno, _MAGIC_CALLS[method.attr], str(name).partition(" ")[0]


def _is_shell(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "get_ipython"  # type: ignore[attr-defined]


def check(tree: ast.AST, label: str) -> tuple[str, ...]:
    """Notes on magics that ranks skip. Raises ProgramError for those that do not work there."""
    notes = []
    for line, sign, name in find(tree):
        if sign == "%" and name == "matplotlib":
            continue  # ranks display figures anyway
        if sign == "%" and name in IGNORED:
            notes.append(f"{label}, line {line}: %{name} is skipped on ranks")
        elif sign == "%%" or (sign == "%" and name not in SUPPORTED):
            raise ProgramError(f"{label}, line {line}: {refusal(sign, name)}")
    return tuple(notes)


def refusal(sign: str, name: str) -> str:
    """Why ranks cannot run it, and what to do instead."""
    advice = _ADVICE.get(name, "move it to a separate cell, or write it in Python")
    supported = listed(["!command", *(f"%{magic}" for magic in sorted(SUPPORTED))])
    return f"{sign}{name} does not work on ranks; {advice}. Ranks support {supported}."
