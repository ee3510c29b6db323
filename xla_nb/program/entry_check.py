"""Check, before anything starts, that ranks can call an entry with the arguments.

The check uses the kind and signature of the entry; it must not call it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

from xla_nb.errors import ProgramError
from xla_nb.program.cell_text import Cell, parsed
from xla_nb.program.origins import name_of
from xla_nb.program.rank_cell import functions
from xla_nb.wording import listed, meant, several, shortened

_FIX = '--args "({},)"'


def check_entry(
    entry: str, args: Sequence[object], cell: Cell, values: Mapping[str, object]
) -> Callable[..., object]:
    """Check and return the notebook's function that a launched cell defines or names.
    Raises ProgramError if ranks cannot call it."""
    defined = {function.name: function for function in functions(parsed(cell))}
    if entry not in values:
        raise ProgramError(_no_entry(entry, cell, list(defined), values))
    fn = values[entry]
    if isinstance(fn, type) or not callable(fn):
        reason = f"in the notebook it has type {type(fn).__name__}"
        raise ProgramError(f"Cannot launch {entry}: {reason}. {_candidates(list(defined))}")
    where = f"{cell.label}, line {defined[entry].lineno}: " if entry in defined else ""
    check_live(fn, args, _FIX, where)
    return fn


def check_live(
    fn: Callable[..., object],
    args: Sequence[object],
    fix: str,
    where: str = "",
    *,
    defaults: bool = False,
) -> bool:
    """Check an entry; returns whether it takes the lock. With `defaults`, a `lock` parameter keeps
    its default. `fix` shows how to pass arguments. Raises ProgramError."""
    if not callable(fn):
        raise ProgramError(f"{fn!r} is not callable. Pass the function that ranks call.")
    name = name_of(fn, "__qualname__") or type(fn).__name__
    if inspect.iscoroutinefunction(fn):
        raise ProgramError(
            f"{where}{name} is an async function, which ranks cannot call. Make it a plain "
            "function and use asyncio.run(...) inside."
        )
    if inspect.isgeneratorfunction(fn):
        raise ProgramError(
            f"{where}{name} is a generator (it has `yield`), so calling it would run nothing. "
            "Return a list, or launch a function that loops over it."
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some C functions have none
        return False
    takes_lock, lock = False, signature.parameters.get("lock")
    try:
        given = signature.bind_partial(0, *args).arguments
        if lock is not None and "lock" not in given:
            is_named = lock.kind in (lock.POSITIONAL_OR_KEYWORD, lock.KEYWORD_ONLY)
            takes_lock = is_named and not (defaults and lock.default is not lock.empty)
        signature.bind(0, *args, **({"lock": None} if takes_lock else {}))
    except TypeError as error:
        extra = f"and {several(len(args), 'argument')}" if args else "alone"
        message = f"{where}Cannot call {name}{signature} with the rank {extra}: {error}. "
        raise ProgramError(message + _remedy(signature, fix)) from None
    return takes_lock


def _remedy(signature: inspect.Signature, fix: str) -> str:
    parameters = list(signature.parameters.values())
    if not parameters:
        return "Add a first parameter for the rank's index."
    required = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required and required != ["lock"]:
        names = listed([f"`{name}`" for name in required])
        return f"Ranks pass no keywords: give {names} a default, or leave out the `*`."
    missing = [
        p.name for p in parameters[1:]
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
        and p.name != "lock"
    ]  # fmt: skip
    if not missing:
        return "Pass no arguments, or add parameters for them."
    return f"Pass them as {fix.format(', '.join(missing))}."


def _no_entry(entry: str, cell: Cell, defined: Sequence[str], values: Mapping[str, object]) -> str:
    others = [n for n, v in values.items() if isinstance(v, FunctionType) and n[:1] != "_"]
    hint = meant(entry, [*defined, *others])
    return f"{cell.label}: no function named {shortened(entry, 200)}.{hint} {_candidates(defined)}"


def _candidates(defined: Sequence[str]) -> str:
    if not defined:
        return "The cell defines no function. Define one, or omit the name to run the cell itself."
    return f"Choose one of the cell's functions: {', '.join(dict.fromkeys(defined))}."
