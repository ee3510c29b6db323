"""The replacements for the launchers of torch_xla and accelerate, which launch with xla_nb."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from xla_nb import api, notebook
from xla_nb.dropin import answers, guard
from xla_nb.errors import Interrupted, LaunchError, UsageError
from xla_nb.patching import InPlace, launchers
from xla_nb.pickling.refusals import TRAINING_FUNCTION
from xla_nb.rank.entries import Accelerated, WithoutIndex
from xla_nb.run.failed import RunFailed, as_raised
from xla_nb.run.options import count
from xla_nb.run.run import Run
from xla_nb.views.loop import INTERRUPTED
from xla_nb.wording import listed

#: Packages that only pass a call on: those of the launchers, and the standard library.
_PASS_THROUGH = {"torch_xla", "xla_nb", "accelerate"} | (sys.stdlib_module_names - {"__main__"})


@functools.cache
def of_this_process() -> InPlace:
    return launchers(_xmp_spawn, _launch, _pjrt_spawn, results_of, accelerated)


# ---------------------------------------------------------------- replacements

_Fn = Callable[..., object]


def _xmp_spawn(
    fn: _Fn,
    args: Any = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> Run | None:
    return launched(fn, args, nprocs, "xmp.spawn", waits=join)


def _launch(
    fn: _Fn, args: Any = (), start_method: str = "spawn", debug_single_process: bool = False
) -> Run | None:
    return launched(fn, args, 1 if debug_single_process else None, "torch_xla.launch")


def _pjrt_spawn(
    fn: _Fn, nprocs: int | None = None, start_method: str = "spawn", args: Any = ()
) -> Run | None:
    return launched(fn, args, nprocs, "pjrt.spawn")


_COUNT = "PJRT_LOCAL_PROCESS_COUNT"


def launched(
    fn: Callable[..., object],
    args: Any,
    nprocs: int | None,
    name: str,
    *,
    waits: bool = True,
    env: Mapping[str, str] | None = None,
) -> Run | None:
    """Launch for the launcher `name`: `fn(index, *args)` on `nprocs` ranks, or on all there are.

    Code of the notebook or script gets the Run, immediately unless it `waits`. Libraries get None
    when all ranks have ended, as from torch_xla: they might read attributes of anything else, and
    wait forever for a rank that has failed. A result that cannot be sent is not an error, because
    torch_xla sends none. Raises the errors of `xla_nb.spawn`. For one process the function is
    called in this one, as torch_xla does.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            f"{name}: torchrun started this process as one of several, but xla_nb starts its "
            "ranks itself. Run the script with `python`, without torchrun."
        )
    answers.choose_device()
    requested = _lightning_ranks(fn)
    if nprocs is not None:
        requested = count(f"{name}: the number of ranks", nprocs)
    if _runs_here(requested):
        with _allow_here(name):
            of_this_process().original("pjrt.spawn")(fn, 1, args=args)
        return None
    n = _fit_ranks(requested, name)
    is_user_code = _is_user_code(sys._getframe(1))
    bg = is_user_code and not waits
    # Also as text, which otherwise must be asked for: the program does not look at the Run, so
    # nobody would notice a rank that has failed.
    view = api.default_view() if bg else None
    with _convert_errors():
        options = {"n": n, "runtime": "xla", "env": env, "bg": bg, "view": view}
        run = api.call(fn, args, options, drops=True)
    return run if is_user_code else None


def _runs_here(ranks: int | None) -> bool:
    """True if a launch of so many ranks starts no process. On a cluster, 1 means one per host."""
    return ranks == 1 and notebook.settings()["on"] == "local"


@contextlib.contextmanager
def _allow_here(launcher: str) -> Iterator[None]:
    """Let a function called by a launcher open the TPU in this process. The launcher sets a
    variable, removed afterwards because the next launch would report it."""
    current, was_set = notebook.current(), _COUNT in os.environ
    if current and current.top_level:
        current.top_level.launches = True
    try:
        with guard.of(current.shell).opened_by(launcher) if current else contextlib.nullcontext():
            yield
    finally:
        if not was_set:
            os.environ.pop(_COUNT, None)


@contextlib.contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
    except RunFailed as error:
        if error.run.state.stopping != INTERRUPTED:
            raise as_raised(error) from None
        raise Interrupted(str(error)) from None
    except LaunchError as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise Interrupted(str(error)) from None


def results_of(
    fn: _Fn, *args: object, start_method: str = "spawn", **kwargs: object
) -> dict[int, Any]:
    """The result of `fn(*args, **kwargs)` on each rank, in the form of `pjrt.run_multiprocess`."""
    answers.choose_device()
    with _convert_errors():
        run = api.call(WithoutIndex(fn, kwargs), args, {"runtime": "xla"})
    return run.results


def accelerated(
    function: _Fn,
    args: Any = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    *_: object,
    num_nodes: int = 1,
    **__: object,
) -> Run | None:
    """Launch as accelerate's `notebook_launcher` does for a TPU; ranks also get the precision.

    Raises UsageError for several machines, each of which would have to launch its part."""
    if num_nodes > 1:
        raise UsageError(
            f"notebook_launcher: num_nodes={num_nodes} would start ranks on this machine only. To "
            "start them on several machines, run `%xla_config on=ray` and leave num_nodes out."
        )
    _check_precision(mixed_precision)
    if _runs_here(num_processes):
        answers.choose_device()
        with _allow_here("notebook_launcher"):
            of_this_process().original("notebook_launcher")(function, args, 1, mixed_precision)
        return None
    _check_state()
    env = {} if mixed_precision == "no" else {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    return launched(Accelerated(function), args, num_processes, "notebook_launcher", env=env)


def _check_precision(precision: str) -> None:
    """Refuse a precision that `Accelerator()` on every rank would silently treat as none."""
    from accelerate.utils import PrecisionType  # type: ignore[import-untyped]

    precisions = PrecisionType.list()
    if precision not in precisions:
        choices = listed(precisions, "or")
        raise UsageError(f"notebook_launcher: unknown precision {precision!r}. Choose {choices}.")


def _check_state() -> None:
    """Refuse to launch beside an existing `Accelerator`, with accelerate's message."""
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    if AcceleratorState._shared_state:
        raise UsageError(
            f"{TRAINING_FUNCTION}. Restart your notebook and make sure no cells initializes an "
            "`Accelerator`."
        )


def _is_user_code(frame: types.FrameType | None) -> bool:
    """True if a launcher was called by code of the notebook or script, or is all that a thread runs
    (`asyncio.to_thread(xmp.spawn, f)`)."""
    while frame is not None and _package(frame) in _PASS_THROUGH:
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") == "__main__"


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _lightning_ranks(fn: Callable[..., object]) -> int | None:
    """The number of ranks that Lightning's launcher should start. It does not pass the number,
    because torch_xla starts one or all (lightning/fabric/strategies/launchers/xla.py)."""
    launcher = getattr(fn, "__self__", None)
    requested = getattr(getattr(launcher, "_strategy", None), "num_processes", None)
    is_lightning = type(launcher).__name__ == "_XLALauncher" and answers.can_simulate(requested)
    return requested if is_lightning else None


def _fit_ranks(requested: int | None, name: str) -> int | None:
    """The number of ranks asked for, if the host can have them; otherwise None, for all that it
    has, with a notice once."""
    if requested is None or notebook.settings()["on"] != "local":
        return requested
    available = answers.available_ranks(requested)
    if available == requested:
        return requested
    answers.print_once(
        f"{name} asked for {requested} ranks; running the {available} that this host has."
    )
    return None
