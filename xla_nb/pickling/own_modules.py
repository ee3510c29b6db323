"""Modules that a program reaches, and what ranks lack of them.

Ranks import modules from their files. In the user's own modules the notebook's value wins:
everything that code of the program names there, and all constants, are set to the notebook's
values. In other modules nothing is set; a note reports where the notebook differs from ranks.

A module is reached if a value leads to it, if code names or imports it, or if one of its functions
or classes is sent by name. Its functions and classes are followed if code of the program names
them.
"""

from __future__ import annotations

import contextvars
import functools
import io
import logging
import sys
import threading
import types
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from xla_nb.pickling import by_reference, code_facts, module_objects, rebuild
from xla_nb.pickling.module_objects import is_own, is_special
from xla_nb.pickling.rebuild import Call

Key: TypeAlias = module_objects.Key

_FOLLOWED_TYPES = (type, types.ModuleType, *code_facts.FUNCTIONS)
_DEFINITIONS = *code_facts.CODE, functools._lru_cache_wrapper
#: Objects that belong to this process alone, like locks; loggers are sent by name.
_PROCESS_TYPES = logging.Logger, io.IOBase
_NAMED_TYPES = type, types.FunctionType, types.BuiltinFunctionType, functools.partial
_LONGEST = 10_000  # characters or items of a constant
_IMPLICIT_METHODS = {"__init__", "forward"}  # methods that code calls without their names
_AS_IMPORTED = (
    "ranks use `{0}.{1}` as `import {0}` creates it: its value in the notebook cannot be sent"
)
_FORMER_BASE = (
    "`{}` extends `{}` as it was before `{}` was imported again; on ranks it extends the new one"
)
_THROUGH_MAIN = (
    "code that looks names up in `__main__` or in a frame finds on ranks only those notebook "
    "variables whose names appear in the cell or in functions of the notebook"
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


#: The notebook's values in the user's own modules, sentences for the user, and which of these
#: modules ranks import as the notebook did.
Found: TypeAlias = tuple[dict[Key, object], set[str], set[str]]


class Uses:
    """Collects modules, what is sent by name, and from code its `names` (globals and attributes)
    and `imports`."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.imports: set[str] = set()
        self._reached: dict[int, Any] = {}

    def add(self, reached: object) -> None:
        """Add a module, or something sent by its name; ignore anything else."""
        if issubclass(type(reached), _FOLLOWED_TYPES):  # does not touch libraries' stand-ins
            self._reached.setdefault(id(reached), reached)

    def of_code(self, code: types.CodeType) -> None:
        self.names |= code_facts.names_in(code)
        self.imports |= code_facts.imports_in(code)

    def take(self, other: Uses) -> None:
        self.names |= other.names
        self.imports |= other.imports
        self._reached |= other._reached

    def submodules(self) -> set[str]:
        """Return the imported submodules of the packages added whose dotted parts code names, such
        as `concurrent.futures`."""
        modules = (obj for obj in self._reached.values() if isinstance(obj, types.ModuleType))
        packages = tuple(f"{obj.__name__}." for obj in modules if getattr(obj, "__package__", None))
        named = (name for name in list(sys.modules) if name.startswith(packages))
        return {name for name in named if self.names.issuperset(name.split(".")[1:])}

    @property
    def size(self) -> tuple[int, int]:
        """A value that changes whenever something new is added."""
        return len(self.names) + len(self.imports), len(self._reached)

    def found(self, on_ranks: Container[str], is_behind: Callable[[str], bool]) -> Found:
        """Return the current contents of everything reached, for ranks that have imported
        `on_ranks`; for modules of which `is_behind` is true also their definitions."""
        uses, modules = Uses(), list[types.ModuleType]()
        uses.take(self)
        own_modules = {
            obj.__name__.rpartition(".")[2]: obj for obj in module_objects.of_this_process().own()
        }
        done, size, sought = 0, (-1, 0), set[str]()
        while uses.size != size:
            size = uses.size
            new = list(uses._reached.values())[done:]
            done += len(new)
            modules += (obj for obj in new if _is_imported(obj))
            for obj in new:
                uses._follow(obj)
            for name in [*uses.imports]:
                module = sys.modules.get(name) or own_modules.get(name.rpartition(".")[2])
                uses.add(module)
                if module is None and name not in sought:
                    sought.add(name)
                    if (code := module_objects.code_of(name)) is not None:  # ranks will import it
                        uses.of_code(code)
            for module in modules:
                namespace = vars(module)
                for name in uses.names & namespace.keys():
                    uses.add(namespace[name])
        return uses._collect(modules, on_ranks, is_behind)

    def _follow(self, definition: Any) -> None:
        """Add the names in the code of a function or class of the user's own modules."""
        parts = [definition]
        if isinstance(definition, type):
            own_bases = (base for base in _bases(definition) if _own_module(base.__module__))
            parts = [part for base in own_bases for part in list(vars(base).values())]
            for part in parts:
                if issubclass(type(part), type) and _own_module(part.__module__):
                    self.add(part)
        for function in code_facts.functions_of(parts):
            module = _own_module(function.__globals__.get("__name__", ""))
            if module is not None:  # %autoreload executes added functions in a copy of its dict
                self.add(module)
                self.of_code(function.__code__)

    def _collect(
        self,
        modules: Iterable[types.ModuleType],
        on_ranks: Container[str],
        is_behind: Callable[[str], bool],
    ) -> Found:
        values, notes, imports = dict[Key, object](), set[str](), set[str]()
        if self._looks_in_main:
            notes.add(_THROUGH_MAIN)
        for module in dict.fromkeys([*_torch_modules(), *modules]):
            name = module.__name__
            if not is_own(module):
                notes.update(
                    by_reference.note_of(name, one) for one in by_reference.names_in(module)
                )
                for attribute in self.names & vars(module).keys():
                    values.update(_comparisons((name, attribute), vars(module)[attribute]))
            elif _is_edited(name, on_ranks):
                notes.add(_EDITED.format(name))
            else:
                imports.add(name)
                values.update(_values_to_set(module, name, "", self.names, is_behind(name)))
        reached = [*getattr(sys.modules.get("torch"), "Tensor", object).__mro__]
        for definition in self._reached.values():
            bases = _bases(definition)
            reached += bases
            notes.update(
                _FORMER_BASE.format(_path(definition), _path(base), base.__module__)
                for base in bases
                if base is not definition and not is_behind(base.__module__)
                if module_objects.of_this_process().was_replaced(base)
            )
        for obj in dict.fromkeys(reached):
            name, path = obj.__module__, obj.__qualname__
            if not _own_module(name):
                methods = by_reference.methods_in(obj) if name != "__main__" else ()
                notes.update(by_reference.note_of(name, f"{path}.{method}") for method in methods)
                is_found = not isinstance(obj, type) and code_facts.value_of(name, path) is obj
                values.update(_comparisons((name, path), obj) if is_found else {})
            elif _is_settable(obj) and not (_is_edited(name, on_ranks) or is_behind(name)):
                for path, holder in module_objects.holders(obj):
                    values.update(_values_to_set(holder, name, f"{path}.", self.names))
        notes.update(
            _AS_IMPORTED.format(*key) for key, value in values.items() if is_of_this_thread(value)
        )
        return values, notes, imports

    @property
    def _looks_in_main(self) -> bool:
        """Whether code reaches the notebook's namespace other than by `globals()`."""
        by_name = "__main__" in self.imports or {"__main__", "modules"} <= self.names
        return by_name or "f_globals" in self.names


def _path(definition: Any) -> str:
    return f"{definition.__module__}.{definition.__qualname__}"


def _torch_modules() -> Iterator[types.ModuleType]:
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


def _own_module(name: str) -> types.ModuleType | None:
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
    intercepts = issubclass(kind, type) and kind.__setattr__ is not type.__setattr__
    return not intercepts or _own_module(kind.__module__) is not None


def _values_to_set(
    holder: Any, module: str, prefix: str, names: set[str], is_behind: bool = False
) -> Iterator[tuple[Key, object]]:
    """Yield what must be set in a module of the user's own, or in a class or function in it
    (`prefix`): a function has no content other than what it names."""
    is_function, called_names = type(holder) is types.FunctionType, names | _IMPLICIT_METHODS
    for name, value in list(rebuild.contents(holder).items()):
        key, part = (module, prefix + name), rebuild.function_in(value)
        is_code = issubclass(type(part), _DEFINITIONS)
        is_descriptor = isinstance(holder, type) and hasattr(type(value), "__get__")
        # Python calls special methods of a class without naming them.
        is_method = is_code and (isinstance(holder, type) or name in called_names)
        if (is_special(name) and not is_method) or name == "_abc_impl":
            continue
        if is_behind and is_code and getattr(part, "__module__", "") == module:
            yield key, value
        elif rebuild.is_in_place(*key, value):
            comparison = Told(*rebuild.called(part), rebuild.defined(part))
            if comparison.wrapped or name in called_names:  # may differ on ranks
                yield key, comparison
        elif is_code or is_descriptor:
            if (is_code and name in names) or _is_the_notebooks(value):
                yield key, value
        elif is_function or name in names or _is_short(value):
            yield key, value


def _is_the_notebooks(value: Any) -> bool:
    """True if a class or function is the notebook's, or any function of a property or method."""
    functions = code_facts.functions_of([value])
    return any(map(code_facts.is_the_notebooks, [rebuild.function_in(value), *functions]))


def is_of_this_thread(value: object) -> bool:
    """True for a `threading.local` or `ContextVar` that this thread has given a value."""
    if isinstance(value, contextvars.ContextVar):
        return value in contextvars.copy_context()
    return isinstance(value, threading.local) and bool(vars(value))


def _is_short(value: object) -> bool:
    """True for a constant small enough to send although no code names it."""
    return code_facts.is_ready(value) and not (hasattr(value, "__len__") and len(value) > _LONGEST)


def known(keys: Iterable[Key], on_ranks: Container[str]) -> dict[Any, object]:
    """Return the notebook's current values where it had set something before, including restored
    originals and deleted names. A class attribute that no longer exists is left unchanged."""
    unedited = {name for name, _ in keys if not _is_edited(name, on_ranks)}
    existing = sorted(key for key in keys if key[0] in unedited and _is_in_own_code(*key))
    return {key: code_facts.value_of(*key) for key in existing}


def _is_in_own_code(module: str, name: str) -> bool:
    """True if a name is held by the module itself, or by something the module defined."""
    outer = name.rpartition(".")[0]
    return not outer or rebuild.is_in_place(module, outer, code_facts.value_of(module, outer))


def sent(key: Key, value: object, is_behind: bool) -> object:
    """Return what sets this in a rank's module, or reports that the rank has something else."""
    if isinstance(value, Told):
        return Call(rebuild.compare, (*key, *value))
    kind = type(value)
    if issubclass(kind, _PROCESS_TYPES) or kind.__module__ in ("_thread", "threading"):
        return Call(rebuild.compare, (*key, kind.__name__, 0))
    if module_objects.of_this_process().place(value) == key:
        return value  # sending it puts it there
    is_original = not is_behind and rebuild.is_in_place(*key, value)
    return Call(rebuild.put_back, (*key, Call(rebuild.own, key) if is_original else value))


def note_of(key: Key, value: object) -> str:
    """Return the note for something that cannot be sent."""
    if isinstance(value, type | types.FunctionType):
        return by_reference.note_of(*key)
    return _AS_IMPORTED.format(*key)


def _comparisons(key: Key, value: Any) -> dict[Key, object]:
    """Return the description of a library's function or class whose name differs from its
    attribute, or which is wrapped, such as after `F.relu = F.silu`: the library may have done so
    itself, which ranks can find out. Empty for others."""
    root, expected = key[0].partition(".")[0], (key[1].rpartition(".")[2], 0)
    if root in sys.stdlib_module_names or not issubclass(type(value), _NAMED_TYPES):
        return {}
    if rebuild.called(value) == expected or code_facts.is_the_notebooks(value):
        return {}
    modules = {str(getattr(value, "__module__", None))}
    for function in rebuild.unwrapped(value):
        modules.add(str(getattr(function, "__globals__", {}).get("__name__", root)))
    native = {name.partition(".")[0] for name in modules} <= {root, "builtins", "functools", "None"}
    return {key: Told(*rebuild.called(value))} if native else {}  # not from another package
