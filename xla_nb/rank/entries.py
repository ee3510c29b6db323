"""How ranks call functions that were written for other launchers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WithoutIndex:
    """Calls a function that does not take the rank's index."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def __call__(self, index: int) -> object:
        return self.function()


class Accelerated:
    """Calls a function as accelerate's launcher on a TPU does, which gives it no index; returns
    what it returns (accelerate's own `PrepareForLaunch` does not)."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function

    def __call__(self, index: int, *args: object) -> object:
        from accelerate.utils import PrepareForLaunch  # type: ignore[import-untyped]

        returned: list[Any] = []

        def call(*given: object) -> None:
            returned.append(self.function(*given))

        PrepareForLaunch(call, distributed_type="XLA")(index, *args)
        return returned[0]
