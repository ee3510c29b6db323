"""The launchers of torch_xla and accelerate: what they do where xla_nb launches in their place."""

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
from xla_nb.topology import chips, tpu_types
from xla_nb.views.loop import INTERRUPTED
from xla_nb.wording import listed

#: Packages that pass a call on: the launchers' own, and the standard library.
_PASSING = {"torch_xla", "xla_nb", "accelerate"} | (sys.stdlib_module_names - {"__main__"})


@functools.cache
def of_this_process() -> InPlace:
    return launchers(_xmp_spawn, _launch, _pjrt_spawn, results_of, accelerated)


# ---------------------------------------------------------------- what they do instead

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
    """Launch as `name` was asked to: `fn(index, *args)` on `nprocs` ranks, or on all there are.

    The Run where the notebook's or the script's own code asks, at once unless it `waits`. Libraries
    get None when all ranks have ended, as torch_xla gives it: they may read attributes of anything
    else, and wait without end for a rank that has failed. What a rank returns and cannot be sent is
    no error, as torch_xla sends nothing. Raises as `xla_nb.spawn` does. One process is none to
    start: the function is called in this one, as torch_xla does.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            f"{name}: torchrun started this process as one of several, but xla_nb starts its "
            "ranks itself. Run the script with `python`, without torchrun."
        )
    answers.choose_device()
    asked = _lightnings(fn)
    if nprocs is not None:
        asked = count(f"{name}: the number of ranks", nprocs)
    if _is_here(asked):
        with _in_this_process(name):
            of_this_process().original("pjrt.spawn")(fn, 1, args=args)
        return None
    n = _ranks(asked, name)
    is_own = _is_own(sys._getframe(1))
    bg = is_own and not waits
    # As text too, which else only those get who ask for it: a program does not look at the Run, and
    # would not hear of a rank that has failed.
    view = notebook.settings()["view"] or api.default_view() if bg else None
    with _interruptible():
        given = {"n": n, "runtime": "xla", "env": env, "bg": bg, "view": view}
        run = api.call(fn, args, given, drops=True)
    return run if is_own else None


def _is_here(ranks: int | None) -> bool:
    """Whether a launch of so many starts no process. On a cluster one is meant for each host."""
    return ranks == 1 and notebook.settings()["on"] == "local"


@contextlib.contextmanager
def _in_this_process(launcher: str) -> Iterator[None]:
    """Let what a launcher calls open the TPU here. It sets a variable for this process, of which
    the next launch would speak."""
    here, was_set = notebook.current(), _COUNT in os.environ
    if here and here.top_level:
        here.top_level.launches = True
    try:
        with guard.of(here.shell).opened_by(launcher) if here else contextlib.nullcontext():
            yield
    finally:
        if not was_set:
            os.environ.pop(_COUNT, None)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except RunFailed as failed:
        if failed.run.state.stopping != INTERRUPTED:
            raise as_raised(failed) from None
        raise Interrupted(str(failed)) from None
    except LaunchError as failed:
        if not isinstance(failed.__context__, KeyboardInterrupt):
            raise
        raise Interrupted(str(failed)) from None


def results_of(
    fn: _Fn, *args: object, start_method: str = "spawn", **kwargs: object
) -> dict[int, Any]:
    """What `fn(*args, **kwargs)` returns on each rank, as `pjrt.run_multiprocess` gives it."""
    answers.choose_device()
    with _interruptible():
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
    """Launch as accelerate's `notebook_launcher` does for a TPU; ranks have the precision too.

    Raises UsageError for several machines, each of which would have to launch a part."""
    if num_nodes > 1:
        raise UsageError(
            f"notebook_launcher: num_nodes={num_nodes} would start ranks on this machine only. To "
            "start them on several machines, run `%xla_config on=ray` and leave num_nodes out."
        )
    _check_precision(mixed_precision)
    if _is_here(num_processes):
        answers.choose_device()
        with _in_this_process("notebook_launcher"):
            of_this_process().original("notebook_launcher")(function, args, 1, mixed_precision)
        return None
    _check_state()
    env = {} if mixed_precision == "no" else {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    return launched(Accelerated(function), args, num_processes, "notebook_launcher", env=env)


def _check_precision(precision: str) -> None:
    """Refuse what `Accelerator()` would take for none, on every rank and without a word."""
    from accelerate.utils import PrecisionType  # type: ignore[import-untyped]

    known = PrecisionType.list()
    if precision not in known:
        choices = listed(known, "or")
        raise UsageError(f"notebook_launcher: unknown precision {precision!r}. Choose {choices}.")


def _check_state() -> None:
    """Refuse processes beside an `Accelerator`, as accelerate does and in its words."""
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    if AcceleratorState._shared_state:
        raise UsageError(
            f"{TRAINING_FUNCTION}. Restart your notebook and make sure no cells initializes an "
            "`Accelerator`."
        )


def _is_own(frame: types.FrameType | None) -> bool:
    """Whether the code that called a launcher is the notebook's or the script's, or is a thread of
    it that has nothing else to do (`asyncio.to_thread(xmp.spawn, f)`)."""
    while frame is not None and _package(frame) in _PASSING:
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") == "__main__"


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _lightnings(fn: Callable[..., object]) -> int | None:
    """How many ranks Lightning's launcher is to start; it does not say so, as torch_xla starts one
    or all that there are (lightning/fabric/strategies/launchers/xla.py)."""
    launcher = getattr(fn, "__self__", None)
    asked = getattr(getattr(launcher, "_strategy", None), "num_processes", None)
    is_lightnings = type(launcher).__name__ == "_XLALauncher" and answers.can_simulate(asked)
    return asked if is_lightnings else None


def _ranks(asked: int | None, name: str) -> int | None:
    """As many ranks as were asked for, if the host can have them; else all that it has, which is
    said once."""
    if asked is None or notebook.settings()["on"] != "local":
        return asked
    wish = answers.wish()
    if wish is None:
        found = chips.count_chips()
        possible = chips.possible_ranks(chips.accelerator_type(os.environ), found)
        if asked in possible or not possible:
            return asked
        _tell(name, asked, possible[-1])
        return None
    try:
        return tpu_types.simulated_ranks(wish, asked)
    except UsageError:
        _tell(name, asked, tpu_types.simulated_ranks(wish, None))
        return None


@functools.cache
def _tell(name: str, asked: int, there: int) -> None:
    """Says so once."""
    print(f"{name} asked for {asked} ranks; running the {there} that this host has.")
