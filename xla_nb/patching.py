"""Change functions and modules of other libraries, now or once they are imported.

A function gets new code but stays the same object, so that existing references run the new code.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# ---------------------------------------------------------------- modules


def when_imported(name: str, callback: Callable[[types.ModuleType], None]) -> None:
    """Call `callback` with the module, now or right after its import."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _Finder(name, callback))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module through the other finders.

    It stays in sys.meta_path, because another thread may be iterating over the list.
    """

    def __init__(self, name: str, callback: Callable[[types.ModuleType], None]) -> None:
        self._name, self._callback = name, callback
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._call_after_import(spec.loader)
        return spec

    def _call_after_import(self, loader: Any) -> None:
        """Make a loader call `callback` after the import."""
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # several finders may wrap it
            execute(module)
            self._callback(module)

        loader.exec_module = exec_module


# ---------------------------------------------------------------- functions


class Place(NamedTuple):
    """A function of a module, or of a class in it (`Class.function`), and its replacement.

    `after`: the module to wait for, if not the function's own; code that runs during that import
    still calls the original.
    """

    module: str
    name: str
    instead: Callable[..., Any]
    after: str = ""


#: Launchers of libraries: the names that programs use, and where each is defined.
LAUNCHERS = {
    "xmp.spawn": ("torch_xla.distributed.xla_multiprocessing", "spawn"),
    "torch_xla.launch": ("torch_xla.torch_xla", "launch"),
    "pjrt.spawn": ("torch_xla._internal.pjrt", "spawn"),
    "pjrt.run_multiprocess": ("torch_xla._internal.pjrt", "run_multiprocess"),
    "notebook_launcher": ("accelerate.launchers", "notebook_launcher"),
}


def launchers(*replacements: Callable[..., Any]) -> InPlace:
    """LAUNCHERS, each with its replacement."""
    pairs = zip(LAUNCHERS.values(), replacements, strict=True)
    return InPlace([Place(*location, replacement) for location, replacement in pairs])


class InPlace:
    """Replaces functions at `places`. `is_on`: they have the new code, or get it once imported."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.is_on = False
        self._places = places
        self._originals: dict[Place, types.FunctionType] = {}

    def turn_on(self) -> None:
        self.is_on = True
        for place in self._places:
            if place not in self._originals:
                when_imported(place.after or place.module, functools.partial(self._replace, place))

    def turn_off(self) -> None:
        self.is_on = False
        for place, original in self._originals.items():
            function = _find_function(place)
            if function is not None:
                _copy_code(function, original)
                vars(function).pop("__signature__", None)
        self._originals.clear()

    def original(self, name: str) -> Callable[..., Any]:
        """The original of the function of this name, or `module.name`. Raises StopIteration if it
        is not replaced."""
        originals = self._originals.items()
        return next(
            function
            for place, function in originals
            if f".{place.module}.{place.name}".endswith(f".{name}")
        )

    def _replace(self, place: Place, _imported: types.ModuleType) -> None:
        function = _find_function(place)
        if not self.is_on or place in self._originals or function is None:
            return
        if function.__code__.co_freevars:  # a decorated function, which no release has
            return
        original = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        self._originals[place] = original
        function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        _copy_code(function, _make_caller(place.instead))


def _find_function(place: Place) -> types.FunctionType | None:
    function: Any = sys.modules.get(place.module)
    for name in place.name.split("."):
        function = getattr(function, name, None)
    return function if isinstance(function, types.FunctionType) else None


def _copy_code(function: types.FunctionType, source: Any) -> None:
    function.__code__ = source.__code__
    function.__defaults__ = source.__defaults__
    function.__kwdefaults__ = source.__kwdefaults__


def _make_caller(instead: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose code calls `instead`, which is one of its constants: the code runs with the
    globals of another module."""

    def call(*args, **kwargs):  # type: ignore[no-untyped-def]
        instead = "the replacement"
        return instead(*args, **kwargs)  # type: ignore[operator]

    constants: Any = {"the replacement": instead}
    consts = tuple(constants.get(constant, constant) for constant in call.__code__.co_consts)
    call.__code__ = call.__code__.replace(co_consts=consts)
    return call
