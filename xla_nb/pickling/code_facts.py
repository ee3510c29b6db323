"""Facts about functions, classes, instances and caches, found without running any of their code."""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import gc
import inspect
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling.rebuild import (
    EMPTY,
    Switch,
    adopt_state,
    cells,
    content,
    contents,
    fill_container,
    function_in,
    new_of_base,
    set_state,
    unwrapped,
)

BUILTIN_NEW = type(object.__new__)
_MAX_ITEMS, _MAX_WALKED = 10_000, 1_000_000
#: From a value to a part: each part on the way after what leads to it.
Steps: TypeAlias = tuple[tuple[Any, Any], ...]
_WORD = r"[^\W\d]\w*"
_IMPORTS = "IMPORT_NAME", "IMPORT_FROM"
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), types.CodeType)
CODE = (type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType)
FUNCTIONS = types.FunctionType, types.MethodType, functools._lru_cache_wrapper, functools.partial
_DESCRIPTORS = (
    *(property, staticmethod, classmethod, functools.cached_property),
    *(functools.partialmethod, functools.singledispatchmethod),
)
ATTRIBUTES = [
    *("__qualname__", "__annotations__", "__module__", "__doc__"),
    *(("__type_params__",) if sys.version_info >= (3, 12) else ()),
]

#: Packages whose classes are pickled in special ways.
_SPECIAL_PACKAGES = {
    *("builtins", "_io", "io", "socket", "multiprocessing", "ipykernel", "IPython"),
    *("numpy", "torch", "torchax", "jax", "jaxlib"),
}


def is_ready(part: object) -> bool:
    """True for code and constants: unpickling them needs no instances."""
    kind = type(part)
    if kind in PLAIN or issubclass(kind, CODE) or part is EMPTY:
        return True
    return kind in (tuple, frozenset) and all(map(is_ready, part))  # type: ignore[call-overload]


def is_ready_in(holder: object, name: str, part: object) -> bool:
    """True if a part of a class or function can exist before instances do."""
    if not isinstance(holder, type):
        return holds_what_is_ready(part)
    is_descriptor = hasattr(type(part), "__get__") or hasattr(type(part), "__set_name__")
    return is_descriptor or holds_what_is_ready(part) or (name[:2] == name[-2:] == "__")


def holds_what_is_ready(part: object) -> bool:
    """Like `is_ready`, but also accepts dicts, lists and sets of such parts (of names, say), which
    instances may read while they are unpickled. A long one is not searched."""
    if type(part) is dict and len(part) <= _MAX_ITEMS:
        return all(is_ready(key) and is_ready(value) for key, value in part.items())
    if type(part) in (list, set) and len(part) <= _MAX_ITEMS:  # type: ignore[arg-type]
        return all(map(is_ready, part))  # type: ignore[call-overload]
    return is_ready(part)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects defined in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes(inner)


def _steps(code: types.CodeType) -> Iterator[dis.Instruction]:
    return itertools.chain.from_iterable(map(dis.get_instructions, codes(code)))


@functools.lru_cache(maxsize=4096)
def globals_in(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals that code, or code defined in it, reads, sets or deletes, in order."""
    names = (step.argval for step in _steps(code) if step.opname.endswith("_GLOBAL"))
    return tuple(dict.fromkeys(names))


@functools.lru_cache(maxsize=4096)
def in_bodies(code: types.CodeType) -> tuple[str, ...]:
    """Return names used in class bodies, which read globals without `global`."""
    inner = itertools.islice(codes(code), 1, None)
    bodies = (body for body in inner if not body.co_flags & inspect.CO_OPTIMIZED)  # of classes
    return tuple(name for body in bodies for name in body.co_names)


@functools.lru_cache(maxsize=4096)
def in_texts(code: types.CodeType) -> tuple[str, ...]:
    """Return words in string constants that may be names: in IPython commands (`!cp {source}
    $target`), whose strings the code does not mark; in all strings of code that looks names up by
    string (`globals()["model"]`, `eval`); and after `@`, as in pandas' `frame.query("a >
    @low")`."""
    words: list[str] = []
    for inner in codes(code):
        texts = [const for const in inner.co_consts if isinstance(const, str)]
        is_lookup = looks_up(inner)
        for text in texts:
            words += re.findall(_WORD if is_lookup else f"(?<=@){_WORD}", text)
        if is_lookup:
            words += inner.co_names  # `__main__.model`
        if "get_ipython" in inner.co_names:
            expanded = re.findall(r"\{.*?\}|\$\w+", " ".join(texts))
            words += re.findall(_WORD, " ".join(expanded))
    return tuple(dict.fromkeys(words))


def looks_up(code: types.CodeType) -> bool:
    """True if code looks global names up by strings."""
    return "__main__" in code.co_names or any(
        step.argval in _LOOKUPS.get(step.opname, ()) for step in dis.get_instructions(code)
    )


#: In a cell's top level, where locals are globals, and in a function.
_LOOKUPS = {
    "LOAD_NAME": {"globals", "locals", "eval", "exec"},
    "LOAD_GLOBAL": {"globals", "eval", "exec"},
}


def looks_up_any(code: types.CodeType, by: str) -> bool:
    """True if code, or code defined in it, looks names up `by` "globals" or "eval" that are not
    constants of it."""
    users = (inner for inner in codes(code) if by in inner.co_names)
    unfiltered = itertools.chain.from_iterable(map(dis.get_instructions, users))
    steps = [step for step in unfiltered if step.opname not in _IGNORED]
    return any(
        step.opname in _LOOKUPS and step.argval == by and not _has_constant(by, steps, n)
        for n, step in enumerate(steps)
    )


def _has_constant(by: str, steps: list[dis.Instruction], n: int) -> bool:
    """True for `eval("lr")`, `globals()["lr"]`, `globals().get("lr")` and `"lr" in globals()`."""
    first, second, third, *_ = [*(step.opname for step in steps[n + 1 : n + 4]), "", "", ""]
    if by == "eval":
        return first == "LOAD_CONST"
    if second == "CONTAINS_OP":
        return steps[n - 1].opname == "LOAD_CONST"
    is_method = second in ("LOAD_METHOD", "LOAD_ATTR")
    return (third if is_method else second) == "LOAD_CONST"


_IGNORED = {"CACHE", "PRECALL", "PUSH_NULL"}


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return all names of globals and attributes in code and code defined in it, and its strings
    that may be names: `getattr(config, "lr")`."""
    texts = (const for inner in codes(code) for const in inner.co_consts if isinstance(const, str))
    names = (inner.co_names for inner in codes(code))
    return frozenset(filter(str.isidentifier, texts)).union(*names)


@functools.lru_cache(maxsize=4096)
def imports_in(code: types.CodeType) -> frozenset[str]:
    """Return the names that code, or code defined in it, imports: modules and their attributes;
    also `__main__` if it uses that name."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    names = frozenset({"__main__"}.intersection(code.co_names)).union(*map(imports_in, inner))
    if {"import_module", "__import__"}.intersection(code.co_names):
        names = names.union(const for const in code.co_consts if isinstance(const, str))
    if _IMPORT_NAME not in code.co_code[::2]:
        return names
    steps = dis.get_instructions(code)
    return names.union(step.argval for step in steps if step.opname in _IMPORTS)


def in_hints(definition: Any) -> Iterator[str]:
    """Yield the words in string annotations."""
    hints = vars(definition).get("__annotations__", {}) if isinstance(definition, type) else None
    for hint in (definition.__annotations__ if hints is None else hints).values():
        if isinstance(hint, str):
            yield from re.findall(_WORD, hint)


def built_in_base(kind: type) -> type | None:
    """Return the base whose `__new__` is not Python code; None if the class defines how its
    instances are pickled."""
    return making(kind) if is_plain(kind) and not hasattr(kind, "__getnewargs_ex__") else None


def is_pickled_by_its_dict(kind: Any) -> bool:
    """True if pickle copies the `__dict__` of instances into new ones."""
    return is_plain(kind) and leaves_its_state(kind)


def is_pickled_as(kind: type, base: type) -> bool:
    """True if a class leaves to this base how its instances are pickled."""
    names = "__reduce_ex__", "__reduce__", "__getstate__"
    return all(getattr(kind, name) is getattr(base, name) for name in names)


def leaves_its_state(kind: Any) -> bool:
    """True if the state of instances is their `__dict__` and slots."""
    return kind.__getstate__ is object.__getstate__


def hides_its_dict(kind: Any) -> bool:
    """True if the `__dict__` of its instances does not hold their attributes."""
    return type(in_class(kind, "__dict__")) not in _DICTS and not hasattr(kind, "__setstate__")


_DICTS = types.GetSetDescriptorType, types.MemberDescriptorType, types.NoneType


def state_with_dict(obj: object, state: Any) -> Any:
    """Return an instance's default state, with its own `__dict__` even if that is empty: `config =
    vars(args)` stays the same dict on ranks."""
    if state is None and type(obj).__dictoffset__:
        return object.__getattribute__(obj, "__dict__")
    return state


def making(kind: type) -> type:
    """Return the class whose built-in `__new__` creates the instances of a class."""
    return next(base for base in kind.__mro__ if type(vars(base).get("__new__")) is BUILTIN_NEW)


#: Built-in containers, each with its function to add a part. The first that a class extends counts.
_CONTAINERS: dict[type, Any] = {
    collections.OrderedDict: collections.OrderedDict.__setitem__,
    collections.defaultdict: dict.__setitem__,
    dict: dict.__setitem__,
    list: list.append,
    collections.deque: collections.deque.append,
    set: set.add,
}


#: Mutable containers of Python.
CONTAINERS = {*_CONTAINERS, collections.Counter}


def container(kind: type) -> type | None:
    """Return the built-in container that a class extends, if the class leaves pickling to it."""
    base: Any = next((candidate for candidate in _CONTAINERS if issubclass(kind, candidate)), None)
    if base is None or making(kind) not in base.__mro__ or hasattr(kind, "__getnewargs_ex__"):
        return None
    is_inherited = kind.__reduce__ in (base.__reduce__, collections.Counter.__reduce__)
    return base if is_inherited and kind.__reduce_ex__ is base.__reduce_ex__ else None


def arguments_of_container(base: type, obj: Any) -> tuple[Any, ...]:
    """Return the arguments with which `base.__init__` creates an empty one."""
    if base is collections.defaultdict:
        return (obj.default_factory,)
    return ((), obj.maxlen) if base is collections.deque else ()


def held_by_container(base: Any, obj: object) -> tuple[Any, list[list[Any]]]:
    """Return the function that puts a part into a container, and the contents: keys and values, or
    items; nothing for an `object`. The class's own methods for adding parts were called already."""
    if base is object:
        return None, []
    readers = (base.keys, base.values) if issubclass(base, dict) else (base.__iter__,)
    return _CONTAINERS[base], [list(read(obj)) for read in readers]


def reduced_container(obj: Any, base: type) -> Any:
    """Return the reducer value of a dict, list or the like: it is filled with the built-in type's
    methods, since its class may change, record or refuse what is put in."""
    arguments = base, type(obj), *arguments_of_container(base, obj)
    state = obj.__getstate__()
    keeps_dict = leaves_its_state(type(obj))
    filling = (adopt_state, state_with_dict(obj, state)) if keeps_dict else (set_state, state)
    add, columns = held_by_container(base, obj)
    content = add, columns, *filling
    return new_of_base, arguments, content, None, None, fill_container


#: How a part is reached by its name or key. Keys and items of sets cannot be reached.
ATTRIBUTE, ITEM, CLOSURE, _MEMBER = ".{}", "[{!r}]", " → {}", ""
_ITEMS: dict[Any, str] = {
    **dict.fromkeys([list, tuple, collections.deque], ITEM),
    **dict.fromkeys([set, frozenset], _MEMBER),
}
#: Contents outside `__dict__`, which a partial creates when it is read.
_CONTENT_NAMES: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__self__",),
}


def parts(value: Any) -> Iterator[tuple[tuple[str, Any], Any]]:
    """Yield the items of a container, a function's closure, and the attributes of most other
    objects, each with how it is reached, without calling methods of their classes."""
    kind = type(value)
    if issubclass(kind, dict):
        yield from (((_MEMBER, key), key) for key in dict.keys(value))
        yield from (((ITEM, key), part) for key, part in dict.items(value))
    for base, place in _ITEMS.items():
        if issubclass(kind, base):
            yield from (((place, n), part) for n, part in enumerate(base.__iter__(value)))
    if kind is types.FunctionType:
        for name, cell in cells(value).items():
            if (part := content(cell)) is not EMPTY:
                yield (CLOSURE, name), part
    elif kind in _CONTENT_NAMES:
        yield from (((ATTRIBUTE, name), getattr(value, name)) for name in _CONTENT_NAMES[kind])
    elif not issubclass(kind, types.ModuleType):
        with contextlib.suppress(AttributeError):
            attributes = object.__getattribute__(value, "__dict__").items()
            yield from (((ATTRIBUTE, name), part) for name, part in attributes)


def ways(
    value: object,
    wanted: Set[int],
    steps: Callable[[Any], Iterable[tuple[Any, Any]]] = parts,
) -> Iterator[tuple[Any, Steps]]:
    """Yield the objects in a value whose ids are `wanted`, each with the shortest path to it.
    `steps` yields the parts of an object, each with what leads to it."""
    seen, todo = {id(value)}, collections.deque[tuple[Any, Steps]]([(value, ())])
    while todo and len(seen) < _MAX_WALKED:
        holder, way = todo.popleft()
        if id(holder) in wanted and way:
            yield holder, way
        for step, part in steps(holder):
            if id(part) not in seen and type(part) not in PLAIN:
                seen.add(id(part))
                todo.append((part, (*way, (step, part))))


def in_class(kind: type, name: str) -> Any:
    """Return what a class or its bases hold under a name, without invoking descriptors."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def new_arguments(kind: type, obj: object) -> tuple[Any, ...]:
    """Return the arguments with which `kind.__new__` recreates `obj`, for a type that is not
    written in Python."""
    if hasattr(kind, "__getnewargs__"):
        arguments: tuple[Any, ...] = kind.__getnewargs__(obj)
        return arguments
    if kind.__flags__ & HEAP_TYPE or is_plain(kind):
        return ()
    reduce: Any = kind.__reduce__  # such as datetime.date's
    return tuple(reduce(obj)[1])


HEAP_TYPE = 1 << 9


def assigns(code: types.CodeType, name: str) -> bool:
    return any(step.opname == "STORE_GLOBAL" and step.argval == name for step in _steps(code))


def is_made_here(cls: type) -> bool:
    """True if a class belongs to no module: it is the notebook's or was created by a function."""
    if cls.__module__ == "builtins":  # `type(None)`, `function` and the like have no name in it
        return False
    return not importable(cls)


_NAMED_TYPES = {value for value in vars(types).values() if type(value) is type}


def is_unnamed(cls: type) -> bool:
    """True for a built-in type that neither `builtins` nor `types` has a name for."""
    if cls.__module__ != "builtins" or cls.__flags__ & HEAP_TYPE or importable(cls):
        return False
    return cls not in _NAMED_TYPES


def importable(definition: Any) -> bool:
    """True if a function or class can be imported and is not the notebook's."""
    return is_found_by_name(definition) and not is_the_notebooks(definition)


def imported_as(value: Any) -> str:
    """Return a name by which both sides can import a value: a module's name, or a function's or
    class's with its module; empty for anything else."""
    if type(value) is types.ModuleType:
        return value.__name__ if sys.modules.get(value.__name__) is value else ""
    is_code = type(value) in (types.FunctionType, types.BuiltinFunctionType, type)
    return f"{value.__module__}.{value.__qualname__}" if is_code and importable(value) else ""


def is_found_by_name(definition: Any) -> bool:
    """True if its module holds it under its name in this process."""
    module, path = _module_and_path(definition)
    try:
        value = functools.reduce(getattr, path.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return False
    return value is definition


def _module_and_path(definition: Any) -> tuple[str, str]:
    """Return the module of a function or class and its name there. The module is "" for a notebook,
    a script run by `runpy.run_path`, or a module that is sent by value
    (`cloudpickle.register_pickle_by_value`)."""
    module = definition.__module__
    if isinstance(definition, types.BuiltinFunctionType):
        module = getattr(definition.__self__, "__name__", None)
    by_value = cloudpickle.list_registry_pickle_by_value()
    is_by_value = any(f"{module}.".startswith(f"{name}.") for name in by_value)
    if is_by_value or not isinstance(module, str) or module in ("__main__", "<run_path>"):
        module = ""
    return module, getattr(definition, "__qualname__", definition.__name__)


def value_of(module: str, path: str) -> object:
    """Return what a module, or a class or function in it, holds under a name; EMPTY if it is
    gone."""
    value: object = sys.modules.get(module)
    for name in path.split("."):
        value = contents(value).get(name, EMPTY)
    return value


def place_of(definition: Any) -> tuple[str, str]:
    """Return the module and path under which ranks find a function or class, even if a decorator
    (functools.wraps) or the notebook has replaced it; ("", "") if there is none."""
    module, path = _module_and_path(definition)
    value = value_of(module, path)
    if value is EMPTY or is_the_notebooks(definition):
        return "", ""
    if value is not definition and any(inner is definition for inner in unwrapped(value)[-1:]):
        return module, f"{path}.__wrapped__"
    is_class_or_builtin = isinstance(definition, type | types.BuiltinFunctionType)
    is_found = value is definition or (is_class_or_builtin and is_the_notebooks(value))
    return (module, path) if is_found else ("", "")


def is_the_notebooks(definition: Any) -> bool:
    """True if a function or class, under any name, is code of the notebook; also for a function
    that a library's decorator created from the notebook's."""
    main = vars(sys.modules["__main__"])
    if not isinstance(definition, type):
        return any(getattr(inner, "__globals__", None) is main for inner in unwrapped(definition))
    if definition.__module__ == "__main__":
        return True
    parts = [part for _, part in functions_in(definition)]
    bodies = {
        part.__code__.co_qualname.rpartition(".")[0] for part in parts if part.__globals__ is main
    }
    if definition.__qualname__ not in bodies:  # the notebook set methods in a library's class
        return False
    module = sys.modules.get(definition.__module__)
    return not any(part.__globals__ is getattr(module, "__dict__", None) for part in parts)


def functions_in(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield the functions that a class holds, from its body or set later, with their names."""
    for name, part in list(vars(cls).items()):
        function = function_in(part)
        if type(function) is types.FunctionType:
            yield name, function


def functions_of(parts: list[Any]) -> Iterator[types.FunctionType]:
    """Yield the functions inside functions, methods, properties and decorator results."""
    todo, seen = list(parts), set[int]()
    while todo:
        part = todo.pop()
        if id(part) in seen or not issubclass(type(part), (*FUNCTIONS, *_DESCRIPTORS)):
            continue
        seen.add(id(part))
        if type(part) is types.FunctionType:
            yield part
            todo += map(content, part.__closure__ or ())
        names = "__func__", "__wrapped__", "fget", "fset", "fdel", "func"
        todo += (getattr(part, name, None) for name in names)


def is_modules(globals_: dict[str, Any], name: str) -> bool:
    module = sys.modules.get(name)
    is_imported = getattr(module, "__spec__", None) is not None
    return is_imported and name != "__main__" and vars(module) is globals_


def results(cache: Any) -> list[tuple[tuple[Any, ...], dict[str, Any], object]]:
    """Return the contents of a cache that is not `typed`: arguments and result, the least recently
    used first.

    Reads the garbage collector's view of CPython's `_lru_cache_wrapper`: its type, then for each
    result of a bounded cache key, result (and, from 3.11, a type), then the dict, the function and
    the mark between positional and named arguments (Modules/_functoolsmodule.c).
    """
    parts = gc.get_referents(cache)
    function = cache.__wrapped__
    index = next((n for n, p in enumerate(parts) if p is function or isinstance(p, Switch)), 0)
    if index == 0 or not isinstance(parts[index - 1], dict):
        return []
    entries, mark = parts[index - 1], parts[index + 1]
    if cache.cache_parameters()["maxsize"] is None:
        pairs = list(entries.items())
    else:
        links = [part for part in parts[: index - 1] if not is_a_links_type(part)]
        pairs = list(zip(links[::2], links[1::2], strict=True))
    return [(*_arguments(key, mark), result) for key, result in pairs]


def is_a_links_type(part: object) -> bool:
    return isinstance(part, type) and part.__module__ == "functools" and part.__name__[0] == "_"


def _arguments(key: Any, mark: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments from which a cache key was made (functools._make_key)."""
    if not isinstance(key, tuple):
        return (key,), {}
    split = next((n for n, part in enumerate(key) if part is mark), None)
    if split is None:
        return key, {}
    named = key[split + 1 :]
    return key[:split], dict(zip(named[::2], named[1::2], strict=True))


def is_plain(kind: type) -> bool:
    """True if instances are pickled the way `object` does it."""
    names = "__reduce_ex__", "__reduce__"
    return all(getattr(kind, name) is getattr(object, name) for name in names)


def is_made_by_pickle_alone(kind: type) -> bool:
    """True if unpickling an instance calls no method of its class."""
    names = *("__new__", "__reduce_ex__", "__reduce__", "__getstate__"), "__getattribute__"
    if any(getattr(kind, name) is not getattr(object, name) for name in (*names, "__setattr__")):
        return False
    hooks = "__getattr__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"
    return not any(hasattr(kind, name) for name in hooks)


def is_refillable(kind: type) -> bool:
    """True if its instances consist of their `__dict__` and slots only, unlike locks."""
    has_slots = any("__slots__" in vars(base) for base in kind.__mro__)
    has_state = kind.__dictoffset__ != 0 or kind is object or has_slots
    return built_in_base(kind) is object and has_state and not hasattr(kind, "__getnewargs__")


def is_disguised(kind: type) -> bool:
    """True if its instances pretend to be of another class to `isinstance`, as proxies do."""
    return any("__class__" in vars(base) for base in kind.__mro__[:-1])


def is_ordinary(kind: type) -> bool:
    """True if all objects of a class are pickled alike, without special handling."""
    modules = {base.__module__.partition(".")[0] for base in kind.__mro__[:-1]}
    return not modules & _SPECIAL_PACKAGES and not issubclass(kind, BaseException)
