"""Functions and classes as they are now, for a pickle: not executed again where it is opened.

cloudpickle makes both anew from their code, and with that calls metaclasses and `__init_subclass__`
a second time, gives each closure variables of its own and drops what caches hold. Here a class is
its `__dict__`, a closure keeps the variables it shares, and functions of the notebook get the
globals of the module that the pickle is opened in.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import enum
import functools
import gc
import numbers
import os
import sys
import types
import weakref
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeGuard

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling import (
    builtin_types,
    by_reference,
    code_facts,
    instances,
    own_modules,
    rebuild,
    refusals,
    replacements,
    weak,
)
from xla_nb.pickling.owned import OwnedByModules
from xla_nb.pickling.rebuild import EMPTY, NOT_YET, Call

#: What a namespace that is no module's says of itself; relative imports need it.
_PLACE = ("__name__", "__package__", "__path__", "__file__")


class Live:
    """Reduces functions and classes of the notebook, and what is made of them.

    `held` are the notebook's names, `labelled` gives a cell's code under the label of the cell,
    `newer` the names whose definition travels as source, and `known` those that every module has;
    `source` follows what else is sent.
    Unless it `joins` the module that it is opened in, functions have globals of their own, which
    they share. A pickle collects

    used      the names that functions use, with their values
    wanted    those of `newer` that functions use
    absent    names that nothing binds, with the code that uses them; `assigned` are those that a
              function assigns
    named     the definitions that the notebook has under their own name
    outdated  names of `newer` whose former definition is sent
    shell     code with IPython's syntax
    notes     sentences for the user
    later     what is filled in after all code is there, and the name of what holds it: while a
              pickle is opened, instances are hashed, compared and given their state by their
              classes' own methods
    kin       subclasses of what is sent, which the notebook has under their names, if
              `asks_for_more`
    seen      labels of the cells that code is from
    owned     what modules hold
    uses      the modules that all this leads to, and the names that code has
    imports   of the user's own modules, by which ranks have what the notebook has; those that they
              have `imported` by earlier pickles count whatever the files say now
    """

    def __init__(
        self,
        held: Mapping[str, object],
        labelled: Callable[[types.CodeType], types.CodeType | None],
        newer: Container[str] = (),
        known: Container[str] = (),
        owned: OwnedByModules | None = None,
        joins: bool = True,
        source: Callable[[own_modules.Uses], None] = lambda uses: None,
    ) -> None:
        self.owned = OwnedByModules() if owned is None else owned
        self.asks_for_more = True
        self._held = held
        self._labelled = labelled
        self._newer = newer
        self._known = known
        self._main = vars(sys.modules["__main__"]) if joins else None
        self._own = Call(rebuild.namespace, ())
        self._modules: dict[str, Call] = {}
        self._other: dict[int, Any] = {}
        self._bases: dict[type, tuple[type | None, object, type | None]] = {}
        self._made_here: dict[type, bool] = {}
        self._by_its_dict: dict[type, bool] = {}
        self._source = source
        self.imported: Container[own_modules.Import] = ()
        self.begin()

    def begin(self) -> None:
        """Forget what an earlier attempt to pickle has collected."""
        self.used: dict[str, object] = {}
        self.wanted: set[str] = set()
        self.absent: dict[str, types.CodeType] = {}
        self.named: dict[str, object] = {}
        self.assigned: set[str] = set()
        self.outdated: set[str] = set()
        self.shell: list[types.CodeType] = []
        self.notes: set[str] = set()
        self.later: list[tuple[str, Call]] = []
        self.kin: list[type] = []
        self.seen: set[str] = set()
        self.imports: set[own_modules.Import] = set()
        self.uses = own_modules.Uses()
        self._looked_at = self.uses.size
        self._source(self.uses)

    def in_modules(self) -> Mapping[own_modules.Key, object]:
        """What is to be set in modules by all that was collected; nothing if nothing has come to
        that since this was asked."""
        if self.uses.size == self._looked_at:
            return {}
        self._looked_at = self.uses.size
        found = self.uses.found(self.imported)
        self.notes |= found.notes
        self.imports |= found.imports
        return found.values

    def anew(self) -> Live:
        """For another pickle of the same notebook's."""
        return Live(self._held, self._labelled, self._newer, self._known, self.owned)

    def reduce(self, obj: Any) -> Any:
        """The object as a reducer's value, or NotImplemented."""
        kind = type(obj)
        if kind is types.FunctionType or issubclass(kind, type):
            by_name = by_reference.reduced(obj, self.notes)
            if by_name is None:
                return self._definition(obj)
            self.uses.add(obj)
            return by_name
        if issubclass(kind, enum.Enum):
            return self._member(obj) if code_facts.is_made_here(kind) else NotImplemented
        if reducer := _REDUCERS.get(kind):
            return reducer(self, obj)
        return self.reduce_special(obj)

    def reduce_special(self, obj: Any) -> Any:
        """The same of what is neither code nor made of it."""
        kind = type(obj)
        if kind in _VIEWS:
            return _dict_view(self, obj)
        if issubclass(kind, types.ModuleType):
            self.uses.add(obj)
            by_name = by_reference.reduced_module(obj)
            if by_name is not NotImplemented:
                return by_name
        if kind in cloudpickle.Pickler.dispatch_table:  # somebody has told how, maybe by copyreg
            return NotImplemented
        if issubclass(kind, tuple(builtin_types.DESCRIPTORS)):
            return builtin_types.descriptor(self, obj)
        if kind not in self._made_here:
            self._made_here[kind] = code_facts.is_made_here(kind)
        return self._instance(obj) if self._made_here[kind] else self.reduce_plain(obj)

    def _definition(self, obj: Any) -> Any:
        if isinstance(obj, types.FunctionType):
            return self._function(obj)
        return self._class(obj) if code_facts.is_made_here(obj) else NotImplemented

    # Functions

    def _function(self, function: types.FunctionType) -> Any:
        closure = function.__closure__ or ()
        used, contents = self._globals_used(function), list(map(code_facts.content, closure))
        defaults = {name: getattr(function, name) for name in ("__defaults__", "__kwdefaults__")}
        state: dict[str, Any] = {
            "globals": self._globals_sent(function, used),
            "closure": tuple(
                self._fill_content(function, *pair) for pair in zip(closure, contents, strict=True)
            ),
            "attributes": {name: getattr(function, name) for name in code_facts.ATTRIBUTES}
            | self._ready(rebuild.fill_attributes, function, defaults),
            "dict": dict.fromkeys(vars(function), NOT_YET)
            | self._ready(rebuild.fill_attributes, function, vars(function)),
            "bound": self._bound(function),
            "submodules": cloudpickle._find_imported_submodules(
                function.__code__, [*used.values(), *contents]
            ),
        }
        made = (function.__code__, self._globals_of(function), function.__name__, closure or None)
        return rebuild.new_function, made, state, None, None, rebuild.fill_function

    def _globals_sent(
        self, function: types.FunctionType, used: Mapping[str, object]
    ) -> dict[str, Any]:
        """Those that are there as soon as the function is."""
        return self._ready(rebuild.fill_globals, self._globals_of(function), used)

    def _ready(
        self,
        fill: Callable[..., None],
        target: object,
        wanted: Mapping[str, Any],
        is_ready: Callable[[str, object], bool] = lambda _, part: code_facts.holds_what_is_ready(
            part
        ),
    ) -> dict[str, Any]:
        """Those that can be there at once; the others are filled in later."""
        now = {name: part for name, part in wanted.items() if is_ready(name, part)}
        if len(now) < len(wanted):
            late = {name: part for name, part in wanted.items() if name not in now}
            if fill is rebuild.fill_globals:
                self._fill_globals(target, late)
            else:
                self._fill(target, fill, late)
        return now

    def _fill(self, holder: Any, fill: Callable[..., None], late: object) -> None:
        self.later.append((holder.__qualname__, Call(fill, (holder, late))))

    def _fill_globals(self, globals_: object, late: Mapping[str, object]) -> None:
        for name, value in late.items():
            self.later.append((name, Call(rebuild.fill_globals, (globals_, {name: value}))))

    def _fill_content(self, function: Any, cell: types.CellType, content: object) -> object:
        if code_facts.holds_what_is_ready(content):
            return content
        fill = Call(rebuild.fill_cell, (cell, content))
        self.later.append((function.__qualname__, fill))
        return EMPTY

    def _globals_of(self, function: types.FunctionType) -> Any:
        globals_ = function.__globals__
        if globals_ is self._main:
            return self._own
        name = globals_.get("__name__")
        if isinstance(name, str) and code_facts.is_modules(globals_, name):
            return self._modules.setdefault(name, Call(rebuild.module_globals, (name,)))
        place = {name: globals_[name] for name in _PLACE if name in globals_}
        return self._other.setdefault(id(globals_), place)

    def _globals_used(self, function: types.FunctionType) -> dict[str, object]:
        """The globals that the code names, where it does not find them in its module."""
        place = self._globals_of(function)
        names = [*cloudpickle._extract_code_globals(function.__code__)]
        names += [
            n for n in code_facts.softly_named(function) if n in self._held and n not in names
        ]
        if place is self._own:
            return {name: self.used[name] for name in names if self._uses(name, function)}
        if id(function.__globals__) not in self._other:  # a module's
            return {}
        return {name: function.__globals__[name] for name in names if name in function.__globals__}

    def _uses(self, name: str, function: types.FunctionType) -> bool:
        """Whether the notebook's value of this name is sent with the function."""
        if name in self._newer:
            self.wanted.add(name)
        elif name in self._held:
            self.used[name] = self._held[name]
            return True
        elif name == "get_ipython":
            self.shell.append(function.__code__)
        elif name not in self._known:
            self.absent.setdefault(name, function.__code__)
            if code_facts.assigns(function.__code__, name):
                self.assigned.add(name)
        return False

    def _bound(self, definition: Any) -> Call | None:
        name = definition.__name__
        if self._held.get(name, EMPTY) is not definition:
            former = isinstance(definition, type) and definition.__qualname__ == name
            if former and name in self._newer and definition.__module__ == "__main__":
                self.outdated.add(name)
            return None
        if name in self._newer:
            self.outdated.add(name)
            return None
        self.named[name] = definition
        return self._own

    def _code(self, code: types.CodeType) -> Any:
        self.uses.of_code(code)
        labelled = self._labelled(code)
        if labelled is None:
            return NotImplemented
        self.seen.add(labelled.co_filename)
        return cloudpickle._code_reduce(labelled)

    def _cell(self, _: types.CellType) -> Any:
        return rebuild.new_cell, ()  # filled with the functions that have it

    # Classes

    def _class(self, cls: type) -> Any:
        content = {
            n: part for n, part in vars(cls).items() if not code_facts.is_made_by_type(cls, part)
        }
        given: dict[str, Any] = {
            n: content.pop(n) for n in ("__module__", "__slots__") if n in content
        }
        content.pop("__slotnames__", None)  # what pickle notes there, once it has had an instance
        registered = None
        if isinstance(cls, abc.ABCMeta):
            content.pop("_abc_impl", None)
            registered = _registered(cls)
        given["__qualname__"] = cls.__qualname__
        hinted = (n for n in code_facts.in_hints(cls) if n in self._held and n not in self._newer)
        soft = {name: self._held[name] for name in hinted}
        self.used |= soft
        if soft:  # names in annotations that are text
            self._fill_globals(self._own, soft)
        extending: list[type] = type.__subclasses__(cls) if self.asks_for_more else []
        self.kin += (one for one in extending if self._is_current(one))
        state = {
            "dict": dict.fromkeys(content, NOT_YET)  # in order, which filling in later keeps
            | self._ready(rebuild.fill_attributes, cls, content, code_facts.is_ready_in_class),
            "registered": registered,
            "registered_with": self._registrations.get(cls, []),
            "bound": self._bound(cls),
        }
        made = (type(cls), cls.__name__, cls.__bases__, given)
        return rebuild.new_class, made, state, None, None, rebuild.fill_class

    @functools.cached_property
    def _registrations(self) -> dict[type, list[type]]:
        """The abstract classes of modules with which classes are registered."""
        named = [one for one in self._held.values() if _is_abstract(one)]
        found = collections.defaultdict[type, list[type]](list)
        for one in dict.fromkeys([*_ABSTRACT, *named]):
            for cls in () if code_facts.is_made_here(one) else _registered(one):
                found[cls].append(one)
        return found

    def _is_current(self, cls: type) -> bool:
        """Whether the notebook has the class under its name, not only a former cell's."""
        name = cls.__name__
        return (
            self._held.get(name) is cls and name not in self._newer and code_facts.is_made_here(cls)
        )

    def _member(self, member: enum.Enum) -> Any:
        cls = type(member)
        kind: type = cls._member_type_  # type: ignore[attr-defined]
        args = code_facts.new_arguments(kind, member)
        state = dict(vars(member))
        return rebuild.new_instance, (kind, cls, args), state, None, None, rebuild.fill_instance

    def _instance(self, obj: Any) -> Any:
        """An instance of a class of the notebook: made without its `__new__`, `__init__` and
        `__getattr__`, which may want other arguments, or attributes that are not there yet."""
        kind = type(obj)
        if kind not in self._bases:
            refusals.refuse_instances(kind)
            if code_facts.hides_its_dict(kind) and code_facts.is_plain(kind):
                raise refusals.Unshippable(
                    f"a `{kind.__qualname__}`, whose class says itself what its `__dict__` is",
                    "Make it inside the function",
                )
            self._bases[kind] = *code_facts.built_in_base(kind), code_facts.container(kind)
        base, setter, container = self._bases[kind]
        if container is not None:
            return code_facts.reduced_container(obj, container)
        if base is None:
            says_itself = instances.says_itself(kind)
            return obj.__reduce_ex__(5) if says_itself else instances.reduced(obj)
        made: Any = object.__reduce_ex__(obj, 2)
        state, items, pairs = made[2:]
        arguments = base, kind, () if base is object else code_facts.new_arguments(base, obj)
        fill = rebuild.fill_instance if state is not None and setter is None else None
        if code_facts.leaves_its_state(kind):
            state, fill = code_facts.state_with_dict(obj, state), rebuild.adopt_state
        return rebuild.new_instance, arguments, state, items, pairs, fill

    def reduce_plain(self, obj: Any) -> Any:
        """The same of an instance whose `vars` others have, as those of libraries may be."""
        kind = type(obj)
        if kind not in self._by_its_dict:
            refusals.refuse_instances(kind)
            self._by_its_dict[kind] = code_facts.is_pickled_by_its_dict(kind)
        if not self._by_its_dict[kind]:
            return NotImplemented
        make, arguments, state, items, pairs = obj.__reduce_ex__(5)
        state = code_facts.state_with_dict(obj, state)
        return make, arguments, state, items, pairs, rebuild.adopt_state

    # What is made of functions

    def _cache(self, cache: Any) -> Any:
        by_name = by_reference.reduced_cache(cache, self.notes)
        if by_name is not None:
            self.uses.add(cache)
            return by_name
        about = cache.cache_parameters()
        state = {
            "function": cache.__wrapped__,
            "dict": {n: value for n, value in vars(cache).items() if n != "cache_parameters"},
            "bound": self._bound(cache),
        }
        if results := code_facts.results(cache):
            self._fill(cache, rebuild.fill_results, results)
        made = about["maxsize"], about["typed"]
        return rebuild.new_cache, made, state, None, None, rebuild.fill_cache


# ---------------------------------------------------------------- reducers by exact type


def _weak(_: Live, ref: Any) -> Any:
    return weak.reduced(ref)


def _is_abstract(value: object) -> TypeGuard[type]:
    return issubclass(type(value), abc.ABCMeta)


def _registered(cls: type) -> list[type]:
    """The classes registered with an abstract one, in no order."""
    refs = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
    return [found for ref in refs if (found := ref()) is not None]


#: Python's own abstract classes that the user's are registered with: these do not name them.
_ABSTRACT = [
    one
    for module in (collections.abc, numbers, contextlib, os)
    for one in vars(module).values()
    if _is_abstract(one)
]


def _dict_view(_: Live, view: Any) -> Any:
    name = type(view).__name__.partition("_")[2]
    return rebuild.dict_view, (*gc.get_referents(view), name)


def _builtin(_: Live, function: Any) -> Any:
    return replacements.reduced(function)


_EMPTY = collections.OrderedDict[Any, Any]()
_VIEWS = {*map(type, [{}.keys(), {}.values(), {}.items()])}
_VIEWS |= {*map(type, [_EMPTY.keys(), _EMPTY.values(), _EMPTY.items()])}
_REDUCERS: dict[type, Callable[[Live, Any], Any]] = {
    types.CodeType: Live._code,
    types.CellType: lambda live, cell: live._cell(cell),
    types.BuiltinFunctionType: _builtin,
    types.MethodType: lambda _, method: refusals.reduce_method(method),
    functools._lru_cache_wrapper: Live._cache,
    **dict.fromkeys([weakref.ref, *weakref.ProxyTypes, weakref.WeakSet], _weak),
    **dict.fromkeys([weakref.WeakKeyDictionary, weakref.WeakValueDictionary], _weak),
    **builtin_types.REDUCERS,
}
