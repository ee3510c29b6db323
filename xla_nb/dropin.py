"""Programs that launch by themselves: what they call in a notebook launches as `xla_nb.spawn` does.

The launchers of torch_xla and accelerate get other code, and stay the same functions: names that
were bound to them before, and libraries that hold them, launch with it too. Ranks have them as they
are; so have scripts, unless they call `xla_nb.install()`.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from xla_nb import api, notebook, old_names
from xla_nb.errors import UsageError
from xla_nb.importing import when_imported
from xla_nb.rank.entries import Accelerated, WithoutIndex
from xla_nb.run.run import Run
from xla_nb.topology import chips, simulated

_LAUNCHERS = "torch_xla", "xla_nb", "accelerate"


class _Place(NamedTuple):
    """A function of a module, and what it does here: the other one's code and defaults."""

    module: str
    name: str
    instead: Callable[..., Any]


class _Launchers:
    """`originals`: the functions as they were, by module and name. `is_on`: they have other code,
    or will have it."""

    def __init__(self) -> None:
        self.is_on = False
        self.told: set[str] = set()
        self.originals: dict[_Place, types.FunctionType] = {}

    def turn_on(self) -> None:
        self.is_on = True
        for place in _PLACES:
            if place not in self.originals:
                when_imported(place.module, functools.partial(self._replace, place))

    def turn_off(self) -> None:
        self.is_on = False
        for place, original in self.originals.items():
            function = getattr(sys.modules.get(place.module), place.name, None)
            if isinstance(function, types.FunctionType):
                _become(function, original)
        self.originals.clear()

    def _replace(self, place: _Place, module: types.ModuleType) -> None:
        function = getattr(module, place.name, None)
        if not self.is_on or place in self.originals or type(function) is not types.FunctionType:
            return
        if function.__code__.co_freevars:  # a decorator's, which no release has
            return
        self.originals[place] = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__
        )
        self.originals[place].__kwdefaults__ = function.__kwdefaults__
        _become(function, place.instead)


def _become(function: types.FunctionType, other: Any) -> None:
    """The same object, with other code. That may use no globals but builtins."""
    function.__code__ = other.__code__
    function.__defaults__ = other.__defaults__
    function.__kwdefaults__ = other.__kwdefaults__


@functools.cache
def _launchers() -> _Launchers:
    """Those of this process."""
    return _Launchers()


def install() -> None:
    """Let `xmp.spawn`, `torch_xla.launch` and accelerate's `notebook_launcher` launch as `spawn`
    does, and old names of torch_xla work. `%load_ext xla_nb` does so in a notebook; call it in
    scripts, before they launch."""
    _launchers().turn_on()
    old_names.install(lambda notice: print(notice, file=sys.stderr))


def uninstall() -> None:
    """Give these functions back what they did."""
    _launchers().turn_off()
    old_names.uninstall()


def is_installed() -> bool:
    return _launchers().is_on


# ---------------------------------------------------------------- what they do instead


def _xmp_spawn(fn, args=(), nprocs=None, join=True, daemon=False, start_method="spawn"):  # type: ignore[no-untyped-def]
    return __import__("xla_nb.dropin").dropin.launched(fn, args, nprocs, "xmp.spawn", waits=join)


def _launch(fn, args=(), start_method="spawn", debug_single_process=False):  # type: ignore[no-untyped-def]
    return __import__("xla_nb.dropin").dropin.launched(
        fn, args, 1 if debug_single_process else None, "torch_xla.launch"
    )


def _pjrt_spawn(fn, nprocs=None, start_method="spawn", args=()):  # type: ignore[no-untyped-def]
    return __import__("xla_nb.dropin").dropin.launched(fn, args, nprocs, "pjrt.spawn")


def _run_multiprocess(fn, *args, start_method="spawn", **kwargs):  # type: ignore[no-untyped-def]
    return __import__("xla_nb.dropin").dropin.results_of(fn, args, kwargs)


def _notebook_launcher(  # type: ignore[no-untyped-def]
    function, args=(), num_processes=None, mixed_precision="no", *others, **settings
):
    return __import__("xla_nb.dropin").dropin.accelerated(
        function, args, num_processes, mixed_precision
    )


_PLACES = (
    _Place("torch_xla.distributed.xla_multiprocessing", "spawn", _xmp_spawn),
    _Place("torch_xla.torch_xla", "launch", _launch),
    _Place("torch_xla._internal.pjrt", "spawn", _pjrt_spawn),
    _Place("torch_xla._internal.pjrt", "run_multiprocess", _run_multiprocess),
    _Place("accelerate.launchers", "notebook_launcher", _notebook_launcher),
)


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

    The Run where the notebook's or the script's own code asks. Libraries get None, as torch_xla
    gives them: they may read attributes of anything else. Raises as `xla_nb.spawn` does.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _under_torchrun(fn, args, name)
        return None
    n = _ranks(nprocs, name)
    run = api.spawn(fn, tuple(args), n, runtime="xla", env=env, bg=not waits)
    return run if _is_own(sys._getframe(1)) else None


def _under_torchrun(fn: Callable[..., object], args: Any, name: str) -> None:
    """What `torch_xla.launch` does in a process that torchrun has started; a simulated host's ranks
    are started by xla_nb alone."""
    if chips.simulated():
        raise UsageError(
            f"{name}: torchrun has started this process as one of several, and a simulated TPU "
            "host starts its ranks itself. Run the script with `python`, without torchrun."
        )
    fn(int(os.environ["LOCAL_RANK"]), *args)


def results_of(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[int, Any]:
    """What `fn(*args, **kwargs)` returns on each rank, as `pjrt.run_multiprocess` gives it."""
    return api.spawn(WithoutIndex(functools.partial(fn, *args, **kwargs)), runtime="xla").results


def accelerated(
    function: Callable[..., object], args: Any, ranks: int | None, precision: str
) -> Run | None:
    """Launch as accelerate's `notebook_launcher` does for a TPU; ranks have the precision too."""
    env = {} if precision == "no" else {"ACCELERATE_MIXED_PRECISION": precision}
    return launched(Accelerated(function), args, ranks, "notebook_launcher", env=env)


def _is_own(frame: types.FrameType | None) -> bool:
    """Whether the code that called a launcher is the notebook's or the script's."""
    while frame is not None and _package(frame) in _LAUNCHERS:
        frame = frame.f_back
    return frame is not None and frame.f_globals is vars(sys.modules["__main__"])


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _ranks(asked: int | None, name: str) -> int | None:
    """As many ranks as were asked for, if the host can have them; else all that it has, which is
    said once."""
    here = notebook.current()
    settings = here.settings if here else {}
    if asked is None or settings.get("on", "local") != "local":
        return asked
    found = chips.count_chips()
    if chips.choose_device(os.environ, found) == "TPU" and not settings.get("simulate"):
        possible = chips.possible_ranks(chips.accelerator_type(os.environ), found)
        if asked in possible or not possible:
            return asked
        _tell(name, asked, possible[-1])
        return None
    wish = settings.get("simulate") or os.environ.get(chips.SIMULATE, "")
    try:
        return simulated.ranks(wish, asked)
    except UsageError:
        _tell(name, asked, simulated.ranks(wish, None))
        return None


def _tell(name: str, asked: int, there: int) -> None:
    text = f"{name} asks for {asked} ranks: this host has {there}, and these run."
    if text not in _launchers().told:
        _launchers().told.add(text)
        print(text)
