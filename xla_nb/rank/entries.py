"""How ranks call functions that were written for other launchers, and what these answer there: a
rank starts no ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.errors import UsageError
from xla_nb.patching import InPlace, launchers
from xla_nb.wording import launched_already


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


def push(index: int, values: Mapping[str, object]) -> None:
    """Bind names in the module that ranks run in."""
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


# ---------------------------------------------------------------- launchers, on ranks


#: What launched the program that this process of a run executes: a magic, or "" for a call.
_launched_by: list[str] = []


@functools.cache
def _launchers() -> InPlace:
    """Those of this process."""

    def refuse(name: str) -> Callable[..., None]:
        return lambda *_, **__: refuse_launch(name)

    spawn, launch = refuse("xmp.spawn"), refuse("torch_xla.launch")
    return launchers(spawn, launch, spawn, spawn, notebook_launcher)


def refuse_launches(magic: str) -> None:
    """Have launchers refuse from now on: code runs that this magic has launched, "" for a call."""
    _launched_by[:] = [magic]
    if not _launchers().is_on:
        _launchers().turn_on()


def allow_launches() -> None:
    """Give launchers back what they do, for the job to start the ranks by them."""
    _launchers().turn_off()


def is_rank() -> bool:
    """Whether this process belongs to a run: a job, a rank, or what was forked by one."""
    return bool(_launched_by)


def refuse_launch(launcher: str) -> None:
    """Raises UsageError in a process of a run."""
    if not is_rank():
        return
    magic = _launched_by[0]
    if magic:
        raise UsageError(launched_already(magic, launcher))
    raise UsageError(
        f"A rank cannot start ranks, but this one called {launcher}. Launch from the notebook, not "
        "from the function that runs on ranks."
    )


def notebook_launcher(
    function: Callable[..., object],
    args: Any = (),
    num_processes: int | None = None,
    *others: Any,
    **settings: Any,
) -> Any:
    """One process is none to start: accelerate calls the function in this one."""
    if num_processes != 1:
        refuse_launch("notebook_launcher")
    launcher = _launchers().original("notebook_launcher")
    return launcher(function, args, num_processes, *others, **settings)
