"""Make functions and classes again from a pickle that `live` made, without executing them.

A pickle names the functions here, and calls each once its arguments are made: a thing is made empty
and filled later, since what fills it may refer to it.
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
import logging
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

#: Stands for the value of a closure's variable that has none yet.
EMPTY = inspect.Parameter.empty
#: From a value to a part of it: attributes (True) of instances, and keys or indices (False).
Way: TypeAlias = tuple[tuple[bool, str | int], ...]
#: What a name holds, or a part of that.
Place: TypeAlias = tuple[str, Way]


class _NotYet:
    """Stands in a new class or function for what is filled in later. An instance that is opened
    before and reads it fails, rather than go on with another value: not with an AttributeError,
    which `getattr` and `hasattr` take for an answer. What a function gives out fails in use."""

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
    """Stands in a pickle for the result of a call, or for the call itself."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Opening(NamedTuple):
    """What a pickle is opened in: the globals of a module, these as they were before together with
    what it has bound anew, the table of live ranks (`definition_table.Definitions`), and what the
    notebook has, by names and by the numbers of what it has sent."""

    namespace: dict[str, Any]
    before: Mapping[str, Any]
    table: Any
    resolve: Callable[[str | int], object]


#: That of the pickle that this thread is opening.
opening: ContextVar[Opening] = ContextVar("xla_nb_opening")


def namespace() -> dict[str, Any]:
    return opening.get().namespace


def before() -> Mapping[str, Any]:
    return opening.get().before


#: The functions, classes and caches that were made of pickles, by id, and the numbers of those that
#: the notebook has sent: what they are there. In the notebook these come with ranks' results.
opened: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers: dict[int, int] = {}


def numbered(definition: Any, number: int) -> Any:
    """It, which is that one of the notebook's."""
    opened[id(definition)], _numbers[id(definition)] = definition, number
    return definition


def number_of(definition: Any) -> int:
    """Of what an opened one is in the notebook; 0 if it is nothing there."""
    return _numbers[id(definition)] if opened.get(id(definition)) is definition else 0


def forget(definition: Any) -> None:
    """What it was in the notebook is no longer there."""
    opened.pop(id(definition), None)


def at_home(path: str, number: int = 0) -> Any:
    """What the notebook has: by its number if that is known, else by its name."""
    resolve = opening.get().resolve
    if number:
        with contextlib.suppress(KeyError):
            return resolve(number)
    first, *rest = path.split(".")
    return functools.reduce(getattr, rest, resolve(first))


def new_function(
    code: types.CodeType,
    globals_: dict[str, Any],
    name: str,
    closure: tuple[Any, ...] | None,
    number: int,
) -> Any:
    return numbered(types.FunctionType(code, globals_, name, None, closure), number)


def fill_function(function: types.FunctionType, state: Mapping[str, Any]) -> None:
    """Give a new function its globals, the values of its closure, its attributes and its name."""
    function.__globals__.update(state["globals"])
    function.__globals__.setdefault("__builtins__", __builtins__)
    for cell, value in zip(function.__closure__ or (), state["closure"], strict=True):
        if value is not EMPTY:
            cell.cell_contents = value
    fill_attributes(function, state["attributes"])
    vars(function).update(state["dict"])


def new_class(
    metaclass: type, name: str, bases: tuple[type, ...], base_of_dict: dict[str, Any], number: int
) -> Any:
    """A class without content: neither its metaclass nor `__init_subclass__` is called."""
    with _no_init_subclass(bases):
        return numbered(type.__new__(metaclass, name, bases, base_of_dict), number)


def fill_class(cls: type, state: Mapping[str, Any]) -> None:
    """Give a new class what is in its `__dict__`, and register others with it."""
    fill_attributes(cls, state["dict"])
    if state["abstract"] is not None:
        methods, registered = state["abstract"]
        abc._abc_init(cls)  # type: ignore[attr-defined]
        fill_attributes(cls, {"__abstractmethods__": methods})  # as it was defined
        for other in registered:
            abc.ABCMeta.register(cls, other)  # type: ignore[arg-type]


def known(obj: object) -> None:
    """It is there although nobody asks for it: a class is found by `__subclasses__`."""


@contextlib.contextmanager
def _no_init_subclass(bases: tuple[type, ...]) -> Iterator[None]:
    """`type.__new__` calls `__init_subclass__`, which was called when the class was defined."""
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
    """An instance by the `__new__` of a built-in base: the class's own may want other arguments,
    and an enum that is being made does not know its members yet."""
    return base.__new__(cls, *args)


def new_of_base(base: Any, cls: type, *args: object) -> Any:
    """An instance as its base makes one, for a class whose `__init__` takes other arguments. What a
    base has from `object` takes none."""
    made = base.__new__(cls, *(() if base.__new__ is object.__new__ else args))
    if base.__init__ is not object.__init__:
        base.__init__(made, *args)
    return made


def fill_instance(instance: Any, state: Any) -> None:
    """Give a new instance its attributes and slots, past its `__setattr__`."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        object.__getattribute__(instance, "__dict__").update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(instance, name, value)


def adopt_state(instance: Any, state: Any) -> None:
    """Give a new instance the very dict of its attributes, which others may have too, and its
    slots. What its class does with them is done to the same dict."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes is not None:
        object.__setattr__(instance, "__dict__", attributes)
    fill_instance(instance, (None, slots))
    if (attributes or slots) and hasattr(type(instance), "__setstate__"):
        own = dict(attributes or {})
        instance.__setstate__((own, slots) if slots else own)


def fill_container(
    made: Any,
    content: tuple[Callable[..., None], list[list[Any]], Callable[[Any, Any], None], object],
) -> None:
    """Give a new container what it holds and its state, as pickle does, past its class's methods
    for putting things in, and past its `__getattr__`."""
    put, columns, fill, state = content
    for part in zip(*columns, strict=True):
        put(made, *part)
    if fill is fill_instance:
        fill = getattr(type(made), "__setstate__", fill)
    if state is not None:
        fill(made, state)


def fill_attributes(owner: Any, values: Mapping[str, Any]) -> None:
    """Give a class or a function attributes, past a metaclass's `__setattr__`."""
    for name, value in values.items():
        if not isinstance(owner, type):
            setattr(owner, name, value)
        elif name not in _OF_CLASSES:
            type.__setattr__(owner, name, value)
        else:
            (content,) = gc.get_referents(vars(owner))
            content[name] = value
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # for lookups remembered


#: What a class may define for its instances, and setting it on the class means something else.
_OF_CLASSES = {"__class__", "__dict__", "__name__", "__bases__", "__base__", "__mro__"}


class Switch:
    """A cache's function: first the results to be cached, then the real one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def new_cache(maxsize: int | None, typed: bool, number: int) -> Any:
    switch: Any = Switch(NOT_YET)  # type: ignore[arg-type]  # a call fails until it is filled
    cache = functools.lru_cache(maxsize, typed)(switch)
    own = vars(cache)
    parameters = own["cache_parameters"]
    own.clear()  # of the switch's
    own.update(cache_parameters=parameters, __wrapped__=switch)
    return numbered(cache, number)


def fill_cache(cache: Any, state: Mapping[str, Any]) -> None:
    """Give a new cache its function and its attributes."""
    vars(cache).pop("__wrapped__").function = state["function"]
    vars(cache).update(state["dict"], __wrapped__=state["function"])


def fill_results(cache: Any, results: list[tuple[tuple[Any, ...], dict[str, Any], object]]) -> None:
    """Let a cache hold these results, the newest last."""
    switch = next(part for part in gc.get_referents(cache) if isinstance(part, Switch))
    function = switch.function
    for args, kwargs, result in results:
        switch.function = lambda *_, _result=result, **__: _result
        cache(*args, **kwargs)
    switch.function = function


def unnamed_type(base: type, name: str) -> type:
    """A type of Python's own that no module has a name for, such as that of `{}.keys()`."""
    kinds: list[type] = type.__subclasses__(base)
    return next(one for one in kinds if (one.__module__, one.__name__) == ("builtins", name))


def cached_property(function: Any, name: str | None) -> Any:
    made: Any = functools.cached_property(function)
    made.attrname = name
    return made


def content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def cells(holder: Any) -> dict[str, types.CellType]:
    """The variables in the closure of a function."""
    if type(holder) is not types.FunctionType:
        return {}
    return dict(zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True))


def contents(holder: Any) -> Mapping[str, Any]:
    """What a module, a class or a function has under names: a function also in its closure, and as
    `__wrapped__` what all wrappers are around, which may be itself."""
    own: Mapping[str, Any] = getattr(holder, "__dict__", {})
    if type(holder) is not types.FunctionType:
        return own
    closure = {name: content(cell) for name, cell in cells(holder).items()}
    return {**own, **closure, "__wrapped__": unwrapped(holder)[-1]}


def part(holder: Any, name: str) -> Any:
    """One of these, or what the holder gives out under the name; None where a function has none."""
    if holder is None or type(holder) is types.FunctionType:
        return contents(holder).get(name)
    return unwrapped(holder)[-1] if name == "__wrapped__" else getattr(holder, name, None)


def held_by_module(module: str, name: str, kind: str) -> object:
    """What a module holds as importing it makes it, of a class of that name if there is one."""
    found = functools.reduce(part, name.split("."), importlib.import_module(module))
    if isinstance(found, type):
        found = own(module, name)
    if kind and type(found).__name__ != kind:
        here = type(found).__name__
        raise TypeError(f"`{module}.{name}` is a {here} on ranks but a {kind} in the notebook")
    return found


class Parted(LookupError):
    """Ranks have taken apart what the notebook's values share."""


def part_held(held: Mapping[str, Any], places: Sequence[Place], kind: str) -> object:
    """What ranks hold at these places, if that is one object still."""
    found: dict[str, Any] = {}
    for name, way in places:
        path, part = name, held[name]
        for is_attribute, key in way:
            path += f".{key}" if is_attribute else f"[{key!r}]"
            try:
                part = object.__getattribute__(part, str(key)) if is_attribute else part[key]
            except (LookupError, TypeError, AttributeError) as problem:
                raise Parted(f"ranks no longer have `{path}`") from problem
        found[path] = part
    (path, part), *others = found.items()
    for other, its in others:
        if its is not part:
            raise Parted(f"`{path}` and `{other}` are no longer the same object on ranks")
    if kind and type(part).__name__ != kind:
        here = type(part).__name__
        raise Parted(f"`{path}` is a {here} on ranks but a {kind} in the notebook")
    return part


def module_object(module: str, name: str, base: type, kind: type, *args: object) -> Any:
    """What a module holds, to be refilled; a new one where that is something else."""
    found = contents(holder(module, name)).get(name.rpartition(".")[2])
    return found if type(found) is kind else new_of_base(base, kind, *args)


#: Handlers that loggers of this process were given.
_handlers: weakref.WeakSet[logging.Handler] = weakref.WeakSet()


def fill_logger(made: logging.Logger, state: tuple[Mapping[str, object], tuple[Any, ...]]) -> None:
    """Give a logger its level and such, and handlers if it has none, or was given some before."""
    vars(made).update(state[0])
    if not made.handlers or not _handlers.isdisjoint(made.handlers):
        made.handlers[:] = [one for each in state[1] if (one := each.made()) is not None]
        _handlers.update(made.handlers)
    logging.Logger.manager._clear_cache()  # type: ignore[attr-defined]  # of levels


def refill_container(
    module: str, name: str, made: Any, base: Any, content: tuple[Any, Any, Any, Any]
) -> None:
    """Let a container of a module hold this alone."""
    base.clear(made)
    fill_container(made, content)
    put_back(module, name, made)


def refill_instance(module: str, name: str, made: Any, state: Any) -> None:
    """Let an instance of a module have this state alone."""
    if type(made).__dictoffset__:
        object.__getattribute__(made, "__dict__").clear()
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    else:
        fill_instance(made, state)
    put_back(module, name, made)


#: What was found out while pickles were opened here, for the user; "" if nothing. Bounded, as
#: nobody takes what the notebook opens.
notices: collections.deque[Callable[[], str]] = collections.deque(maxlen=10_000)
_OTHER = "`{}` is `{}` in the notebook but `{}` on ranks, which use it as imported"
_OTHERWISE = (
    "`{}` differs on ranks, where the import of `{}` defined another: {} in the notebook, {} there"
)
_CONSTANTS, _SHOWN = {int, float, str, bool, type(None)}, 40  # characters
_WRAPPED = "`{}` was wrapped in the notebook after its import; ranks use it as imported"


def unwrapped(definition: Any) -> list[Any]:
    """A function, and what it wraps in turn (functools.wraps)."""
    found: list[Any] = []
    while definition is not None and not any(definition is one for one in found):
        found.append(definition)
        held = getattr(definition, "__dict__", None)
        definition = held.get("__wrapped__") if type(held) is dict else None
    return found


def called(value: Any) -> tuple[str, int]:
    """The name of a function or a class itself, and how often it is wrapped; of all else that of
    its class."""
    return str(getattr(value, "__name__", type(value).__name__)), len(unwrapped(value)) - 1


def defined(function: Any) -> tuple[str, str, int]:
    """Where the code of a function begins, its defaults that are numbers or text, and a number of
    the code: %autoreload compiles a function alone, as if it began in another line."""
    one = unwrapped(function)[-1]
    one = getattr(one, "__func__", one)  # of a method of a class
    if type(one) is not types.FunctionType:
        return "", "", 0
    given = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    shown = [repr(each)[:_SHOWN] if type(each) in _CONSTANTS else "…" for each in given]
    line, defaults = one.__code__.co_firstlineno, ", ".join(shown)
    return f"from line {line}", f"with defaults ({defaults})", _number_of(one.__code__)


def _number_of(code: types.CodeType) -> int:
    """Of what the code does."""
    inner = [_number_of(one) if type(one) is types.CodeType else one for one in code.co_consts]
    shown = [repr(one) for one in inner if type(one) is not frozenset]  # which is in no order
    return zlib.crc32(repr((code.co_code, code.co_names, shown)).encode())


def new_module(name: str, content: Mapping[str, Any]) -> types.ModuleType:
    """A module that is imported under no name."""
    made = types.ModuleType(name)
    vars(made).update(content)
    return made


def import_all(names: Iterable[str]) -> None:
    """Import modules, before anything is put into one that another's top level may set. One that
    cannot be imported is told where it is needed."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def take_notices() -> list[str]:
    """Those of what was opened since the last time, now that it is."""
    found = dict.fromkeys(told() for told in notices)
    notices.clear()
    return [text for text in found if text]


def compare(
    module: str, name: str, kind: str, wrapped: int, made: tuple[str, str, int] = ("", "", 0)
) -> None:
    """Note if a module has something else under a name than in the notebook, once all is opened:
    that may import it, and torch wraps an optimizer's `step` then."""
    notices.append(lambda: _difference(module, name, kind, wrapped, made))


def _difference(module: str, name: str, kind: str, wrapped: int, made: tuple[str, str, int]) -> str:
    try:
        found = function_in(functools.reduce(part, name.split("."), sys.modules[module]))
        here, times = called(found)
        made_in = str(getattr([found, *unwrapped(found)][-1], "__module__", None)).partition(".")[0]
    except Exception:  # it is not imported, or has not made that yet
        return ""
    is_its = made_in in (module.partition(".")[0], "builtins", "None")
    if kind == name.rpartition(".")[2] and not is_its:  # put there by what ranks alone import
        return ""
    if here != kind:
        return _OTHER.format(f"{module}.{name}", kind, here)
    (line, defaults, code), own = made, defined(found)
    for its, ours in ((line, own[0]) if code != own[2] else ("", ""), (defaults, own[1])):
        if its != ours and any(made):
            return _OTHERWISE.format(f"{module}.{name}", module, its, ours)
    return _WRAPPED.format(f"{module}.{name}") if times < wrapped else ""


#: What the user's modules had made themselves under names that were set since.
_replaced: dict[tuple[str, str], object] = {}


def put_back(module: str, name: str, value: object) -> None:
    """Let a module have under a name what it has in the notebook; nothing if that is EMPTY."""
    found, last = holder(module, name), name.rpartition(".")[2]
    before = contents(found).get(last, EMPTY)
    if is_in_place(module, name, before):
        _replaced.setdefault((module, name), before)
    if found is None or before is value:
        return
    if cell := cells(found).get(last):
        cell.cell_contents = value
    elif value is not EMPTY:
        fill_attributes(found, {last: value})
    elif before is not EMPTY:
        delattr(found, last)


def function_in(part: Any) -> Any:
    """The function in what a class holds."""
    kind = type(part)
    if kind is property:
        return part.fget
    return part.__func__ if kind is staticmethod or kind is classmethod else part


def is_in_place(module: str, name: str, value: Any) -> bool:
    """Whether a function or a class is what a module itself has made under a name."""
    plain: Any = function_in(value)
    if not issubclass(type(plain), type | types.FunctionType | functools._lru_cache_wrapper):
        return False
    main = vars(sys.modules["__main__"])  # a wrapper of the notebook's has the name, too
    if any(getattr(one, "__globals__", None) is main for one in unwrapped(plain)):
        return False
    return (plain.__module__, plain.__qualname__) == (module, name)


def own(module: str, name: str) -> object:
    """What a module itself has made under a name, also where something else is there now."""
    outer, _, last = name.rpartition(".")
    there = own(module, outer) if outer else importlib.import_module(module)
    return _replaced.get((module, name), contents(there).get(last, EMPTY))


def holder(module: str, name: str) -> Any:
    """What has the last of the names: the module, or a class or function in it; None if there is no
    such part."""
    return functools.reduce(part, name.split(".")[:-1], importlib.import_module(module))
