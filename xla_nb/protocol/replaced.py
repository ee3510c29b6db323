"""What the notebook has put into a module in place of the module's own: `F.relu = traced(F.relu)`.

Pickle finds functions and classes by their names. On ranks the module has its own under such a
name: what the notebook has put there is sent as it is, and what the module had there by the name.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.protocol import bound_anew, module_code, remake

_KEPT = "`{}` is the notebook's: on ranks only where a value refers to it, the module has its own"
_ANEW = "`{}` was bound to another object after its import; ranks have it as the import makes it"
_WRAPPED = (
    "`{}` was wrapped after its module had been imported; ranks have it as the import makes it"
)


def is_the_notebooks(definition: object) -> bool:
    """Whether a function or a class, under whatever name, is of the notebook's code: also a
    function that a library's decorator has made of the notebook's."""
    if isinstance(definition, type):
        return _is_class_of_the_notebook(definition)
    main = vars(sys.modules["__main__"])
    return any(getattr(one, "__globals__", None) is main for one in _unwrapped(definition))


def _unwrapped(definition: Any) -> list[Any]:
    """A function, and what it wraps in turn (functools.wraps)."""
    found: list[Any] = []
    while definition is not None and not any(definition is one for one in found):
        found.append(definition)
        held = getattr(definition, "__dict__", None)
        definition = held.get("__wrapped__") if type(held) is dict else None
    return found


def _is_class_of_the_notebook(cls: type) -> bool:
    """Whether its body is. A class of a library's in which the notebook has set a method is not."""
    main = vars(sys.modules["__main__"])
    own = [part for _, part in _functions(cls) if part.__globals__ is main]
    if not own and not _names_itself(cls):
        return False
    if _is_written_in_its_module(cls):
        return False
    bodies = (one.__code__.co_qualname.rpartition(".")[0] for one in own)
    return not own or cls.__qualname__ in bodies


def _names_itself(cls: type) -> bool:
    """Whether it extends what its module has made, as far as can be seen, under its name."""
    name = cls.__module__, cls.__qualname__
    named = (base for base in cls.__mro__[1:] if (base.__module__, base.__qualname__) == name)
    return any(map(_is_written_in_its_module, named))


def _is_written_in_its_module(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return any(part.__code__.co_filename == file for _, part in _functions(cls))


def _functions(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    """What a class's own body or somebody else has put into it, each under its name."""
    for name, part in list(vars(cls).items()):
        kind, function = type(part), part
        if kind is property:
            function = part.fget
        elif kind is staticmethod or kind is classmethod:
            function = part.__func__
        if type(function) is types.FunctionType:
            yield name, function


def reduced(obj: Any) -> Any:
    """What a module had under a name that the notebook has given to something else, by the name;
    NotImplemented for all other functions and classes."""
    module, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if isinstance(obj, types.BuiltinFunctionType) and isinstance(obj.__self__, types.ModuleType):
        module = obj.__self__.__name__
    if not isinstance(module, str) or not isinstance(path, str) or module not in sys.modules:
        return NotImplemented
    found = sys.modules[module]
    if found is sys.modules["__main__"]:
        return NotImplemented
    for part in path.split("."):
        found = getattr(found, part, None)  # type: ignore[assignment]  # nor has any `<locals>`
    if found is None or found is obj or not is_the_notebooks(found) or is_the_notebooks(obj):
        return NotImplemented
    if not isinstance(obj, type | types.BuiltinFunctionType):
        decorators, wrappers = _written(module, obj) or (0, 1)
        if decorators != wrappers:  # the module's own wraps it
            return NotImplemented
    return remake.held_by_module, (module, path, type(obj).__name__)


@functools.lru_cache(maxsize=4096)
def _written(module: str, function: Any) -> tuple[int, int] | None:
    """How many decorators a function has in its module's code, and how many wrappers it has; None
    where that code does not define it."""
    wrappers = _unwrapped(function)
    code, made = module_code.of(module), getattr(wrappers[-1], "__code__", None)
    found = module_code.decorators(code).get(made) if code and made else None
    return None if found is None else (found, len(wrappers) - 1)


def notes(obj: Any) -> Iterator[str]:
    """What ranks do not have of a module, or of its class or function, that is sent by its name."""
    if isinstance(obj, types.ModuleType):
        if not module_code.is_own(obj):
            yield from (note_of(obj.__name__, name) for name in names_in(obj))
            root = obj.__name__.partition(".")[0]
            for name in bound_anew_in(obj) if root not in sys.stdlib_module_names else ():
                made_in = str(getattr(vars(obj)[name], "__module__", None)).partition(".")[0]
                if made_in in (root, "builtins", "functools", "None"):  # not by another's import
                    yield _ANEW.format(f"{obj.__name__}.{name}")
    elif isinstance(obj, type):
        for base in obj.__mro__:
            if not _is_of_own_module(base):
                yield from (note_of(base.__module__, name) for name in methods_in(base))
    elif len(_unwrapped(obj)) > 1 and (_written(obj.__module__, obj) or (1, 0))[0] == 0:
        yield _WRAPPED.format(f"{obj.__module__}.{obj.__qualname__}")


def note_of(module: str, name: str) -> str:
    """Of what the notebook has put into a module, or a class of it, and ranks do not have there."""
    return _KEPT.format(f"{module}.{name}")


def _is_of_own_module(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    return isinstance(module, types.ModuleType) and module_code.is_own(module)


def methods_in(cls: type) -> Iterator[str]:
    """The notebook's methods in a class of a module, by their paths in the module."""
    for name, method in _functions(cls):
        if is_the_notebooks(method):
            yield f"{cls.__qualname__}.{name}"


def names_in(module: types.ModuleType) -> Iterator[str]:
    """The names that a module's code binds to something else than the notebook has there."""
    content = vars(module)
    for name, value in list(content.items()):
        is_other = False
        if type(value) is types.FunctionType:  # a module may have thousands
            plain = value.__globals__ is content and not value.__dict__
            is_other = not plain and is_the_notebooks(value)
        elif issubclass(type(value), type):  # asks nothing of a library's stand-ins
            is_other = value.__module__ == "__main__"
        if is_other and is_bound(module, name):
            yield name


def _package(module: types.ModuleType) -> str:
    """What relative imports of its code start from."""
    return getattr(module, "__package__", None) or ""


def bound_anew_in(module: types.ModuleType) -> Iterator[str]:
    """The names that have another function or class of libraries than the module's code gives."""
    content = vars(module)
    code = module_code.of(module.__name__)
    if code is None:
        return
    origins = bound_anew.origins(code, _package(module))
    everything = _star_imports(code, module)
    known = module_code.bound(code) | module_code.imported(code)
    for name, value in list(content.items()):
        is_other = bound_anew.is_other(value, name, origins, content)
        if name not in known and everything:
            is_other = bound_anew.differs_from_all(value, name, everything)
        if is_other and not is_the_notebooks(value):
            yield name


def is_bound(module: types.ModuleType, name: str) -> bool:
    """Whether an import of the module binds the name, as far as can be seen."""
    code = module_code.of(module.__name__)
    if code is None or name in module_code.bound(code) | module_code.imported(code):
        return True
    everything = _star_imports(code, module)
    return name in getattr(module, "__all__", ()) or any(hasattr(each, name) for each in everything)


def _star_imports(code: types.CodeType, module: types.ModuleType) -> list[object]:
    """The modules whose names a module imports by `*`."""
    return [sys.modules.get(name) for name in module_code.star_imports(code, _package(module))]


def note_of_one_in_place(obj: Any) -> str:
    """Of the notebook's, which its module has as well."""
    return note_of(obj.__module__, obj.__qualname__)
