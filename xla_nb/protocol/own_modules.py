"""What a program uses of the user's own modules, followed by the names that their code has.

Ranks import such a module as its file has it. What the notebook has put into its objects, and has
set in it or in its classes, is sent where code of the program names it: `helper.REGISTRY["mine"]`,
and what the functions read that are called as `helper.build("mine")`.
"""

from __future__ import annotations

import abc
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xla_nb.protocol import bound_anew, module_code, parts, replaced
from xla_nb.protocol.remake import EMPTY

_FUNCTIONS = types.FunctionType, types.MethodType, functools._lru_cache_wrapper, functools.partial


class Uses:
    """Follows code; what it finds is to be taken.

    found  names in modules ("CFG", or "Settings.values" of a class), each with its module's
    any    whether some were found
    """

    def __init__(self) -> None:
        self.any = False
        self._found: list[tuple[str, str]] = []
        self._seen: set[tuple[int, str]] = set()
        self._followed: dict[int, object] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def take(self) -> list[tuple[str, str]]:
        """Modules' names and names in them, which were not taken yet."""
        found, self._found = self._found, []
        self.any |= bool(found)
        return found

    def of_code(self, code: types.CodeType, values: Iterable[object]) -> None:
        """Code for which its names stand for these values, among them modules."""
        modules = [one for one in values if isinstance(one, types.ModuleType)]
        if modules:
            names = parts.names_in(code)
            for module in modules:
                self.of_module(module, names)

    def of_module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """Code that may read these names of a module."""
        self._read(module, set(names), set())

    def _read(self, module: types.ModuleType, names: set[str], above: set[int]) -> None:
        content = vars(module)
        if id(module) in above or not (module_code.is_own(module) or _is_namespace(content)):
            return
        replaced_here = {*replaced.names_in(module), *replaced.bound_anew_in(module)}
        for name in sorted((names | replaced_here) & content.keys()):
            value = content[name]
            if isinstance(value, types.ModuleType):
                self._read(value, names, {*above, id(module)})
            elif name[:2] != "__" and (id(module), name) not in self._seen:
                self._seen.add((id(module), name))
                self._found.append((module.__name__, name))
                self.of_definition(value)

    def of_definition(self, definition: Any) -> None:
        """A function or a class, or what wraps one; of all others nothing is followed."""
        if id(definition) in self._followed:
            return
        if not isinstance(definition, (type, *_FUNCTIONS)):
            return
        self._followed[id(definition)] = definition
        if isinstance(definition, type):
            for base in definition.__mro__:
                self._follow_class(base)
        for function in _inside(definition):
            self._follow_function(function)

    def _follow_class(self, cls: type) -> None:
        module = sys.modules.get(cls.__module__)
        if not isinstance(module, types.ModuleType) or not module_code.is_own(module):
            return
        code = module_code.body(cls)
        bound = module_code.bound(code) if code else set()
        for name, part in list(vars(cls).items()):
            is_given = name in bound or type(part) in parts.PLAIN
            if is_given and name[:2] != "__" and not _is_descriptor(part):
                self._found.append((module.__name__, f"{cls.__qualname__}.{name}"))
            for function in _inside(part):
                self._follow_function(function)
        self._found += ((module.__name__, path) for path in replaced.methods_in(cls))

    def _follow_function(self, function: types.FunctionType) -> None:
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if isinstance(module, types.ModuleType) and vars(module) is function.__globals__:
            self.of_module(module, parts.names_in(function.__code__))


def _is_namespace(content: Mapping[str, Any]) -> bool:
    """Whether it is of a folder without an `__init__.py`, which has modules alone."""
    return content.get("__file__") is None and "__path__" in content


def _is_descriptor(part: object) -> bool:
    """Whether a class gives out something else, functions aside."""
    return hasattr(type(part), "__get__") and not isinstance(part, types.FunctionType)


def _inside(part: Any) -> Iterator[types.FunctionType]:
    """The functions that a function, a method, a property or a decorator's result is made of."""
    todo, seen = [part], set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is types.FunctionType:
            yield one
            closure = map(parts.content, one.__closure__ or ())
            todo += (each for each in closure if isinstance(each, _FUNCTIONS))
        kind = type(one)
        if kind in (property, staticmethod, classmethod, functools.cached_property) or isinstance(
            one, _FUNCTIONS
        ):
            names = "__func__", "__wrapped__", "fget", "fset", "fdel", "func"
            todo += (each for name in names if (each := getattr(one, name, None)) is not None)


def held(module: str, path: str) -> object:
    """What a module has under a name, or a class of it itself; remake.EMPTY if that is gone."""
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = vars(found).get(name, EMPTY) if hasattr(found, "__dict__") else EMPTY
    return found


def is_back(module: str, path: str) -> bool:
    """Whether a name that had something else has what the module's file gives it, or nothing."""
    value = held(module, path)
    return value is EMPTY or not is_set_here(module, path, value)


def is_set_here(module: str, path: str, value: object) -> bool:
    """Whether a name of a module, or of a class in it, has not what the module's file gives it, as
    far as that says: a constant, a function or a class; or, of a module, nothing at all."""
    if isinstance(value, type | types.FunctionType) and replaced.is_the_notebooks(value):
        return True
    holder, _, name = path.rpartition(".")
    if holder:
        cls: Any = held(module, holder)
        code = module_code.body(cls) if type(cls) in (type, abc.ABCMeta) else None
        if code is None or not parts.is_ready(value):
            return False
        if type(value) in parts.PLAIN and name not in module_code.bound(code):
            return True
        return _differs(code, name, value, {**vars(sys.modules[module]), **vars(cls)})
    code = module_code.of(module)
    if code is None:
        return False
    held_there = sys.modules[module]
    if _differs(code, name, value, vars(held_there)):
        return True
    return not replaced.is_bound(held_there, name)


def _differs(code: types.CodeType, name: str, value: object, names: Mapping[str, Any]) -> bool:
    """Whether code, which finds these names, binds one to another constant, function or class."""
    constants = module_code.constants(code)
    if name not in constants:
        origins = bound_anew.origins(code, names.get("__package__") or "")
        return bound_anew.is_other(value, name, origins, names)
    made = constants[name]
    return made is not value and (type(made) is not type(value) or made != value)
