"""Objects that modules hold: a sentinel, a registry, the environment, a random generator.

On ranks such an object is the module's own, since the module's functions use that. What the
notebook has put into it is put into the module's; of Python's own modules, NumPy's and torch's it
is not, since what matters of these is state of the process (`process_state`, `random_state`).
"""

from __future__ import annotations

import collections
import contextvars
import functools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloudpickle import cloudpickle  # type: ignore[import-untyped]

from xla_nb.protocol import module_code, parts

_CONTAINERS = {
    *(dict, list, set, bytearray),
    *(collections.deque, collections.OrderedDict, collections.defaultdict, collections.Counter),
}
#: Packages whose objects have the state of the process.
_OF_THE_PROCESS = sys.stdlib_module_names | {"numpy", "torch", "torch_xla"}
#: What a new interpreter has of mutable objects; an IPython and others put more into `sys`.
_OF_SYS = {"path", "argv", "modules", "warnoptions", "meta_path", "path_hooks"}


@dataclass(frozen=True)
class Place:
    """Where an object is: `name` has a dot where a class of the module holds it. `alone`: ranks
    take it as importing the module makes it."""

    module: str
    name: str
    alone: bool

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@functools.cache
def of_this_process() -> Modules:
    return Modules()


class Modules:
    """Finds what modules hold, by identity. It remembers what a module held when it had as many
    names: a package's name that is bound anew later may be missed, and what it holds is then an
    object like any other. The user's own modules are always looked through.

    ids   of what modules hold, and of some objects more
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()  # of more than is there now
        self._held: dict[str, tuple[int, int, frozenset[int]]] = {}
        self._own: dict[str, types.ModuleType] = {}

    def look(self) -> None:
        """Look through what has been imported since, and through the user's own modules."""
        main, known = sys.modules["__main__"], self._held
        for name, module in list(sys.modules.items()):
            if not isinstance(module, types.ModuleType):  # None keeps others from importing it
                continue
            content = vars(module)
            if name in known and known[name][:2] == (id(content), len(content)):
                if self._own.get(name) is not module:
                    continue
            elif module is main or content.get("__spec__") is None:
                continue
            self._look_through(name, module)

    def _look_through(self, name: str, module: types.ModuleType) -> None:
        if _is_own(module):
            self._own[name] = module
        content = vars(module)
        ids = frozenset(id(value) for _, value in _attributes(name, module))
        self._held[name] = id(content), len(content), ids
        self.ids |= {*ids, id(content)}

    def place(self, obj: object) -> Place | None:
        """Where the module that made an object holds it; None if there is none."""
        if id(obj) not in self.ids or not _has_identity(obj):
            return None
        namespace: Any = obj if type(obj) is dict else {}
        name = namespace.get("__name__")
        if isinstance(name, str) and parts.is_modules(namespace, name):
            return Place(name, "__dict__", alone=True)
        return next(self._places(obj), None)

    def _places(self, obj: object) -> Iterator[Place]:
        by_value = cloudpickle.list_registry_pickle_by_value()
        for name, (_, _, ids) in self._held.items():
            module = sys.modules.get(name)
            if module is None or id(obj) not in ids or name in by_value:
                continue
            for attribute, value in _attributes(name, module):
                if value is obj and _makes(module, name, attribute):
                    yield Place(name, attribute, name.partition(".")[0] in _OF_THE_PROCESS)


def _attributes(name: str, module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """What a module holds but for what Python notes of it; of the user's, also what its classes
    do."""
    own = _is_own(module)
    for attribute, value in list(vars(module).items()):
        if attribute[:2] != "__":
            yield attribute, value
        if own and isinstance(value, type) and value.__module__ == name:
            for inner, part in list(vars(value).items()):
                if inner[:2] != "__":
                    yield f"{value.__qualname__}.{inner}", part


def _is_own(module: types.ModuleType) -> bool:
    """Whether it is a file of the user's, not of an installed package."""
    file = getattr(module, "__file__", None) or ""
    if module.__name__.partition(".")[0] in {*_OF_THE_PROCESS, __package__.partition(".")[0]}:
        return False
    return file.endswith(".py") and "-packages/" not in file


def _makes(module: Any, name: str, attribute: str) -> bool:
    """Whether a module's own code binds the name, not an import in it nor somebody else."""
    if name == "builtins":
        return False
    if name == "sys":
        return attribute in _OF_SYS
    code = module_code.of(name)
    return code is None or attribute.partition(".")[0] in module_code.bound(code)


def _has_identity(obj: object) -> bool:
    """Whether it matters which of several equal objects this is: not for constants."""
    kind: Any = type(obj)
    if kind in _CONTAINERS or kind in (object, types.MappingProxyType, contextvars.ContextVar):
        return True
    if isinstance(obj, tuple | frozenset):
        return not parts.is_ready(obj)  # not made of constants alone
    if kind.__module__ in ("builtins", "typing"):
        return False
    root = kind.__module__.partition(".")[0]
    if isinstance(obj, parts.CODE):
        return False
    if root not in _OF_THE_PROCESS and parts.is_made_here(kind):
        return False
    tensor = getattr(sys.modules.get("torch"), "Tensor", ())
    return kind.__hash__ is object.__hash__ or isinstance(obj, tensor) or not _has_hash(obj)


def _has_hash(obj: object) -> bool:
    try:
        hash(obj)
    except Exception:  # of a table, which says so itself
        return False
    return True
