"""Modules that a program reaches, and what ranks lack of them.

Ranks import modules as their files have them. In the user's own modules the notebook's value wins:
what code of the program names there, and all constants, are set to what the notebook has. In other
modules nothing is set: a note says where the notebook has something else than ranks.

A module is reached where a value leads to it, where code names it or imports it, and where a
function or class of it is sent by its name. Its functions and classes are followed where code of
the program has their names.
"""

from __future__ import annotations

import abc
import functools
import io
import logging
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from xla_nb.pickling import by_reference, code_facts, module_objects, rebuild
from xla_nb.pickling.module_objects import is_own
from xla_nb.pickling.rebuild import EMPTY, Call

#: A module's name, and a name in it ("CFG", or "Settings.values" of a class).
Key: TypeAlias = tuple[str, str]
#: One of the user's own modules by its name, and how often it was imported again.
Import: TypeAlias = tuple[str, int]

_FUNCTIONS = types.FunctionType, types.MethodType, functools._lru_cache_wrapper, functools.partial
_FOLLOWED = (type, types.ModuleType, *_FUNCTIONS)
_DEFINITIONS = *code_facts.CODE, functools._lru_cache_wrapper
#: What is this process's alone, as locks are; loggers are sent by their names.
_BARE = logging.Logger, io.IOBase
_NAMED = type, types.FunctionType, types.BuiltinFunctionType, functools.partial
_LONG = 10_000  # characters or items of a constant
_AS_IMPORTED = (
    "`{0}.{1}` is on ranks as `import {0}` makes it: what it holds in the notebook cannot be sent"
)
_EDITED = (
    "the file of `{0}` was changed since the notebook imported it: ranks have what it said when "
    "they imported it, not what the notebook has in `{0}`"
)


class Told(NamedTuple):
    """How a function or a class is called and how often it is wrapped, for ranks to compare."""

    called: str
    wrapped: int


class Found(NamedTuple):
    """What the notebook has in the user's own modules, sentences for the user, and which imports of
    them ranks make the same."""

    values: dict[Key, object]
    notes: set[str]
    imports: set[Import]


class Uses:
    """Collects modules, what is sent by its name, and what code has of `names`, of globals and
    attributes, and of `imports`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.imports: set[str] = set()
        self._reached: dict[int, Any] = {}

    def add(self, reached: object) -> None:
        """A module, or what is sent by its name."""
        self._reached[id(reached)] = reached

    def of_code(self, code: types.CodeType) -> None:
        self.names |= code_facts.names_in(code)
        self.imports |= code_facts.imports_in(code)

    def take(self, other: Uses) -> None:
        self.names |= other.names
        self.imports |= other.imports
        self._reached |= other._reached

    @property
    def size(self) -> tuple[int, int]:
        """Another one once something has come that was not there."""
        return len(self.names) + len(self.imports), len(self._reached)

    def found(self, on_ranks: Container[Import] = ()) -> Found:
        """What all that leads to has now, for ranks that have these imports."""
        every, held = Uses(), list[types.ModuleType]()
        every.take(self)
        own = {
            one.__name__.rpartition(".")[2]: one for one in module_objects.of_this_process().own()
        }
        done, size = 0, (-1, 0)
        while every.size != size or len(every._reached) > done:
            size = every.size
            fresh = list(every._reached.values())[done:]
            done += len(fresh)
            held += (one for one in fresh if _is_imported(one))
            for one in fresh:
                every._follow(one)
            for name in every.imports:
                every._reach(sys.modules.get(name) or own.get(name.rpartition(".")[2]))
            for module in held:
                content = vars(module)
                for name in every.names & content.keys():
                    every._reach(content[name])
        return every._found(held, on_ranks)

    def _reach(self, value: object) -> None:
        if issubclass(type(value), _FOLLOWED):  # asks nothing of a library's stand-ins
            self._reached.setdefault(id(value), value)

    def _follow(self, definition: Any) -> None:
        """Take the names in the code of a function or a class of the user's own modules."""
        todo = [definition]
        if isinstance(definition, type):
            own = (base for base in definition.__mro__ if _is_of_own(base))
            todo = [part for base in own for part in list(vars(base).values())]
            for part in todo:
                if issubclass(type(part), type) and _is_of_own(part):
                    self._reach(part)
        for function in _inside(todo):
            module = sys.modules.get(function.__globals__.get("__name__", ""))
            is_there = getattr(module, "__dict__", None) is function.__globals__
            if is_there and isinstance(module, types.ModuleType) and is_own(module):
                self.add(module)
                self.of_code(function.__code__)

    def _found(self, held: Iterable[types.ModuleType], on_ranks: Container[Import]) -> Found:
        found, here = Found({}, set(), set()), module_objects.of_this_process()
        edited = functools.partial(here.is_edited, on_ranks=on_ranks)
        for module in held:
            name = module.__name__
            if not is_own(module):
                found.notes.update(
                    by_reference.note_of(name, one) for one in by_reference.names_in(module)
                )
                there = {(name, one): vars(module)[one] for one in self.names & vars(module).keys()}
                found.values.update(_told(there))
            elif edited(name):
                found.notes.add(_EDITED.format(name))
            else:
                found.imports.add((name, here.again[name]))
                found.values.update(_set_in(module, name, "", self.names))
        functions = (one for one in self._reached.values() if isinstance(one, types.FunctionType))
        under = (((one.__module__, one.__qualname__), one) for one in functions)
        found.values.update(_told({key: one for key, one in under if value_of(key) is one}))
        classes = (one for one in self._reached.values() if isinstance(one, type))
        for base in dict.fromkeys(base for cls in classes for base in cls.__mro__):
            name, path = base.__module__, base.__qualname__
            if not _is_of_own(base):
                methods = by_reference.methods_in(base) if name != "__main__" else ()
                found.notes.update(by_reference.note_of(name, f"{path}.{one}") for one in methods)
            elif _is_settable(base) and not edited(name):
                found.values.update(_set_in(base, name, f"{path}.", self.names))
        return found


def _is_imported(module: Any) -> bool:
    """Whether it is a module that ranks can import by its name."""
    return isinstance(module, types.ModuleType) and (
        sys.modules.get(vars(module).get("__name__", "")) is module
    )


def _is_of_own(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return isinstance(module, types.ModuleType) and is_own(module)


def _is_settable(cls: type) -> bool:
    """Whether its module has it under its name, and a metaclass does not see what is set."""
    return type(cls) in (type, abc.ABCMeta) and value_of((cls.__module__, cls.__qualname__)) is cls


def _inside(todo: list[Any]) -> Iterator[types.FunctionType]:
    """The functions that functions, methods, properties or decorators' results are made of."""
    seen = set[int]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is types.FunctionType:
            yield one
            closure = map(code_facts.content, one.__closure__ or ())
            todo += (each for each in closure if isinstance(each, _FUNCTIONS))
        kind = type(one)
        if kind in (property, staticmethod, classmethod, functools.cached_property) or isinstance(
            one, _FUNCTIONS
        ):
            names = "__func__", "__wrapped__", "fget", "fset", "fdel", "func"
            todo += (each for name in names if (each := getattr(one, name, None)) is not None)


def _set_in(holder: Any, module: str, prefix: str, names: set[str]) -> Iterator[tuple[Key, object]]:
    """What is to be set in a module of the user's own, or in a class there (`prefix`)."""
    for name, value in list(vars(holder).items()):
        key = module, prefix + name
        if name[:2] == "__" or name == "_abc_impl":
            continue
        if rebuild.is_in_place(*key, value):
            told = Told(*rebuild.called(rebuild.function_in(value)))
            if told.wrapped:  # maybe only here
                yield key, told
            continue
        if isinstance(holder, type) and hasattr(type(value), "__get__"):
            part = rebuild.function_in(value)
            if not issubclass(type(part), code_facts.CODE):  # a descriptor
                continue
            is_set = code_facts.is_the_notebooks(part) or _is_elsewhere(part, name in names)
        elif issubclass(type(value), _DEFINITIONS):
            is_set = code_facts.is_the_notebooks(value) or _is_elsewhere(value, name in names)
        else:
            is_set = name in names or _is_short(value)
        if is_set:
            yield key, value


def _is_elsewhere(definition: Any, is_named: bool) -> bool:
    """Whether it is another's, which a module has under a name, or one that a function has made."""
    if not is_named or not isinstance(definition, type | types.FunctionType):
        return is_named
    return code_facts.is_found_by_name(definition) or "<locals>" in definition.__qualname__


def _is_short(value: object) -> bool:
    """Whether it is a constant that may well be sent although no code names it."""
    return code_facts.is_ready(value) and not (hasattr(value, "__len__") and len(value) > _LONG)


def value_of(key: Key) -> object:
    """What a module has under a name, or a class of it itself; remake.EMPTY if that is gone."""
    found: object = sys.modules.get(key[0])
    for name in key[1].split("."):
        found = vars(found).get(name, EMPTY) if hasattr(found, "__dict__") else EMPTY
    return found


def known(keys: Iterable[Key], on_ranks: Container[Import]) -> dict[Any, object]:
    """What the notebook has now where it had set something before: also what was there first, or
    nothing any more."""
    edited = module_objects.of_this_process().is_edited
    return {key: value_of(key) for key in sorted(keys) if not edited(key[0], on_ranks)}


def sent(key: Key, value: object) -> object:
    """What makes a rank's module have this, or tells that it has something else."""
    if isinstance(value, Told):
        return Call(rebuild.compare, (*key, tuple(value)))
    kind = type(value)
    if issubclass(kind, _BARE) or kind.__module__ in ("_thread", "threading"):
        return Call(rebuild.compare, (*key, (kind.__name__, 0)))
    place = module_objects.of_this_process().place(value)
    if place is not None and place.key == key:
        return value  # which is put there wherever it is sent
    is_back = rebuild.is_in_place(*key, value)
    return Call(rebuild.put_back, (*key, Call(rebuild.own, key) if is_back else value))


def note_of(key: Key, value: object) -> str:
    """Of what cannot be sent."""
    if isinstance(value, type | types.FunctionType):
        return by_reference.note_of(*key)
    return _AS_IMPORTED.format(*key)


def _told(found: dict[Key, object]) -> dict[Key, object]:
    """How those are called that may be others on ranks."""
    return {
        key: Told(*rebuild.called(value))
        for key, value in found.items()
        if _is_called_otherwise(key, value)
    }


def _is_called_otherwise(key: Key, value: Any) -> bool:
    """Whether a function or a class of a library has another name than there, or is wrapped, as
    after `F.relu = F.silu`. The library may have made it so itself, which ranks can tell."""
    root = key[0].partition(".")[0]
    if root in sys.stdlib_module_names or not issubclass(type(value), _NAMED):
        return False
    if rebuild.called(value) == (key[1].rpartition(".")[2], 0) or code_facts.is_the_notebooks(
        value
    ):
        return False
    made_in = {str(getattr(value, "__module__", None))}
    for one in rebuild.unwrapped(value):
        made_in.add(str(getattr(one, "__globals__", {}).get("__name__", root)))
    known = {root, "builtins", "functools", "None"}  # not by another's import
    return {name.partition(".")[0] for name in made_in} <= known
