"""Modules that a program reaches, and what ranks lack of them.

Ranks import modules from their files. In the user's own modules the notebook's value wins:
everything that code of the program names there, and all constants, are set to the notebook's
values. In other modules nothing is set; a note reports where the notebook differs from ranks.

A module is reached if a value leads to it, if code names or imports it, or if one of its functions
or classes is sent by name. Its functions and classes are followed if code of the program names
them.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from xla_nb.pickling import by_reference, code_facts, module_objects, rebuild
from xla_nb.pickling.module_objects import is_own, is_special
from xla_nb.pickling.rebuild import Call

Key: TypeAlias = module_objects.Key

_FOLLOWED = (type, types.ModuleType, *code_facts.FUNCTIONS)
_DEFINITIONS = *code_facts.CODE, functools._lru_cache_wrapper
#: Objects that belong to this process alone, like locks; loggers are sent by name.
_BARE = logging.Logger, io.IOBase
_NAMED = type, types.FunctionType, types.BuiltinFunctionType, functools.partial
_LONG = 10_000  # characters or items of a constant
_FIRST = {"__init__", "forward"}  # methods that code calls without their names
_AS_IMPORTED = (
    "ranks use `{0}.{1}` as `import {0}` creates it: its value in the notebook cannot be sent"
)
_FORMER_BASE = (
    "`{}` extends `{}` as it was before `{}` was imported again; on ranks it extends the new one"
)
_EDITED = (
    "the file of `{0}` has changed since the notebook imported it: ranks use the version that they "
    "imported, not the notebook's `{0}`"
)


class Told(NamedTuple):
    """The name of a function or class and how often it is wrapped, for ranks to compare; for one
    still in place in the user's own module also how the module defined it."""

    called: str
    wrapped: int
    defined: tuple[str, str, int] = "", "", 0


class Found(NamedTuple):
    """The notebook's values in the user's own modules, sentences for the user, and which of these
    modules ranks import as the notebook did."""

    values: dict[Key, object]
    notes: set[str]
    imports: set[str]


class Uses:
    """Collects modules, what is sent by name, and from code its `names` (globals and attributes)
    and `imports`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.imports: set[str] = set()
        self._reached: dict[int, Any] = {}

    def add(self, reached: object) -> None:
        """Add a module, or something sent by its name; ignore anything else."""
        if issubclass(type(reached), _FOLLOWED):  # does not touch libraries' stand-ins
            self._reached.setdefault(id(reached), reached)

    def of_code(self, code: types.CodeType) -> None:
        self.names |= code_facts.names_in(code)
        self.imports |= code_facts.imports_in(code)

    def take(self, other: Uses) -> None:
        self.names |= other.names
        self.imports |= other.imports
        self._reached |= other._reached

    @property
    def size(self) -> tuple[int, int]:
        """A value that changes whenever something new is added."""
        return len(self.names) + len(self.imports), len(self._reached)

    def found(self, on_ranks: Container[str], is_behind: Callable[[str], bool]) -> Found:
        """Return the current contents of everything reached, for ranks that have imported
        `on_ranks`; for modules of which `is_behind` is true also their definitions."""
        every, held = Uses(), list[types.ModuleType]()
        every.take(self)
        own = {
            one.__name__.rpartition(".")[2]: one for one in module_objects.of_this_process().own()
        }
        done, size = 0, (-1, 0)
        while every.size != size:
            size = every.size
            fresh = list(every._reached.values())[done:]
            done += len(fresh)
            held += (one for one in fresh if _is_imported(one))
            for one in fresh:
                every._follow(one)
            for name in every.imports:
                every.add(sys.modules.get(name) or own.get(name.rpartition(".")[2]))
            for module in held:
                content = vars(module)
                for name in every.names & content.keys():
                    every.add(content[name])
        return every._found(held, on_ranks, is_behind)

    def _follow(self, definition: Any) -> None:
        """Add the names in the code of a function or class of the user's own modules."""
        parts = [definition]
        if isinstance(definition, type):
            own = (base for base in _bases(definition) if _own(base.__module__))
            parts = [part for base in own for part in list(vars(base).values())]
            for part in parts:
                if issubclass(type(part), type) and _own(part.__module__):
                    self.add(part)
        for function in code_facts.functions_of(parts):
            module = _own(function.__globals__.get("__name__", ""))
            if module is not None:  # %autoreload executes added functions in a copy of its dict
                self.add(module)
                self.of_code(function.__code__)

    def _found(
        self,
        held: Iterable[types.ModuleType],
        on_ranks: Container[str],
        is_behind: Callable[[str], bool],
    ) -> Found:
        found = Found({}, set(), set())
        for module in _of_torch():
            found.notes.update(
                by_reference.note_of(module.__name__, one) for one in by_reference.names_in(module)
            )
        for module in held:
            name = module.__name__
            if not is_own(module):
                found.notes.update(
                    by_reference.note_of(name, one) for one in by_reference.names_in(module)
                )
                for one in self.names & vars(module).keys():
                    found.values.update(_told((name, one), vars(module)[one]))
            elif _is_edited(name, on_ranks):
                found.notes.add(_EDITED.format(name))
            else:
                found.imports.add(name)
                found.values.update(_set_in(module, name, "", self.names, is_behind(name)))
        for one in self._reached.values():
            former = (
                base for base in _bases(one) if module_objects.of_this_process().was_replaced(base)
            )
            found.notes.update(
                _FORMER_BASE.format(_path(one), _path(base), base.__module__)
                for base in former
                if base is not one and not is_behind(base.__module__)
            )
        reached = [*getattr(sys.modules.get("torch"), "Tensor", object).__mro__]
        reached += (base for one in self._reached.values() for base in _bases(one))
        for one in dict.fromkeys(reached):
            name, path = one.__module__, one.__qualname__
            if not _own(name):
                methods = by_reference.methods_in(one) if name != "__main__" else ()
                found.notes.update(by_reference.note_of(name, f"{path}.{each}") for each in methods)
                is_there = not isinstance(one, type) and code_facts.value_of(name, path) is one
                found.values.update(_told((name, path), one) if is_there else {})
            elif _is_settable(one) and not (_is_edited(name, on_ranks) or is_behind(name)):
                for path, holder in module_objects.holders(one):
                    found.values.update(_set_in(holder, name, f"{path}.", self.names))
        return found


def _path(definition: Any) -> str:
    return f"{definition.__module__}.{definition.__qualname__}"


def _of_torch() -> Iterator[types.ModuleType]:
    """Yield modules whose functions torch's own code calls, even if the program does not name
    them."""
    names = "torch", "torch.nn.functional", "torch.nn.init"
    return (sys.modules[name] for name in names if name in sys.modules)


def _is_edited(name: str, on_ranks: Container[str]) -> bool:
    """True if ranks, which have imported these modules, will read another version of the file than
    the notebook did."""
    return name not in on_ranks and module_objects.of_this_process().is_edited(name)


def _is_imported(module: Any) -> bool:
    """True for a module that ranks can import by its name."""
    if not isinstance(module, types.ModuleType):
        return False
    name = vars(module).get("__name__", "")
    return name != "__main__" and sys.modules.get(name) is module


def _own(name: str) -> types.ModuleType | None:
    """Return the user's own module of this name, or None."""
    module = sys.modules.get(name)
    return module if isinstance(module, types.ModuleType) and is_own(module) else None


def _bases(definition: Any) -> tuple[Any, ...]:
    """Return a function, or a class with everything it inherits from: its bases and its
    metaclass."""
    kind: Any = type(definition)
    if issubclass(kind, type):
        return *definition.__mro__, *kind.__mro__
    return (definition,) if kind is types.FunctionType else ()


def _is_settable(definition: Any) -> bool:
    """True unless a library's metaclass intercepts setting attributes, as that of enums does."""
    kind: Any = type(definition)
    sees = issubclass(kind, type) and kind.__setattr__ is not type.__setattr__
    return not sees or _own(kind.__module__) is not None


def _set_in(
    holder: Any, module: str, prefix: str, names: set[str], is_behind: bool = False
) -> Iterator[tuple[Key, object]]:
    """Yield what must be set in a module of the user's own, or in a class or function in it
    (`prefix`): a function has no content other than what it names."""
    is_function, called = type(holder) is types.FunctionType, names | _FIRST
    for name, value in list(rebuild.contents(holder).items()):
        key, part = (module, prefix + name), rebuild.function_in(value)
        is_code = issubclass(type(part), _DEFINITIONS)
        is_descriptor = isinstance(holder, type) and hasattr(type(value), "__get__")
        # Python calls special methods of a class without naming them.
        is_method = is_code and (isinstance(holder, type) or name in called)
        if (is_special(name) and not is_method) or name == "_abc_impl":
            continue
        if is_behind and is_code and getattr(part, "__module__", "") == module:
            yield key, value
        elif rebuild.is_in_place(*key, value):
            told = Told(*rebuild.called(part), rebuild.defined(part))
            if told.wrapped or name in called:  # may differ on ranks
                yield key, told
        elif is_code or is_descriptor:
            is_other = is_code and name in names and _is_elsewhere(part)
            if is_other or _is_the_notebooks(value):
                yield key, value
        elif is_function or name in names or _is_short(value):
            yield key, value


def _is_the_notebooks(value: Any) -> bool:
    """True if a class or function is the notebook's, or any function of a property or method."""
    functions = code_facts.functions_of([value])
    return any(map(code_facts.is_the_notebooks, [rebuild.function_in(value), *functions]))


def _is_elsewhere(definition: Any) -> bool:
    """True if it is another module's, was created by a function, or its own name now holds
    something else, such as after the module was imported again or where it was set aside for that
    (`mod._fit = mod.fit`); ranks' module creates its own."""
    if not isinstance(definition, type | types.FunctionType):
        return True
    if code_facts.is_found_by_name(definition) or "<locals>" in definition.__qualname__:
        return True
    if code_facts.value_of(definition.__module__, definition.__qualname__) is not rebuild.EMPTY:
        return True
    return module_objects.of_this_process().was_replaced(definition)


def _is_short(value: object) -> bool:
    """True for a constant small enough to send although no code names it."""
    return code_facts.is_ready(value) and not (hasattr(value, "__len__") and len(value) > _LONG)


def known(keys: Iterable[Key], on_ranks: Container[str]) -> dict[Any, object]:
    """Return the notebook's current values where it had set something before, including restored
    originals and deleted names. A class attribute that no longer exists is left unchanged."""
    same = {name for name, _ in keys if not _is_edited(name, on_ranks)}
    there = sorted(key for key in keys if key[0] in same and _is_in_its_own(*key))
    return {key: code_facts.value_of(*key) for key in there}


def _is_in_its_own(module: str, name: str) -> bool:
    """True if a name is held by the module itself, or by something the module defined."""
    outer = name.rpartition(".")[0]
    return not outer or rebuild.is_in_place(module, outer, code_facts.value_of(module, outer))


def sent(key: Key, value: object, is_behind: bool) -> object:
    """Return what sets this in a rank's module, or reports that the rank has something else."""
    if isinstance(value, Told):
        return Call(rebuild.compare, (*key, *value))
    kind = type(value)
    if issubclass(kind, _BARE) or kind.__module__ in ("_thread", "threading"):
        return Call(rebuild.compare, (*key, kind.__name__, 0))
    place = module_objects.of_this_process().place(value)
    if place is not None and place.key == key:
        return value  # sending it puts it there
    is_back = not is_behind and rebuild.is_in_place(*key, value)
    return Call(rebuild.put_back, (*key, Call(rebuild.own, key) if is_back else value))


def note_of(key: Key, value: object) -> str:
    """Return the note for something that cannot be sent."""
    if isinstance(value, type | types.FunctionType):
        return by_reference.note_of(*key)
    return _AS_IMPORTED.format(*key)


def _told(key: Key, value: Any) -> dict[Key, object]:
    """Return the description of a library's function or class whose name differs from its
    attribute, or which is wrapped, such as after `F.relu = F.silu`: the library may have done so
    itself, which ranks can find out. Empty for others."""
    root, named = key[0].partition(".")[0], (key[1].rpartition(".")[2], 0)
    if root in sys.stdlib_module_names or not issubclass(type(value), _NAMED):
        return {}
    if rebuild.called(value) == named or code_facts.is_the_notebooks(value):
        return {}
    made_in = {str(getattr(value, "__module__", None))}
    for one in rebuild.unwrapped(value):
        made_in.add(str(getattr(one, "__globals__", {}).get("__name__", root)))
    is_its = {name.partition(".")[0] for name in made_in} <= {root, "builtins", "functools", "None"}
    return {key: Told(*rebuild.called(value))} if is_its else {}  # not from another package
