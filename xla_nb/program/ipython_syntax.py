"""IPython's syntax (`!command`, `%magic`) in code that will run in ranks.

A rank is no IPython: what can mean the same there is carried out by `rank.shell`, what only steers
the notebook's display is left out with a note, and the rest is refused by name before anything
starts. Seen here are the plain calls that IPython itself turns its syntax into.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from xla_nb.errors import ProgramError

IGNORED = frozenset({"matplotlib", "load_ext", "reload_ext", "autoreload", "config"})
CARRIED = frozenset({"env", "set_env", "cd", "time", "pwd"})
_SHELL_CALLS = {"system": "!", "getoutput": "!"}
_MAGIC_CALLS = {"run_line_magic": "%", "run_cell_magic": "%%", "magic": "%"}
_INSTEAD = {
    "pip": "install in a cell of its own, before the launch",
    "conda": "install in a cell of its own, before the launch",
    "run": "import the file's functions instead",
    "timeit": "measure with time.perf_counter() around the lines in question",
    "prun": "profile with cProfile inside the function",
}


@dataclass(frozen=True)
class Escape:
    """One use of IPython's syntax: `sign` is "!", "%" or "%%", `name` the magic's name."""

    line: int
    sign: str
    name: str

    def __str__(self) -> str:
        return f"{self.sign}{self.name}"


def find(tree: ast.AST) -> list[Escape]:
    """The uses of IPython's syntax in the tree, in the order of their lines."""
    found = [_escape(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sorted((e for e in found if e is not None), key=lambda escape: escape.line)


def _escape(call: ast.Call) -> Escape | None:
    method = call.func
    if not isinstance(method, ast.Attribute) or not _is_shell(method.value):
        return None
    if method.attr in _SHELL_CALLS:
        return Escape(call.lineno, _SHELL_CALLS[method.attr], "")
    if method.attr not in _MAGIC_CALLS or not call.args:
        return None
    name = call.args[0].value if isinstance(call.args[0], ast.Constant) else "?"
    return Escape(call.lineno, _MAGIC_CALLS[method.attr], str(name).partition(" ")[0])


def _is_shell(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and node.func.id == "get_ipython"  # type: ignore[attr-defined]


def check(tree: ast.AST, label: str) -> tuple[str, ...]:
    """Notes on what ranks leave out; a ProgramError for what they cannot do."""
    notes = []
    for escape in find(tree):
        if escape.sign == "%" and escape.name in IGNORED:
            notes.append(f"{label}, line {escape.line}: {escape} is left out in ranks")
        elif escape.sign == "%%" or (escape.sign == "%" and escape.name not in CARRIED):
            raise ProgramError(refusal(escape, f"{label}, line {escape.line}"))
    return tuple(notes)


def refusal(escape: Escape, where: str) -> str:
    instead = _INSTEAD.get(escape.name, "move the line to a cell of its own, or write it in Python")
    carried = ", ".join(f"%{name}" for name in sorted(CARRIED))
    return (
        f"{where}: {escape} works in the notebook but not in ranks. To go on, {instead}; "
        f"ranks carry out !commands and {carried}."
    )
