"""What a module's own code makes and binds, read from the code without executing it."""

from __future__ import annotations

import collections
import dis
import functools
import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator

_IMPORTS = {"IMPORT_FROM", "IMPORT_NAME"}
_STORES = {"STORE_NAME", "STORE_GLOBAL"}


def of(name: str) -> types.CodeType | None:
    """A module's code; None where it is not Python's."""
    try:
        code: types.CodeType | None = sys.modules[name].__spec__.loader.get_code(name)  # type: ignore
    except (AttributeError, ImportError, KeyError, OSError, SyntaxError):
        return None
    return code


def bound(code: types.CodeType) -> set[str]:
    """The names that code binds otherwise than by an import."""
    return _stored(code)[0]


def imported(code: types.CodeType) -> set[str]:
    """The names that code binds by an import, but for those of `import *`."""
    return _stored(code)[1]


@functools.lru_cache(maxsize=64)
def _stored(code: types.CodeType) -> tuple[set[str], set[str]]:
    found: tuple[set[str], set[str]] = set(), set()
    before = ""
    for step in dis.get_instructions(code):
        if step.opname in _STORES:
            found[before in _IMPORTS].add(step.argval)
        before = step.opname
    return found


def star_imports(code: types.CodeType, module: types.ModuleType) -> Iterator[str]:
    """The full names of the modules whose names the module's code imports by `*`."""
    package, level, imported = getattr(module, "__package__", "") or "", 0, ""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_CONST" and isinstance(step.argval, int):
            level = step.argval
        elif step.opname == "IMPORT_NAME":
            imported = step.argval
            if level:
                imported = importlib.util.resolve_name("." * level + imported, package)
        elif step.opname == "IMPORT_STAR" or step.argrepr == "INTRINSIC_IMPORT_STAR":
            yield imported


@functools.lru_cache(maxsize=64)
def decorators(module: types.CodeType) -> dict[types.CodeType, int]:
    """How many decorators each function has that a module defines, or a class there; without those
    whose name is bound more than once."""
    found: dict[types.CodeType, int] = {}
    for body in _bodies(module):
        steps = list(dis.get_instructions(body))
        stored = collections.Counter(step.argval for step in steps if step.opname in _STORES)
        made, calls = None, 0
        for step in steps:
            if isinstance(step.argval, types.CodeType):
                made, calls = step.argval, 0
            elif step.opname == "CALL":
                calls += 1
            elif step.opname in _STORES and made is not None:
                if stored[step.argval] == 1:
                    found[made] = calls
                made = None
    return found


def _bodies(code: types.CodeType) -> Iterator[types.CodeType]:
    """A module's code, and that of its classes' bodies."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType) and not inner.co_flags & inspect.CO_OPTIMIZED:
            yield from _bodies(inner)
