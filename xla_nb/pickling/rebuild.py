"""Rebuild functions and classes from a pickle that `Live` wrote, without executing them.

A pickle names the functions of this module and calls each after its arguments are made: an object
is created empty and filled later, since its contents may refer to it.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import logging
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

#: The value of a closure variable that is not set yet.
EMPTY = inspect.Parameter.empty
#: The path from a value to a part: attributes of instances (True), keys or indices (False).
Way: TypeAlias = tuple[tuple[bool, str | int], ...]
#: A name, and the path from its value to a part of it.
Place: TypeAlias = tuple[str, Way]


class _NotYet:
    """A placeholder in a new class or function for a part that is filled in later. An instance that
    is opened earlier and reads it fails instead of continuing with another value: not with an
    AttributeError, which `getattr` and `hasattr` treat as an answer. In a function it fails when it
    is used."""

    def __get__(self, instance: object, owner: type) -> Any:
        raise RuntimeError(
            f"`{owner.__qualname__}` is not complete yet when one of its instances is unpickled"
        )

    def __bool__(self) -> bool:
        raise RuntimeError("a function attribute is not set yet when a value is unpickled")

    def __reduce__(self) -> str:
        return "NOT_YET"


NOT_YET = _NotYet()


class Call:
    """A placeholder in a pickle for the result of a call, or for the call itself."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Definitions(dict[int, Any]):
    """The notebook's classes and functions by their numbers, which a number denotes for as long as
    the notebook has them: what is sent later refers to the same object on live ranks, and a
    definition changed in place is filled again. `imports` are the modules that pickles have
    imported, `taken` the objects of modules, by id: each with the place where the notebook has the
    object that it stands for."""

    def __init__(self, imports: Iterable[str] = ()) -> None:
        self.imports = set(imports)
        self.taken: dict[int, tuple[tuple[str, str], object]] = {}


class Opening(NamedTuple):
    """The context in which a pickle is opened: the globals of a module, the same as they were
    before plus the names bound since, the definitions that live ranks have, and `resolve`, which
    returns the notebook's objects by name or by the number of something it sent."""

    namespace: dict[str, Any]
    before: Mapping[str, Any]
    table: Definitions
    resolve: Callable[[str | int], object]


#: The context of the pickle that this thread is opening.
opening: ContextVar[Opening] = ContextVar("xla_nb_opening")


def namespace() -> dict[str, Any]:
    return opening.get().namespace


def unbind(names: Iterable[str]) -> None:
    """Remove names that the notebook no longer has."""
    for name in names:
        namespace().pop(name, None)


#: Functions, classes and caches created from pickles, by id, and the notebook's numbers of those
#: that it sent. In the notebook they arrive with ranks' results.
opened: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers: dict[int, int] = {}


def numbered(definition: Any, number: int) -> Any:
    """Return the definition, recorded as the notebook's object of that number (0: of none)."""
    opened[id(definition)], _numbers[id(definition)] = definition, number
    return definition


def number_of(definition: Any) -> int:
    """Return the notebook's number of an opened definition; 0 if it has none."""
    return _numbers[id(definition)] if opened.get(id(definition)) is definition else 0


def new(number: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return a definition of the notebook: the class or function of that number, with the
    attributes that it is created with, if ranks have it; else a new object."""
    table = opening.get().table
    if number not in table or make is new_cache:
        definition = numbered(make(*arguments), number)
        if number:
            table[number] = definition
        return definition
    renew = _renew_class if make is new_class else _renew_function
    renew(table[number], *arguments)
    return table[number]


def imported(place: tuple[str, str], number: int, make: Any, *arguments: Any) -> Any:
    """Like `new`, but the first time use what a module itself defined under a name."""
    existing, table = own(*place), opening.get().table
    kind = {new_class: type, new_function: types.FunctionType}[make]
    is_usable = isinstance(existing, kind) and not getattr(existing, "__closure__", None)
    if is_usable and number not in table:
        table[number] = numbered(existing, number)
    return new(number, make, *arguments)


def sentinel(number: int) -> object:
    """Return the notebook's `object()` of that number."""
    return opening.get().table.setdefault(number, object())


def found(number: int) -> Any:
    """Return the definition of a number that ranks have."""
    return opening.get().table[number]


def drop(numbers: Iterable[int]) -> None:
    """Drop definitions that the notebook no longer has: they are no objects of it any more."""
    for number in numbers:
        opened.pop(id(opening.get().table.pop(number, None)), None)


def at_home(path: str, number: int = 0) -> Any:
    """Return the notebook's object: by its number if that is known, else by its name."""
    resolve = opening.get().resolve
    if number:
        with contextlib.suppress(KeyError):
            return resolve(number)
    root, *attributes = path.split(".")
    return functools.reduce(getattr, attributes, resolve(root))


def new_function(
    code: types.CodeType,
    globals_: dict[str, Any],
    name: str,
    closure: tuple[Any, ...] | None,
) -> types.FunctionType:
    return types.FunctionType(code, globals_, name, None, closure)


def _renew_function(function: Any, code: types.CodeType, _: object, name: str, *__: object) -> None:
    function.__code__, function.__name__ = code, name


def fill_function(function: types.FunctionType, state: Mapping[str, Any]) -> None:
    """Give a function, new or not, these globals, closure values and exactly these attributes."""
    for name in vars(function).keys() - state["dict"].keys():
        del vars(function)[name]
    function.__globals__.update(state["globals"])
    function.__globals__.setdefault("__builtins__", __builtins__)
    for cell, value in zip(function.__closure__ or (), state["closure"], strict=True):
        if value is not EMPTY:
            cell.cell_contents = value
    fill_attributes(function, state["attributes"])
    vars(function).update(_without_placeholders(function, state))


def new_class(metaclass: type, name: str, bases: tuple[type, ...], initial: dict[str, Any]) -> type:
    """Create a class without content: neither its metaclass nor `__init_subclass__` is called."""
    with _no_init_subclass(bases):
        return type.__new__(metaclass, name, bases, initial)


def _renew_class(
    cls: Any, _: type, name: str, bases: tuple[type, ...], initial: Mapping[str, Any]
) -> None:
    type.__setattr__(cls, "__name__", name)
    for attribute in ("__qualname__", "__doc__"):
        type.__setattr__(cls, attribute, initial.get(attribute))
    if cls.__bases__ != bases:
        type.__setattr__(cls, "__bases__", bases)


#: Attributes that every class has, or gets at its creation.
_FIXED = {"__module__", "__slots__", "__doc__", "__slotnames__", "_abc_impl", "__abstractmethods__"}


def is_made_by_type(cls: type, value: object) -> bool:
    """True for what every class gets for itself: `__dict__`, `__weakref__` and its slots."""
    kinds = types.GetSetDescriptorType, types.MemberDescriptorType
    return isinstance(value, kinds) and value.__objclass__ is cls


def _without_placeholders(definition: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return its new attributes, without placeholders for what ranks have: the pickle may refer to
    that."""
    there = vars(definition)
    return {n: part for n, part in state["dict"].items() if part is not NOT_YET or n not in there}


def fill_class(cls: type, state: Mapping[str, Any]) -> None:
    """Give a class, new or not, exactly these attributes, and register virtual subclasses with
    it."""
    names = _FIXED | state["dict"].keys()
    for name, part in list(vars(cls).items()):
        if name not in names and not is_made_by_type(cls, part):
            type.__delattr__(cls, name)
    fill_attributes(cls, _without_placeholders(cls, state))
    if state["abstract"] is not None:
        methods, registered = state["abstract"]
        abc._abc_init(cls)  # type: ignore[attr-defined]
        fill_attributes(cls, {"__abstractmethods__": methods})  # as it was defined
        for other in registered:
            abc.ABCMeta.register(cls, other)  # type: ignore[arg-type]


def known(obj: object) -> None:
    """Keep an object in the pickle that nothing refers to: `__subclasses__` finds a class."""


@contextlib.contextmanager
def _no_init_subclass(bases: tuple[type, ...]) -> Iterator[None]:
    """Suppress `__init_subclass__`, which `type.__new__` calls and which already ran when the class
    was defined."""
    hooks = {}
    for owner in {owner for base in bases for owner in base.__mro__} - {object}:
        if "__init_subclass__" in vars(owner):
            hooks[owner] = vars(owner)["__init_subclass__"]
            type.__setattr__(owner, "__init_subclass__", classmethod(lambda cls, **_: None))
    try:
        yield
    finally:
        for owner, hook in hooks.items():
            type.__setattr__(owner, "__init_subclass__", hook)


def new_instance(base: type, cls: type, args: tuple[object, ...]) -> Any:
    """Create an instance by the `__new__` of a built-in base: the class's own may need other
    arguments, and an enum under construction does not know its members yet."""
    return base.__new__(cls, *args)


def member(cls: Any, name: str | None, base: type, args: tuple[object, ...]) -> Any:
    """Return the member of an enum that ranks have, or a new one."""
    maps = (vars(cls).get(attribute) for attribute in ("_member_map_", "_value2member_map_"))
    known = itertools.chain.from_iterable(m.values() for m in maps if isinstance(m, dict))
    existing = next((one for one in known if vars(one).get("_name_") == name), None)
    return new_instance(base, cls, args) if existing is None else existing


def new_of_base(base: Any, cls: type, *args: object) -> Any:
    """Create an instance as its base does, for a class whose `__init__` takes other arguments. What
    the base inherits from `object` takes none."""
    instance = base.__new__(cls, *(() if base.__new__ is object.__new__ else args))
    if base.__init__ is not object.__init__:
        base.__init__(instance, *args)
    return instance


def fill_instance(instance: Any, state: Any) -> None:
    """Set the attributes and slots of a new instance, bypassing its `__setattr__`."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        object.__getattribute__(instance, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(instance, name, value)


def set_state(instance: Any, state: Any) -> None:
    """Set a new instance's state as its class does, if that defines it."""
    fill = getattr(type(instance), "__setstate__", fill_instance)
    fill(instance, state)


def adopt_state(instance: Any, state: Any) -> None:
    """Give a new instance this very dict as its attributes, which others may share, and its slots.
    Its `__setstate__`, if any, then changes the same dict through the instance."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes is not None:
        object.__setattr__(instance, "__dict__", attributes)
    fill_instance(instance, (None, slots))
    if (attributes or slots) and hasattr(type(instance), "__setstate__"):
        copied = dict(attributes or {})
        instance.__setstate__((copied, slots) if slots else copied)


def fill_container(
    container: Any,
    content: tuple[Callable[..., None], list[list[Any]], Callable[[Any, Any], None], object],
) -> None:
    """Fill a new container and set its state, as pickle does, bypassing its class's methods for
    putting things in and its `__getattr__`."""
    add, columns, fill, state = content
    for arguments in zip(*columns, strict=True):
        add(container, *arguments)
    if state is not None:
        fill(container, state)


def fill_attributes(owner: Any, values: Mapping[str, Any]) -> None:
    """Set attributes of a class or function, bypassing a metaclass's `__setattr__`."""
    for name, value in values.items():
        if not isinstance(owner, type):
            setattr(owner, name, value)
        elif name not in _SPECIAL_NAMES:
            type.__setattr__(owner, name, value)
        else:
            (class_dict,) = gc.get_referents(vars(owner))
            class_dict[name] = value
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # clears cached lookups


#: Names that a class may define for its instances but that mean something else when set on it.
_SPECIAL_NAMES = {"__class__", "__dict__", "__name__", "__bases__", "__base__", "__mro__"}


class Switch:
    """A cache's function: at first returns the results to be cached, then calls the real one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def new_cache(maxsize: int | None, typed: bool) -> Any:
    switch: Any = Switch(NOT_YET)  # type: ignore[arg-type]  # a call fails until it is filled
    cache = functools.lru_cache(maxsize, typed)(switch)
    attributes = vars(cache)
    parameters = attributes["cache_parameters"]
    attributes.clear()  # the switch's attributes
    attributes.update(cache_parameters=parameters, __wrapped__=switch)
    return cache


def fill_cache(cache: Any, state: Mapping[str, Any]) -> None:
    """Set the function and attributes of a new cache."""
    vars(cache).pop("__wrapped__").function = state["function"]
    vars(cache).update(state["dict"], __wrapped__=state["function"])


def fill_results(cache: Any, results: list[tuple[tuple[Any, ...], dict[str, Any], object]]) -> None:
    """Put these results into a cache, the newest last."""
    switch = next(referent for referent in gc.get_referents(cache) if isinstance(referent, Switch))
    function = switch.function
    for args, kwargs, result in results:
        switch.function = lambda *_, _result=result, **__: _result
        cache(*args, **kwargs)
    switch.function = function


def cached_property(function: Any, name: str | None) -> Any:
    descriptor: Any = functools.cached_property(function)
    descriptor.attrname = name
    return descriptor


def content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def cells(holder: Any) -> dict[str, types.CellType]:
    """Return the variables in the closure of a function."""
    if type(holder) is not types.FunctionType:
        return {}
    return dict(zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True))


def contents(holder: Any) -> Mapping[str, Any]:
    """Return what a module, class or function holds by name: for a function also its closure, and
    as `__wrapped__` the innermost wrapped function, which may be itself."""
    attributes: Mapping[str, Any] = getattr(holder, "__dict__", {})
    if type(holder) is not types.FunctionType:
        return attributes
    closure = {name: content(cell) for name, cell in cells(holder).items()}
    return {**attributes, **closure, "__wrapped__": unwrapped(holder)[-1]}


def part(holder: Any, name: str) -> Any:
    """Return one of these contents, or the holder's attribute of that name; None where a function
    has none."""
    if holder is None or type(holder) is types.FunctionType:
        return contents(holder).get(name)
    return unwrapped(holder)[-1] if name == "__wrapped__" else getattr(holder, name, None)


def held_by_module(module: str, name: str, kind: str) -> object:
    """Return what a module holds as its import created it, of a class of that name if `kind` is
    given."""
    value = functools.reduce(part, name.split("."), importlib.import_module(module))
    if isinstance(value, type):
        value = own(module, name)
    if kind and type(value).__name__ != kind:
        actual = type(value).__name__
        raise TypeError(f"`{module}.{name}` is a {actual} on ranks but a {kind} in the notebook")
    return value


class Parted(LookupError):
    """Raised when ranks have separated what the notebook's values share."""


def part_held(places: Sequence[Place], kind: str) -> object:
    """Return what ranks hold at these places if it is still a single object."""
    parts: dict[str, Any] = {}
    for name, way in places:
        path, part = name, opening.get().before[name]
        for is_attribute, key in way:
            path += f".{key}" if is_attribute else f"[{key!r}]"
            try:
                part = object.__getattribute__(part, str(key)) if is_attribute else part[key]
            except (LookupError, TypeError, AttributeError) as problem:
                raise Parted(f"ranks no longer have `{path}`") from problem
        parts[path] = part
    (path, part), *others = parts.items()
    for other_path, other_part in others:
        if other_part is not part:
            raise Parted(f"`{path}` and `{other_path}` are no longer the same object on ranks")
    if kind and type(part).__name__ != kind:
        actual = type(part).__name__
        raise Parted(f"`{path}` is a {actual} on ranks but a {kind} in the notebook")
    return part


def module_object(module: str, name: str, base: type, kind: type, *args: object) -> Any:
    """Return what a module holds, to be refilled; a new object if that is of another type, or
    stands for another object of the notebook: the module's import gave it two names."""
    value = contents(holder(module, name)).get(name.rpartition(".")[2])
    if type(value) is kind:
        place, _ = opening.get().table.taken.setdefault(id(value), ((module, name), value))
        if place == (module, name):
            return value
    return new_of_base(base, kind, *args)


#: Handlers set here on loggers of this process.
_handlers: weakref.WeakSet[logging.Handler] = weakref.WeakSet()


def fill_logger(
    logger: logging.Logger, state: tuple[Mapping[str, object], tuple[Any, ...]]
) -> None:
    """Set a logger's level and the like, and its handlers if it has none or some that were set
    here."""
    vars(logger).update(state[0])
    if not logger.handlers or not _handlers.isdisjoint(logger.handlers):
        logger.handlers[:] = [new for spec in state[1] if (new := spec.made()) is not None]
        _handlers.update(logger.handlers)
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]  # of levels


def refill(module: str, name: str, obj: Any, base: Any, content: tuple[Any, Any, Any, Any]) -> None:
    """Make a container (`base`) or other object of a module have exactly this content."""
    if base is not object:
        base.clear(obj)
    if type(obj).__dictoffset__:
        object.__getattribute__(obj, "__dict__").clear()
    fill_container(obj, content)
    put_back(module, name, obj)


#: Notices for the user from opening pickles here, "" if there is nothing to report. Bounded because
#: nobody collects those of the notebook process.
notices: collections.deque[Callable[[], str]] = collections.deque(maxlen=10_000)
_OTHER_NAME = "`{}` is `{}` in the notebook but `{}` on ranks, which use it as imported"
_OTHER_DEFINITION = (
    "`{}` differs on ranks, where the import of `{}` defined another: {} in the notebook, {} there"
)
_CONSTANTS, _MAX_SHOWN = {int, float, str, bool, type(None)}, 40  # characters
_WRAPPED = "`{}` was wrapped in the notebook after its import; ranks use it as imported"


def unwrapped(definition: Any) -> list[Any]:
    """Return a function followed by the functions it wraps in turn (functools.wraps)."""
    functions: list[Any] = []
    while definition is not None and not any(definition is function for function in functions):
        functions.append(definition)
        attributes = getattr(definition, "__dict__", None)
        definition = attributes.get("__wrapped__") if type(attributes) is dict else None
    return functions


def called(value: Any) -> tuple[str, int]:
    """Return the name of a function or class and how often it is wrapped; for other objects the
    name of their class."""
    return str(getattr(value, "__name__", type(value).__name__)), len(unwrapped(value)) - 1


def defined(function: Any) -> tuple[str, str, int]:
    """Return where the code of a function begins, its defaults that are numbers or strings, and a
    number of the code: %autoreload compiles a function alone, as if it began on another line."""
    innermost = unwrapped(function)[-1]
    innermost = getattr(innermost, "__func__", innermost)  # a bound classmethod
    if type(innermost) is not types.FunctionType:
        return "", "", 0
    values = [*(innermost.__defaults__ or ()), *(innermost.__kwdefaults__ or {}).values()]
    texts = [repr(value)[:_MAX_SHOWN] if type(value) in _CONSTANTS else "…" for value in values]
    line, defaults = innermost.__code__.co_firstlineno, ", ".join(texts)
    return f"from line {line}", f"with defaults ({defaults})", _checksum(innermost.__code__)


def _checksum(code: types.CodeType) -> int:
    """Return a checksum of what the code does."""
    inner = [_checksum(item) if type(item) is types.CodeType else item for item in code.co_consts]
    texts = [repr(item) for item in inner if type(item) is not frozenset]  # unordered
    return zlib.crc32(repr((code.co_code, code.co_names, texts)).encode())


def new_module(name: str, content: Mapping[str, Any]) -> types.ModuleType:
    """Create a module that is not importable under any name."""
    module = types.ModuleType(name)
    vars(module).update(content)
    return module


def import_all(names: Iterable[str]) -> None:
    """Import modules before anything is set in one that another's top level may set too. One that
    cannot be imported is reported where it is needed."""
    for name in names:
        opening.get().table.imports.add(name)
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def take_notices() -> list[str]:
    """Return and clear the notices collected since the last call, now that everything is opened."""
    texts = dict.fromkeys(notice() for notice in notices)
    notices.clear()
    return [text for text in texts if text]


def compare(
    module: str, name: str, kind: str, wrapped: int, definition: tuple[str, str, int] = ("", "", 0)
) -> None:
    """Add a notice if a module holds something else under a name than in the notebook. It is
    evaluated once everything is opened: that may import the module, and torch wraps an optimizer's
    `step` then."""
    notices.append(lambda: _difference(module, name, kind, wrapped, definition))


def _difference(
    module: str, name: str, kind: str, wrapped: int, definition: tuple[str, str, int]
) -> str:
    try:
        owner, last = holder(module, name), name.rpartition(".")[2]
        if last not in contents(owner) and not hasattr(owner, last):
            return ""  # a rank that needs it fails
        value = function_in(part(owner, last))
        actual_name, wrapped_here = called(value)
        package = str(getattr([value, *unwrapped(value)][-1], "__module__", None)).partition(".")[0]
    except Exception:  # not imported, or not defined yet
        return ""
    is_own = package in (module.partition(".")[0], "builtins", "None")
    if kind == name.rpartition(".")[2] and not is_own:  # set by a module that only ranks import
        return ""
    if actual_name != kind:
        return _OTHER_NAME.format(f"{module}.{name}", kind, actual_name)
    (line, defaults, code), own = definition, defined(value)
    for expected, actual in ((line, own[0]) if code != own[2] else ("", ""), (defaults, own[1])):
        if expected != actual and any(definition):
            return _OTHER_DEFINITION.format(f"{module}.{name}", module, expected, actual)
    return _WRAPPED.format(f"{module}.{name}") if wrapped_here < wrapped else ""


#: Original definitions of the user's own modules under names that were set since.
_replaced: dict[tuple[str, str], object] = {}


def put_back(module: str, name: str, value: object) -> None:
    """Set a name in a module to the notebook's value; delete it if that is EMPTY."""
    owner, last = holder(module, name), name.rpartition(".")[2]
    previous = contents(owner).get(last, EMPTY)
    if is_in_place(module, name, previous):
        _replaced.setdefault((module, name), previous)
    if owner is None or previous is value:
        return
    if cell := cells(owner).get(last):
        cell.cell_contents = value
    elif value is not EMPTY:
        fill_attributes(owner, {last: value})
    elif previous is not EMPTY:
        delattr(owner, last)


def function_in(part: Any) -> Any:
    """Return the function inside a class attribute."""
    kind = type(part)
    if kind is property:
        return part.fget
    return part.__func__ if kind is staticmethod or kind is classmethod else part


def is_in_place(module: str, name: str, value: Any) -> bool:
    """True if a function or class is the one that the module itself defined under that name."""
    definition: Any = function_in(value)
    if not issubclass(type(definition), type | types.FunctionType | functools._lru_cache_wrapper):
        return False
    main = vars(sys.modules["__main__"])  # a wrapper in the notebook has the same name
    parts = (value.fget, value.fset, value.fdel) if type(value) is property else (definition,)
    functions = itertools.chain.from_iterable(map(unwrapped, parts))
    if any(getattr(function, "__globals__", None) is main for function in functions):
        return False
    return (definition.__module__, definition.__qualname__) == (module, name)


def own(module: str, name: str) -> object:
    """Return what the module itself defined under a name, even if something else has replaced
    it."""
    outer, _, last = name.rpartition(".")
    owner = own(module, outer) if outer else importlib.import_module(module)
    return _replaced.get((module, name), contents(owner).get(last, EMPTY))


def holder(module: str, name: str) -> Any:
    """Return the object that holds the last of the dotted names: the module, or a class or function
    in it; None if it does not exist."""
    return functools.reduce(part, name.split(".")[:-1], importlib.import_module(module))
