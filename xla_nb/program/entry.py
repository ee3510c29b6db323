"""Whether ranks can call an entry with the arguments given: told before anything starts.

The rule: its kind and its signature tell, those of a launched cell from its text; the entry is
not called and nothing of it evaluated.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from xla_nb.errors import ProgramError
from xla_nb.program.cells import DEFINITION, FUNCTION, IMPORT, Statement
from xla_nb.program.names import Function, bindings
from xla_nb.program.origins import own_name
from xla_nb.program.split import CellSplit, functions

_FIX = '--args "({},)"'


def check_planned(
    plan: CellSplit, args: Sequence[object], values: Mapping[str, object], pending: Statement | None
) -> bool:
    """Check the entry of a launched cell; True if it takes the lock.

    The cell defines it, or the `pending` statement, or else the notebook holds it.
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
        raise _not_a_function(plan, f"in the notebook it is of type {type(fn).__name__}")
    return check_live(fn, args, _FIX)


def check_live(fn: Callable[..., object], args: Sequence[object], fix: str) -> bool:
    """Check a live entry; True if it takes the lock. `fix` shows how arguments are passed."""
    if not callable(fn):
        raise ProgramError(f"{fn!r} cannot be called; pass the function that the ranks call.")
    call = _Call(own_name(fn)[1] or type(fn).__name__, args, fix)
    call.refuse_kind(inspect.iscoroutinefunction(fn), inspect.isgeneratorfunction(fn))
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some C functions do not tell theirs
        return False
    return call.check(signature)


@dataclass(frozen=True)
class _Call:
    """The call that a rank makes: the entry's name, what follows the rank, how it is passed."""

    name: str
    args: Sequence[object]
    fix: str
    where: str = ""

    def refuse_kind(self, is_async: bool, is_generator: bool) -> None:
        if is_async:
            raise ProgramError(
                f"{self.where}{self.name} is an async function, and ranks call plain ones. Make "
                "it a plain function; inside, asyncio.run(...) runs what is async."
            )
        if is_generator:
            raise ProgramError(
                f"{self.where}{self.name} is a generator (it has `yield`), so that calling it "
                "would run nothing. Return a list instead of yielding, or launch a function that "
                "loops over it."
            )

    def check(self, signature: inspect.Signature, *, lenient: bool = False) -> bool:
        """Refuse arguments that do not fit, unless lenient; True if it takes the lock."""
        takes_lock = _takes_lock(signature, 1 + len(self.args))
        try:
            signature.bind(0, *self.args, **({"lock": None} if takes_lock else {}))
        except TypeError as error:
            if not lenient:  # a decorator may pass arguments of its own
                raise ProgramError(self._misfit(signature, error)) from None
        return takes_lock

    def _misfit(self, signature: inspect.Signature, error: TypeError) -> str:
        count = f"{len(self.args)} argument{'' if len(self.args) == 1 else 's'}"
        message = (
            f"{self.where}{self.name}{signature} cannot be called: a rank calls "
            f"{self.name}(rank, *args), and {count} follow the rank ({error}). "
        )
        parameters = list(signature.parameters.values())
        if not parameters:
            return f"{message}Give it a first parameter for the rank's index."
        wanted = [
            p.name for p in parameters[1:]
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
            and p.name != "lock"
        ]  # fmt: skip
        if not wanted:
            return f"{message}Pass no arguments, or give the function parameters for them."
        return f"{message}Pass them as {self.fix.format(', '.join(wanted))}."


def _takes_lock(signature: inspect.Signature, passed: int) -> bool:
    """Whether a parameter `lock` is left for the shared lock: not among those passed."""
    for position, (name, parameter) in enumerate(signature.parameters.items()):
        if name == "lock":
            open_ = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and position >= passed
            return open_ or parameter.kind is parameter.KEYWORD_ONLY
    return False


# --- an entry known from its text -------------------------------------------------------------


def _binding(nodes: Iterable[ast.stmt], name: str) -> ast.stmt:
    """The last statement that binds the name, looked for inside `if` and `try` too."""
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
    made = getattr(node, "value", None)  # what an assignment assigns
    if isinstance(made, ast.Call | ast.Lambda | ast.Name | ast.Attribute):
        return False
    if isinstance(node, IMPORT):
        return False
    what = "a class" if isinstance(node, ast.ClassDef) else "no function"
    raise _not_a_function(plan, f"{where} makes it {what}")


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
    """The signature as it is written, without evaluating anything of it."""
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
    value = inspect.Parameter.empty if default is None else _Written(ast.unparse(default))
    return inspect.Parameter(argument.arg, kind, default=value)


@dataclass(frozen=True)
class _Written:
    """A default as it is written, for signatures read from source."""

    text: str

    def __repr__(self) -> str:
        return self.text


# --- what is said of a name that cannot be launched -------------------------------------------


def _no_entry(plan: CellSplit, values: Mapping[str, object]) -> str:
    entry = plan.entry or ""
    held = [n for n, v in values.items() if isinstance(v, FunctionType) and n[:1] != "_"]
    close = difflib.get_close_matches(entry, [*_own(plan), *held], n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    start = f"{plan.cell.label}: there is no function {entry} to launch."
    return f"{start}{hint} {_candidates(plan)}"


def _not_a_function(plan: CellSplit, why: str) -> ProgramError:
    return ProgramError(f"{plan.entry} cannot be launched: {why}. {_candidates(plan)}")


def _candidates(plan: CellSplit) -> str:
    names = dict.fromkeys(_own(plan))
    if not names:
        return "The cell defines no function: define one, or name none to run the cell as it is."
    return f"The cell defines {', '.join(names)}: name one of these."


def _own(plan: CellSplit) -> list[str]:
    return [function.name for function in functions(plan.tree)]
