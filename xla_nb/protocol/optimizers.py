"""The `step` of torch's optimizers, which torch wraps when it makes the first one of a class.

The wrapper calls hooks and the profiler. It has the name of what it wraps, `SGD.step`, which a
rank would find unwrapped where no optimizer of the class has been made yet.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.protocol.replaced import is_the_notebooks


def reduced_step(function: types.FunctionType) -> Any:
    """An optimizer's `step`, wrapped or not, as a reducer's value; NotImplemented for others."""
    if function.__name__ != "step" or "torch.optim" not in sys.modules:
        return NotImplemented
    if is_the_notebooks(function):  # which the notebook has put there
        return NotImplemented
    for cls in _classes(getattr(sys.modules["torch.optim"], "Optimizer", type)):
        own: Any = vars(cls).get("step")
        if own is function or (hasattr(own, "hooked") and own.__wrapped__ is function):
            return step, (cls, hasattr(function, "hooked"))
    return NotImplemented


def _classes(cls: type) -> Iterator[type]:
    """A library's class, and libraries' classes that extend it."""
    yield cls
    extending: list[type] = type.__subclasses__(cls)
    for each in extending:
        if each.__module__ in sys.modules and each.__module__ != "__main__":
            yield from _classes(each)


def step(cls: Any, wrapped: bool) -> Any:
    """The `step` of a class of optimizers as torch has wrapped it, or as the class defines it."""
    if wrapped:
        cls._patch_step_function(object.__new__(cls))
    found = cls.step
    while hasattr(found, "hooked") and not wrapped:
        found = found.__wrapped__
    return found
