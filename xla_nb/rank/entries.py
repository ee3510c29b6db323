"""How ranks call functions that were written for other launchers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


class _Call:
    """A call of a function, by whose name the run goes."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)


class WithoutIndex(_Call):
    """Calls a function that does not take the rank's index."""

    def __init__(self, function: Callable[..., object], kwargs: Mapping[str, object]) -> None:
        super().__init__(function)
        self.kwargs = kwargs

    def __call__(self, index: int, *args: object) -> object:
        return self.function(*args, **self.kwargs)


class Bind(_Call):
    """Binds names in the module that ranks run in."""

    def __init__(self) -> None:
        self.__name__ = "push"

    def __call__(self, index: int, values: Mapping[str, object]) -> None:
        vars(sys.modules["__main__"]).update(values)


class Accelerated(_Call):
    """Calls a function as accelerate's launcher on a TPU does, which gives it no index; returns
    what it returns (accelerate's own `PrepareForLaunch` does not)."""

    def __call__(self, index: int, *args: object) -> object:
        from accelerate.utils import PrepareForLaunch  # type: ignore[import-untyped]

        returned: list[Any] = []

        def call(*given: object) -> None:
            returned.append(self.function(*given))

        PrepareForLaunch(call, distributed_type="XLA")(index, *args)
        return returned[0]
