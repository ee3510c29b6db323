"""Functions of libraries that get other code and stay the same objects: whoever holds them calls
the other code too. The code that replaces them may use no globals but builtins."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xla_nb.importing import when_imported


class Place(NamedTuple):
    """A function of a module, or of a class of it (`Class.function`), and what it does instead.

    `after`: the module whose import it waits for, where that is not the function's own: code that
    runs during the import meets the original.
    """

    module: str
    name: str
    instead: Callable[..., Any]
    after: str = ""


#: Launchers of libraries, as programs know them, and where each is.
LAUNCHERS = {
    "xmp.spawn": ("torch_xla.distributed.xla_multiprocessing", "spawn"),
    "torch_xla.launch": ("torch_xla.torch_xla", "launch"),
    "pjrt.spawn": ("torch_xla._internal.pjrt", "spawn"),
    "pjrt.run_multiprocess": ("torch_xla._internal.pjrt", "run_multiprocess"),
    "notebook_launcher": ("accelerate.launchers", "notebook_launcher"),
}


def launchers(*instead: Callable[..., Any]) -> InPlace:
    """LAUNCHERS, each with what it does instead."""
    pairs = zip(LAUNCHERS.values(), instead, strict=True)
    return InPlace([Place(*where, each) for where, each in pairs])


class InPlace:
    """`is_on`: the functions at `places` have other code, or will have it once imported."""

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
            function = _at(place)
            if function is not None:
                _become(function, original)
        self._originals.clear()

    def original(self, name: str) -> Callable[..., Any]:
        """What the function of this name, or `module.name`, does elsewhere. Raises StopIteration if
        nothing is replaced."""
        called = self._originals.items()
        return next(own for at, own in called if f".{at.module}.{at.name}".endswith(f".{name}"))

    def _replace(self, place: Place, _imported: types.ModuleType) -> None:
        function = _at(place)
        if not self.is_on or place in self._originals or function is None:
            return
        if function.__code__.co_freevars:  # a decorator's, which no release has
            return
        own = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        own.__kwdefaults__ = function.__kwdefaults__
        self._originals[place] = own
        _become(function, place.instead)


def _at(place: Place) -> types.FunctionType | None:
    function: Any = sys.modules.get(place.module)
    for name in place.name.split("."):
        function = getattr(function, name, None)
    return function if isinstance(function, types.FunctionType) else None


def _become(function: types.FunctionType, other: Any) -> None:
    function.__code__ = other.__code__
    function.__defaults__ = other.__defaults__
    function.__kwdefaults__ = other.__kwdefaults__
