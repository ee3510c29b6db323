"""Check, before anything starts, that ranks can call an entry with the arguments.

The check uses the kind and signature of the entry, read from the text of a launched cell; it must
not call the entry or evaluate any part of it.
"""

from __future__ import annotations

import ast
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from xla_nb.errors import ProgramError
from xla_nb.in_place import LAUNCHERS
from xla_nb.program.bindings import Function, bindings, room
from xla_nb.program.cells import DEFINITION, FUNCTION, IMPORT, Statement
from xla_nb.program.origins import own_name
from xla_nb.program.split import CellSplit, functions
from xla_nb.wording import in_one_line, launched_already, meant, several

_FIX = '--args "({},)"'


#: Launchers by their full names, as cells that call them know them.
_LAUNCHERS = {f"{module}.{name}": launcher for launcher, (module, name) in LAUNCHERS.items()} | {
    "torch_xla.launch": "torch_xla.launch",
    "accelerate.notebook_launcher": "notebook_launcher",
    "xla_nb.spawn": "xla_nb.spawn",
    "xla_nb.api.spawn": "xla_nb.spawn",
}


def check_launches(plan: CellSplit, values: Mapping[str, object]) -> None:
    """Raise ProgramError if the top level calls a launcher, be it under `if __name__`."""
    full: dict[str, str] = {}
    for node in ast.walk(plan.tree):
        if isinstance(node, ast.Import):
            full |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            full |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    top = [node for node in plan.tree.body if not isinstance(node, DEFINITION)]
    for call in (node for each in top for node in ast.walk(each) if isinstance(node, ast.Call)):
        root, dot, rest = ast.unparse(call.func).partition(".")
        found = full.get(root) or _full_name(values.get(root)) or root
        if launcher := _LAUNCHERS.get(f"{found}{dot}{rest}"):
            place = f"{plan.cell.label}, line {call.lineno}"
            raise ProgramError(f"{place}: {launched_already(plan.cell.magic, launcher)}")


def _full_name(value: object) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{value.__module__}.{value.__name__}" if isinstance(value, FunctionType) else ""


def check_planned(
    plan: CellSplit, args: Sequence[object], values: Mapping[str, object], pending: Statement | None
) -> bool:
    """Check the entry of a launched cell; True if it takes the lock.

    It is defined by the cell, by the `pending` statement, or else in the notebook.
    """
    entry = plan.entry or ""
    if entry in plan.names.binds:
        pending = Statement(plan.cell, _binding(plan.tree.body, entry))
    if pending is not None:
        return _check_source(pending, args, plan)
    if entry not in values:
        raise ProgramError(_no_entry(plan, values))
    fn = values[entry]
    if isinstance(fn, type) or not callable(fn):
        raise _not_a_function(plan, f"in the notebook it has type {type(fn).__name__}")
    return check_live(fn, args, _FIX)


def check_live(fn: Callable[..., object], args: Sequence[object], fix: str) -> bool:
    """Check a live entry; True if it takes the lock. `fix` shows how arguments are passed."""
    if not callable(fn):
        raise ProgramError(f"{fn!r} is not callable. Pass the function that ranks call.")
    call = _Call(own_name(fn)[1] or type(fn).__name__, args, fix)
    call.refuse_kind(inspect.iscoroutinefunction(fn), inspect.isgeneratorfunction(fn))
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some C functions have none
        return False
    return call.check(signature)


@dataclass(frozen=True)
class _Call:
    """A rank's call: the entry's name, the arguments after the rank, and how to pass them."""

    name: str
    args: Sequence[object]
    fix: str
    where: str = ""

    def refuse_kind(self, is_async: bool, is_generator: bool) -> None:
        if is_async:
            raise ProgramError(
                f"{self.where}{self.name} is an async function, which ranks cannot call. Make it "
                "a plain function and use asyncio.run(...) inside."
            )
        if is_generator:
            raise ProgramError(
                f"{self.where}{self.name} is a generator (it has `yield`), so calling it would "
                "run nothing. Return a list, or launch a function that loops over it."
            )

    def check(self, signature: inspect.Signature, *, lenient: bool = False) -> bool:
        """Refuse arguments that do not match, unless lenient; True if it takes the lock."""
        takes_lock = _takes_lock(signature, 1 + len(self.args))
        try:
            signature.bind(0, *self.args, **({"lock": None} if takes_lock else {}))
        except TypeError as error:
            if not lenient:  # a decorator may pass arguments of its own
                raise ProgramError(self._misfit(signature, error)) from None
        return takes_lock

    def _misfit(self, signature: inspect.Signature, error: TypeError) -> str:
        extra = f"and {several(len(self.args), 'argument')}" if self.args else "alone"
        message = f"{self.where}Cannot call {self.name}{signature} with the rank {extra}: {error}. "
        parameters = list(signature.parameters.values())
        if not parameters:
            return f"{message}Add a first parameter for the rank's index."
        wanted = [
            p.name for p in parameters[1:]
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
            and p.name != "lock"
        ]  # fmt: skip
        if not wanted:
            return f"{message}Pass no arguments, or add parameters for them."
        return f"{message}Pass them as {self.fix.format(', '.join(wanted))}."


def _takes_lock(signature: inspect.Signature, passed: int) -> bool:
    """Whether a parameter `lock` is not among those passed, so that it gets the shared lock."""
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        if name == "lock":
            open_ = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and position >= passed
            return open_ or parameter.kind is parameter.KEYWORD_ONLY
    return False


# --- an entry as text -------------------------------------------------------------------------


def _binding(nodes: Iterable[ast.stmt], name: str) -> ast.stmt:
    """The last statement that binds the name, inside `if` and `try` too."""
    found = [node for node in nodes if name in bindings([node])][-1]
    for child in ast.walk(found):
        if isinstance(child, FUNCTION) and child.name == name:
            return child
    return found


def _check_source(statement: Statement, args: Sequence[object], plan: CellSplit) -> bool:
    node, where = statement.node, f"{statement.cell.label}, line {statement.node.lineno}"
    if isinstance(node, FUNCTION):
        call = _Call(plan.entry or "", args, _FIX, f"{where}: ")
        call.refuse_kind(isinstance(node, ast.AsyncFunctionDef), _yields(node))
        return call.check(_signature(node), lenient=bool(node.decorator_list))
    assigned = getattr(node, "value", None)
    if isinstance(assigned, ast.Call | ast.Lambda | ast.Name | ast.Attribute):
        return False
    if isinstance(node, IMPORT):
        return False
    kind = "a class" if isinstance(node, ast.ClassDef) else "not a function"
    raise _not_a_function(plan, f"in {where} it is {kind}")


def _yields(function: Function) -> bool:
    queue: deque[ast.AST] = deque(function.body)
    while queue:
        node = queue.popleft()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, (*DEFINITION, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))
    return False


def _signature(node: Function) -> inspect.Signature:
    """The signature as it is written, without evaluating any of it."""
    a, kind = node.args, inspect.Parameter
    plain = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    kinds = [kind.POSITIONAL_ONLY] * len(a.posonlyargs) + [kind.POSITIONAL_OR_KEYWORD] * len(a.args)
    found = [_parameter(*each) for each in zip(plain, kinds, defaults, strict=True)]
    if a.vararg:
        found.append(kind(a.vararg.arg, kind.VAR_POSITIONAL))
    for argument, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append(_parameter(argument, kind.KEYWORD_ONLY, default))
    if a.kwarg:
        found.append(kind(a.kwarg.arg, kind.VAR_KEYWORD))
    return inspect.Signature(found)


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    if default is None:
        return inspect.Parameter(argument.arg, kind)
    with room():
        written = in_one_line(ast.unparse(default), 100)
    return inspect.Parameter(argument.arg, kind, default=_Written(written))


@dataclass(frozen=True)
class _Written:
    """A default as it is written, in a signature read from source."""

    text: str

    def __repr__(self) -> str:
        return self.text


# --- messages ---------------------------------------------------------------------------------


def _no_entry(plan: CellSplit, values: Mapping[str, object]) -> str:
    entry = plan.entry or ""
    held = [n for n, v in values.items() if isinstance(v, FunctionType) and n[:1] != "_"]
    hint = meant(entry, [*_own(plan), *held])
    return f"{plan.cell.label}: no function named {entry}.{hint} {_candidates(plan)}"


def _not_a_function(plan: CellSplit, why: str) -> ProgramError:
    return ProgramError(f"Cannot launch {plan.entry}: {why}. {_candidates(plan)}")


def _candidates(plan: CellSplit) -> str:
    names = dict.fromkeys(_own(plan))
    if not names:
        return "The cell defines no function. Define one, or omit the name to run the cell itself."
    return f"Choose one of the cell's functions: {', '.join(names)}."


def _own(plan: CellSplit) -> list[str]:
    return [function.name for function in functions(plan.tree)]
