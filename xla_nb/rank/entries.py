"""Call functions written for other launchers on ranks, and make those launchers refuse there: a
rank cannot start ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.errors import UsageError
from xla_nb.patching import InPlace, launchers
from xla_nb.wording import launched_already


class _Call:
    """A callable with the name of its function, by which the run is named."""

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
    """Calls a function as accelerate's TPU launcher does, without an index, and returns its result
    (which accelerate's own `PrepareForLaunch` does not)."""

    def __call__(self, index: int, *args: object) -> object:
        from accelerate.utils import PrepareForLaunch  # type: ignore[import-untyped]

        results: list[Any] = []

        def call(*call_args: object) -> None:
            results.append(self.function(*call_args))

        PrepareForLaunch(call, distributed_type="XLA")(index, *args)
        return results[0]


# ---------------------------------------------------------------- launchers, on ranks


class _Here:
    """This process: the magic that launched its code, "" for a call; None outside a run, and while
    a job starts its ranks."""

    magic: str | None = None


_here = _Here()


@functools.cache
def _launchers() -> InPlace:
    """The patched launchers of this process."""

    def make_launcher(name: str) -> Callable[..., Any]:
        def launcher(*args: Any, **settings: Any) -> Any:
            refuse_launch(name if name == "torch_xla.launch" else "xmp.spawn")
            return _launchers().original(name)(*args, **settings)

        return launcher

    names = ("xla_multiprocessing.spawn", "torch_xla.launch", "pjrt.spawn")
    replacements = map(make_launcher, (*names, "pjrt.run_multiprocess"))
    return launchers(*replacements, notebook_launcher)


def watch_launchers() -> None:
    """Make the launchers refuse if this process belongs to a run."""
    _launchers().turn_on()


def refuse_launches(magic: str) -> None:
    """Make launchers refuse from now on, since this magic, "" for a call, launched the code."""
    _here.magic = magic


def allow_launches() -> None:
    """Make launchers work again, so that the job can start the ranks."""
    _here.magic = None


def is_rank() -> bool:
    """Whether this process belongs to a run: a job, a rank, or a process forked by one."""
    return _here.magic is not None


def refuse_launch(launcher: str) -> None:
    """Raise UsageError in a process of a run."""
    magic = _here.magic
    if magic is None:
        return
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
    """Refuse, except for one process: accelerate then calls the function in this one."""
    if num_processes != 1:
        refuse_launch("notebook_launcher")
    launcher = _launchers().original("notebook_launcher")
    return launcher(function, args, num_processes, *others, **settings)
