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
from pathlib import Path

#: Packages whose objects have the state of the process.
OF_THE_PROCESS = sys.stdlib_module_names | {"numpy", "torch", "torch_xla"}
_NOT_OWN = OF_THE_PROCESS | {__package__.partition(".")[0]}
_IMPORTS = {"IMPORT_FROM", "IMPORT_NAME"}
_STORES = {"STORE_NAME", "STORE_GLOBAL"}


def is_own(module: types.ModuleType) -> bool:
    """Whether it is a file of the user's, not of an installed package."""
    name, file = (vars(module).get(about) for about in ("__name__", "__file__"))
    if not isinstance(file, str) or not isinstance(name, str):
        return False
    if "-packages/" in file or name.partition(".")[0] in _NOT_OWN:
        return False
    depth = 1 + name.count(".") + file.endswith("/__init__.py")
    return file.endswith(".py") and not _is_installed(file.rsplit("/", depth)[0])


@functools.lru_cache(maxsize=1024)
def _is_installed(folder: str) -> bool:
    """Whether pip has put packages there (`--target`)."""
    return any(Path(folder).glob("*.dist-info"))


def written(module: types.ModuleType) -> int | None:
    """When its file was written last."""
    try:
        return Path(module.__file__ or "").stat().st_mtime_ns
    except (AttributeError, OSError, TypeError):
        return None


def of(name: str) -> types.CodeType | None:
    """A module's code, as its file has it now; None where it is not Python's."""
    module = sys.modules.get(name)
    if module is None:
        return None
    return _read(name, str(getattr(module, "__file__", None)), written(module))


@functools.lru_cache(maxsize=1024)
def _read(name: str, file: str, written: int | None) -> types.CodeType | None:
    """The same, read once for as long as the file stays as it is."""
    try:
        code: types.CodeType | None = sys.modules[name].__spec__.loader.get_code(name)  # type: ignore
    except (AttributeError, ImportError, OSError, SyntaxError):
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


@functools.lru_cache(maxsize=64)
def constants(code: types.CodeType) -> dict[str, object]:
    """What code binds to constants, also as in `a, b = 1, 2`, without names that it binds more
    than once."""
    found: dict[str, object] = {}
    stored: collections.Counter[str] = collections.Counter()
    waiting: list[object] = []  # for names, the last one first
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_CONST":
            waiting = [step.argval]
        elif step.opname == "UNPACK_SEQUENCE" and waiting:
            waiting = list(reversed(waiting[0]))  # type: ignore[call-overload]
        elif step.opname in _STORES:
            stored[step.argval] += 1
            if waiting:
                found[step.argval] = waiting.pop()
        elif step.opname != "EXTENDED_ARG":
            waiting = []
    return {name: value for name, value in found.items() if stored[name] == 1}


def body(cls: type) -> types.CodeType | None:
    """The code of a class's body in its module's code; None where it is not found."""
    module = of(cls.__module__)
    return _classes(module).get(cls.__qualname__) if module else None


@functools.lru_cache(maxsize=64)
def _classes(module: types.CodeType) -> dict[str, types.CodeType]:
    return {one.co_qualname: one for one in list(_bodies(module))[1:]}


@functools.lru_cache(maxsize=1024)
def star_imports(code: types.CodeType, package: str) -> tuple[str, ...]:
    """The full names of the modules whose names a module's code imports by `*`."""
    level, imported, found = 0, "", list[str]()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_CONST" and isinstance(step.argval, int):
            level = step.argval
        elif step.opname == "IMPORT_NAME":
            imported = step.argval
            if level:
                imported = importlib.util.resolve_name("." * level + imported, package)
        elif step.opname == "IMPORT_STAR" or step.argrepr == "INTRINSIC_IMPORT_STAR":
            found.append(imported)
    return tuple(found)


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
