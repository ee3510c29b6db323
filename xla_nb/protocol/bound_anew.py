"""Whether a name of a module has another function or class than the module's code gives it:
`F.gelu = F.relu`, `nn.BatchNorm1d = nn.Identity`.

Seen where the code has an import, a definition or a path of names (`act = torch.relu`) there. What
has the name that the code gives is taken for a newer form of it, which a library has put there.
"""

from __future__ import annotations

import collections
import dis
import functools
import importlib.util
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_KINDS = type, types.FunctionType, types.BuiltinFunctionType, functools.partial
_MADE = {"MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"}


class Origin(NamedTuple):
    """What code binds a name to: a name of the module `of`, a path of names there (`of` is empty),
    or a function or class with this code."""

    of: str = ""
    path: tuple[str, ...] = ()
    code: types.CodeType | None = None

    def found(self, names: Mapping[str, object]) -> object:
        """What is there now; None where that cannot be said."""
        module = sys.modules.get(self.of)
        found: Any = (vars(module) if isinstance(module, types.ModuleType) else names) or {}
        for name in self.path:
            if isinstance(found, types.ModuleType | type):
                found = vars(found)
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def is_other(
    value: Any, name: str, origins: Mapping[str, Origin], names: Mapping[str, object]
) -> bool:
    """Whether a value is not what code binds the name to; `names` are those that the code finds."""
    if not issubclass(type(value), _KINDS):  # asks nothing of a library's stand-ins
        return False
    origin = origins.get(name)
    if origin is None or getattr(value, "__name__", "") in (name, *origin.path[-1:]):
        return False
    if not origin.path:
        return getattr(value, "__code__", None) != origin.code
    found = origin.found(names)
    return isinstance(found, _KINDS) and found is not value


def differs_from_all(value: Any, name: str, modules: Iterable[object]) -> bool:
    """Whether a value is not what any of these modules has, whose names are all imported."""
    if not issubclass(type(value), _KINDS) or getattr(value, "__name__", "") == name:
        return False
    there = [vars(each).get(name) for each in modules if isinstance(each, types.ModuleType)]
    return any(isinstance(one, _KINDS) for one in there) and all(one is not value for one in there)


@functools.lru_cache(maxsize=1024)
def origins(code: types.CodeType, package: str) -> dict[str, Origin]:
    """Of the names that code binds only once."""
    found: dict[str, Origin] = {}
    stored: collections.Counter[str] = collections.Counter()
    constants: list[Any] = [0]
    module, origin, made = "", None, code
    for step in dis.get_instructions(code):
        name = step.opname
        if name == "EXTENDED_ARG":
            continue
        if name in ("STORE_NAME", "STORE_GLOBAL"):
            stored[step.argval] += 1
            if origin is not None:
                found[step.argval] = origin
        if name == "LOAD_CONST":
            constants = [constants[-1], step.argval]
            made = step.argval if isinstance(step.argval, types.CodeType) else made
        elif name == "IMPORT_NAME":
            module = _resolved(step.argval, constants[0], package)
        if name == "IMPORT_FROM":
            origin = Origin(module, (step.argval,))
        elif name == "LOAD_NAME":
            origin = Origin(path=(step.argval,))
        elif name == "LOAD_ATTR" and origin is not None and origin.path:
            origin = origin._replace(path=(*origin.path, step.argval))
        else:
            origin = Origin(code=made) if name in _MADE else None
    return {name: origin for name, origin in found.items() if stored[name] == 1}


def _resolved(name: str, level: object, package: str) -> str:
    if not isinstance(level, int) or not level:
        return name
    try:
        return importlib.util.resolve_name("." * level + name, package)
    except ImportError:
        return ""
