"""Check, before anything starts, that ranks can call an entry with the arguments.

The check uses the kind and signature of the entry; it must not call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType

from xla_nb.errors import ProgramError
from xla_nb.program.cells import Cell, parsed
from xla_nb.program.origins import own_name
from xla_nb.program.split import functions
from xla_nb.wording import meant, several, shortened

_FIX = '--args "({},)"'


def check_entry(
    entry: str, args: Sequence[object], cell: Cell, values: Mapping[str, object]
) -> Callable[..., object]:
    """The function that a launched cell defines or names, of what the notebook has, once ranks can
    call it. Raises ProgramError."""
    own = {function.name: function for function in functions(parsed(cell))}
    if entry not in values:
        raise ProgramError(_no_entry(entry, cell, list(own), values))
    fn = values[entry]
    if isinstance(fn, type) or not callable(fn):
        kind = f"in the notebook it has type {type(fn).__name__}"
        raise ProgramError(f"Cannot launch {entry}: {kind}. {_candidates(list(own))}")
    where = f"{cell.label}, line {own[entry].lineno}: " if entry in own else ""
    check_live(fn, args, _FIX, where)
    return fn


def check_live(
    fn: Callable[..., object], args: Sequence[object], fix: str, where: str = ""
) -> bool:
    """Check an entry; True if it takes the lock. `fix` shows how arguments are passed."""
    if not callable(fn):
        raise ProgramError(f"{fn!r} is not callable. Pass the function that ranks call.")
    call = _Call(own_name(fn)[1] or type(fn).__name__, args, fix, where)
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

    def check(self, signature: inspect.Signature) -> bool:
        """Refuse arguments that do not match; True if it takes the lock."""
        takes_lock = _takes_lock(signature, 1 + len(self.args))
        try:
            signature.bind(0, *self.args, **({"lock": None} if takes_lock else {}))
        except TypeError as error:
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


# --- messages ---------------------------------------------------------------------------------


def _no_entry(entry: str, cell: Cell, own: Sequence[str], values: Mapping[str, object]) -> str:
    held = [n for n, v in values.items() if isinstance(v, FunctionType) and n[:1] != "_"]
    hint = meant(entry, [*own, *held])
    return f"{cell.label}: no function named {shortened(entry, 200)}.{hint} {_candidates(own)}"


def _candidates(own: Sequence[str]) -> str:
    if not own:
        return "The cell defines no function. Define one, or omit the name to run the cell itself."
    return f"Choose one of the cell's functions: {', '.join(dict.fromkeys(own))}."
