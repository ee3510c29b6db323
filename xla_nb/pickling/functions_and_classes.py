"""Pickle functions and classes as they are now, without executing their definitions again.

cloudpickle re-creates both from their code: it calls metaclasses and `__init_subclass__` a second
time, gives each closure its own variables and drops the contents of caches. Here a class is its
`__dict__`, closures keep the variables they share, and functions of the notebook get the globals of
the module in which the pickle is opened.
"""

from __future__ import annotations

import abc
import collections
import copy
import enum
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling import (
    builtin_types,
    by_reference,
    code_facts,
    instances,
    module_objects,
    own_modules,
    rebuild,
    refusals,
    weak,
)
from xla_nb.pickling.rebuild import EMPTY, NOT_YET, Call

_SUBCLASS = "`{}` cannot be sent: its base classes lack it on ranks"
_TYPED = "the cache of `{}` is empty on ranks: results of `typed=True` are not sent"
#: Names by which a namespace outside any module describes itself; relative imports need them.
_NAMESPACE_NAMES = ("__name__", "__package__", "__path__", "__file__")


class Notebook(NamedTuple):
    """The notebook as pickles see it.

    `values` are its names, `labelled` returns a cell's code under the cell's label, `newer` are
    names bound by source that is executed afterwards, and `known` are the names that every module
    has.
    """

    values: Mapping[str, object] = {}
    labelled: Callable[[types.CodeType], types.CodeType | None] = lambda code: None
    newer: Container[str] = ()
    known: Container[str] = ()


NO_NOTEBOOK = Notebook()


class Met:
    """Everything met while pickling.

    names        of globals that code uses, each with the code
    definitions  functions, caches and classes that are sent as they are
    refers       for live ranks, the classes and functions named or contained, by number
    labels       of the cells that code comes from
    uses         the modules that all this leads to, and the names that code uses
    """

    def __init__(self) -> None:
        self.names: dict[str, list[types.CodeType]] = {}
        self.definitions: dict[int, Any] = {}
        self.refers: dict[int, Any] = {}
        self.labels: set[str] = set()
        self.uses = own_modules.Uses()

    def __copy__(self) -> Met:
        met = Met()
        met.take(self)
        return met

    def take(self, other: Met) -> None:
        """Add everything met elsewhere."""
        for name, code in other.names.items():
            self.names.setdefault(name, []).extend(code)
        self.definitions |= other.definitions
        self.refers |= other.refers
        self.labels |= other.labels
        self.uses.take(other.uses)


class Live:
    """Reduces functions and classes of the notebook, and objects made from them.

    Names are not part of a function: `names_met` returns those that must be sent as well. Only a
    function reached through data `carries` the names that hold constants and code, which data may
    need. Unless `joins`, functions share globals of their own instead of those of the module in
    which the pickle is opened. A pickle collects

    met       everything it has met
    writing   the name and value being written
    trail     the last objects that were reduced: where one cannot be, the last is at fault
    notes     sentences for the user
    later     what is filled in after all code exists, each with its holder and the holder's name,
              since instances are hashed, compared and given their state by methods of their classes
              while a pickle is opened
    optional  what is sent if possible: the name of a part, the part, and a note if it fails
    imports   the user's own modules that ranks import, and submodules; those already `imported` by
              earlier pickles count whatever the files contain now
    """

    def __init__(self, notebook: Notebook = NO_NOTEBOOK, joins: bool = True) -> None:
        self.carries = False
        self.notebook = notebook
        self._main = vars(sys.modules["__main__"]) if joins else None
        self._namespace = Call(rebuild.namespace, ())
        self._module_dicts: dict[str, Call] = {}
        self._other_dicts: dict[int, dict[str, Any]] = {}
        self._bases: dict[type, tuple[type | None, type | None]] = {}
        self._made_here: Callable[[type], bool] = functools.cache(code_facts.is_made_here)
        by_dict = functools.cache(code_facts.is_pickled_by_its_dict)
        self._is_pickled_by_its_dict: Callable[[type], bool] = by_dict
        self.imported: Container[str] = ()
        self.met = Met()
        self.writing: tuple[str, object] = "", None
        self.trail = collections.deque[object](maxlen=100)
        self.notes: set[str] = set()
        self.later: list[tuple[str, object, Call]] = []
        self.optional: list[tuple[str, object, str]] = []
        self.imports: set[str] = set()
        self._searched_size = self.met.uses.size
        self._returned_counts = 0, 0  # names and definitions

    def collected(self) -> dict[str, Any]:
        """Return the attributes, by name, that a part that fails must leave unchanged."""
        names = "met", "notes", "later", "optional", "_returned_counts"
        return {name: copy.copy(vars(self)[name]) for name in names}

    # Derived from what was met

    @property
    def definitions(self) -> dict[int, Any]:
        """The definitions sent as they are, by their numbers, which results use; closures are
        excluded because they are new objects on ranks."""
        met = self.met.definitions.values()
        return {self.number(obj): obj for obj in met if not getattr(obj, "__closure__", None)}

    def number(self, definition: Any) -> int:
        """Return the number of a definition that is not a closure."""
        return 0 if self._main is None else id(definition)

    def _is_named(self, name: str, definition: object) -> bool:
        is_current = name not in self.notebook.newer
        return is_current and self.notebook.values.get(name, EMPTY) is definition

    @property
    def absent(self) -> dict[str, types.CodeType]:
        """Names that nothing binds, with the code that uses them."""
        scope = self.notebook
        return {
            name: code[0]
            for name, code in self.met.names.items()
            if code and not (name in scope.newer or name in scope.values or name in scope.known)
        }

    @property
    def assigned(self) -> set[str]:
        """The absent names that a function assigns."""
        names = self.met.names
        return {n for n in self.absent if any(code_facts.assigns(code, n) for code in names[n])}

    def names_met(self) -> dict[str, object]:
        """Return names to be sent that were not returned before, with the notebook's values."""
        name_count, definition_count = self._returned_counts
        fresh = itertools.islice(self.met.definitions.values(), definition_count, None)
        own_names = (_name(obj) for obj in fresh if self._is_named(_name(obj), obj))
        names = [*itertools.islice(self.met.names, name_count, None), *own_names]
        self._returned_counts = len(self.met.names), len(self.met.definitions)
        values = self.notebook.values
        return {name: values[name] for name in names if name in values}

    def in_modules(self) -> Mapping[own_modules.Key, object]:
        """Return what must be set in modules because of everything collected; nothing if nothing
        was added since the last call."""
        if self.met.uses.size == self._searched_size:
            return {}
        self._searched_size = self.met.uses.size
        values, notes, imports = self.met.uses.found(self.imported, self.is_behind)
        self.notes |= notes
        self.imports |= imports | self.met.uses.submodules()
        return values

    def is_behind(self, module: str) -> bool:
        """True if ranks import another version of one of the user's own modules than the notebook
        has."""
        return False

    def is_there(self, key: own_modules.Key) -> bool:
        """True if ranks have what a module of the user's own holds, whatever they did to it."""
        return False

    def reduce(self, obj: Any) -> Any:
        """Return the object as a reducer value, or NotImplemented."""
        kind = type(obj)
        if kind is types.FunctionType or issubclass(kind, type):
            path = obj.__qualname__
            is_opened = kind is not types.FunctionType and id(obj) in rebuild.opened
            if is_opened and path.partition(".")[0] in self.notebook.known:
                return rebuild.held_by_module, (
                    "__main__",
                    path,
                    kind.__name__,
                )  # ranks define it
            by_name = by_reference.reduced(obj, self.notes)
            if by_name is None or self.is_behind(obj.__module__):
                if kind is types.FunctionType:
                    return self._function(obj)
                return self._class(obj) if self._made_here(obj) else NotImplemented
            self.met.uses.add(obj)
            return by_name
        if issubclass(kind, enum.Enum):
            return self._member(obj) if code_facts.is_made_here(kind) else NotImplemented
        if reducer := _REDUCERS.get(kind):
            return reducer(self, obj)
        return self.reduce_special(obj)

    def reduce_special(self, obj: Any) -> Any:
        """Like `reduce`, for objects that are neither code nor made from it."""
        kind = type(obj)
        if issubclass(kind, types.ModuleType):
            self.met.uses.add(obj)
            by_name = by_reference.reduced_module(obj)
            if by_name is not NotImplemented:
                return by_name
        if kind in cloudpickle.Pickler.dispatch_table:  # a reducer is registered, maybe by copyreg
            return NotImplemented
        return self._instance(obj) if self._made_here(kind) else self.reduce_plain(obj)

    # Functions

    def _function(self, function: types.FunctionType) -> Any:
        self.met.definitions[id(function)] = function
        closure = function.__closure__ or ()
        used, contents = self._globals_used(function), list(map(rebuild.content, closure))
        globals_ = self._globals_of(function)
        carried = used if id(function.__globals__) in self._other_dicts else self._carried(used)
        # functools.wraps of a class adds `__dict__`
        attributes = {n: part for n, part in vars(function).items() if n != "__dict__"}
        defaults = {name: getattr(function, name) for name in ("__defaults__", "__kwdefaults__")}
        state: dict[str, Any] = {
            "globals": self._take_ready(function, dict.update, carried, globals_),
            "closure": tuple(
                self._cell_content(function, *pair) for pair in zip(closure, contents, strict=True)
            ),
            "attributes": {name: getattr(function, name) for name in code_facts.ATTRIBUTES}
            | self._take_ready(function, rebuild.fill_attributes, defaults),
            "dict": dict.fromkeys(attributes, NOT_YET)
            | self._take_ready(function, rebuild.fill_attributes, attributes),
        }
        number = 0 if closure else self.number(function)
        arguments = function.__code__, globals_, function.__name__, closure or None
        made = number, rebuild.new_function, *arguments
        return rebuild.new, made, state, None, None, rebuild.fill_function

    def _carried(self, used: Mapping[str, object]) -> dict[str, object]:
        """Return constants and code of these names, for a function that is opened before they
        are."""
        if not self.carries:
            return {}
        return {n: value for n, value in used.items() if code_facts.holds_what_is_ready(value)}

    def _take_ready(
        self,
        holder: Any,
        fill: Callable[..., None],
        parts: Mapping[str, Any],
        target: object = None,
    ) -> dict[str, Any]:
        """Return the parts that can exist at once; the others are later filled into `holder`, or
        into its `target`."""
        ready = {n: part for n, part in parts.items() if code_facts.is_ready_in(holder, n, part)}
        if len(ready) < len(parts):
            late = {name: part for name, part in parts.items() if name not in ready}
            self._fill(holder, fill, late, target)
        return ready

    def _fill(
        self, holder: Any, fill: Callable[..., None], late: object, target: object = None
    ) -> None:
        call = Call(fill, (holder if target is None else target, late))
        self.later.append((*self.writing, call))

    def _cell_content(self, function: Any, cell: types.CellType, content: object) -> object:
        """Return the initial content of a closure variable."""
        if code_facts.holds_what_is_ready(content):
            return content
        self._fill(function, rebuild.fill_attributes, {"cell_contents": content}, cell)
        return EMPTY

    def _globals_of(self, function: types.FunctionType) -> Any:
        globals_ = function.__globals__
        if globals_ is self._main:
            return self._namespace
        name = globals_.get("__name__")
        if isinstance(name, str) and code_facts.is_modules(globals_, name):
            if module_objects.is_own(sys.modules[name]):  # which may no longer hold this function
                self.met.uses.add(sys.modules[name])
            module_dict = Call(rebuild.held_by_module, (name, "__dict__", "dict"))
            return self._module_dicts.setdefault(name, module_dict)
        namespace = {name: globals_[name] for name in _NAMESPACE_NAMES if name in globals_}
        return self._other_dicts.setdefault(id(globals_), namespace)

    def _globals_used(self, function: types.FunctionType) -> dict[str, object]:
        """Return the globals that the code names and does not find in its module."""
        namespace, code = self._globals_of(function), function.__code__
        values = self.notebook.values if namespace is self._namespace else function.__globals__
        names = [*code_facts.globals_in(code)]
        possible = [*code_facts.in_bodies(code), *code_facts.in_hints(function)]
        possible += code_facts.in_texts(code)
        names += [n for n in possible if n in self.notebook.values and n not in names]
        if namespace is self._namespace:
            for name in names:
                self.met.names.setdefault(name, []).append(code)
        elif id(function.__globals__) not in self._other_dicts:  # a module's
            return {}
        return {name: values[name] for name in names if name in values}

    @property
    def namespaces(self) -> Iterable[int]:
        """The ids of namespaces that do not belong to a module."""
        return self._other_dicts.keys()

    def _code(self, code: types.CodeType) -> Any:
        self.met.uses.of_code(code)
        labelled = self.notebook.labelled(code)
        if labelled is None:
            return NotImplemented
        self.met.labels.add(labelled.co_filename)
        return cloudpickle.Pickler.dispatch_table[types.CodeType](labelled)

    # Classes

    def _class(self, cls: type) -> Any:
        self.met.definitions[id(cls)] = cls
        content = {
            n: part for n, part in vars(cls).items() if not rebuild.is_made_by_type(cls, part)
        }
        initial: dict[str, Any] = {
            n: content.pop(n) for n in ("__module__", "__slots__", "__doc__") if n in content
        }
        content.pop("__slotnames__", None)  # which pickle adds when it pickles an instance
        abstract = None
        if isinstance(cls, abc.ABCMeta):
            content.pop("_abc_impl", None)
            abstract = content.pop("__abstractmethods__"), _registered(cls)
        initial["__qualname__"] = cls.__qualname__
        for name in code_facts.in_hints(cls):  # names in string annotations
            if name in self.notebook.values:
                self.met.names.setdefault(name, [])
        for subclass in self.subclasses(cls):
            self._subclass(subclass)
        state = {
            "dict": dict.fromkeys(content, NOT_YET)  # in order, which filling in later keeps
            | self._take_ready(cls, rebuild.fill_attributes, content),
            "abstract": abstract,
        }
        arguments = type(cls), cls.__name__, cls.__bases__, initial
        made = self.number(cls), rebuild.new_class, *arguments
        return rebuild.new, made, state, None, None, rebuild.fill_class

    def subclasses(self, cls: type) -> Iterator[type]:
        """Yield the notebook's subclasses that it holds under their names, not those of a former
        cell."""
        classes: list[type] = type.__subclasses__(cls)
        return (
            subclass
            for subclass in classes
            if self._is_named(subclass.__name__, subclass) and code_facts.is_made_here(subclass)
        )

    def _subclass(self, cls: type) -> None:
        """Send a subclass of a class that is sent, even if nothing refers to it."""
        known = Call(rebuild.known, (cls,))
        self.optional.append((cls.__name__, known, _SUBCLASS.format(cls.__name__)))

    def _member(self, member: enum.Enum) -> Any:
        cls = type(member)
        kind: type = cls._member_type_  # type: ignore[attr-defined]
        made = cls, member.name, kind, code_facts.new_arguments(kind, member)
        return rebuild.member, made, dict(vars(member)), None, None, rebuild.fill_instance

    def _instance(self, obj: Any) -> Any:
        """Reduce an instance of a notebook class, without `__new__`, `__init__` and `__getattr__`,
        which may need other arguments or attributes that do not exist yet."""
        kind = type(obj)
        if kind not in self._bases:
            if code_facts.hides_its_dict(kind) and code_facts.is_plain(kind):
                raise refusals.Unshippable(
                    f"a `{kind.__qualname__}`, whose class defines its own `__dict__`",
                    "Create it inside the function",
                )
            self._bases[kind] = code_facts.built_in_base(kind), code_facts.container(kind)
        base, container = self._bases[kind]
        if container is not None:
            return code_facts.reduced_container(obj, container)
        if base is None:
            is_custom = instances.says_itself(kind)
            return obj.__reduce_ex__(5) if is_custom else instances.reduced(obj)
        reduced: Any = object.__reduce_ex__(obj, 2)
        state, items, pairs = reduced[2:]
        arguments = base, kind, () if base is object else code_facts.new_arguments(base, obj)
        fill = rebuild.set_state
        if code_facts.leaves_its_state(kind):
            state, fill = code_facts.state_with_dict(obj, state), rebuild.adopt_state
        return rebuild.new_instance, arguments, state, items, pairs, fill

    def reduce_plain(self, obj: Any) -> Any:
        """Like `_instance`, for an instance whose `vars` may be shared, as those of libraries may
        be."""
        if not self._is_pickled_by_its_dict(type(obj)):
            return NotImplemented
        make, arguments, state, items, pairs = obj.__reduce_ex__(5)
        state = code_facts.state_with_dict(obj, state)
        return make, arguments, state, items, pairs, rebuild.adopt_state

    # What is made of functions

    def _cache(self, cache: Any) -> Any:
        by_name = by_reference.reduced(cache, self.notes)
        if by_name is not None:
            self.met.uses.add(cache)
            if not self.is_behind(cache.__module__):
                return by_name
        self.met.definitions[id(cache)] = cache
        parameters = cache.cache_parameters()
        state = {
            "function": cache.__wrapped__,
            "dict": {n: value for n, value in vars(cache).items() if n != "cache_parameters"},
        }
        if parameters["typed"]:
            self.notes.add(_TYPED.format(_name(cache)))
        elif results := code_facts.results(cache):
            self._fill(cache, rebuild.fill_results, results)
        made = self.number(cache), rebuild.new_cache, parameters["maxsize"], parameters["typed"]
        return rebuild.new, made, state, None, None, rebuild.fill_cache


# ---------------------------------------------------------------- reducers by exact type


def _weak(_: Live, ref: Any) -> Any:
    return weak.reduced(ref)


def _name(definition: object) -> str:
    return getattr(definition, "__name__", "")  # a cache around a partial has none


def _registered(cls: type) -> list[type]:
    """Return the classes registered with an abstract class, in no order."""
    refs = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
    return [subclass for ref in refs if (subclass := ref()) is not None]


def _builtin(_: Live, function: Any) -> Any:
    by_name = by_reference.reduced(function, set())
    return NotImplemented if by_name is None else by_name


_REDUCERS: dict[type, Callable[[Live, Any], Any]] = {
    types.CodeType: Live._code,
    types.CellType: lambda _, cell: (types.CellType, ()),  # filled with its functions
    types.BuiltinFunctionType: _builtin,
    types.MethodType: lambda _, method: refusals.reduce_method(method),
    functools._lru_cache_wrapper: Live._cache,
    **dict.fromkeys([weakref.ref, *weakref.ProxyTypes, weakref.WeakSet], _weak),
    **dict.fromkeys([weakref.WeakKeyDictionary, weakref.WeakValueDictionary], _weak),
    **builtin_types.REDUCERS,
}
