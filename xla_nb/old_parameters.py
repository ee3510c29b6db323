"""Parameters that functions of torch_xla had and no longer have: programs may pass them still. Each
is told once, with what to write instead; docs/compatibility.md has the same table."""

from __future__ import annotations

import functools
from typing import Any

from xla_nb import old_names
from xla_nb.in_place import InPlace, Place

_XM, _LOADER = "torch_xla.core.xla_model", "torch_xla.distributed.parallel_loader"


@functools.cache
def _functions() -> InPlace:
    """Those of this process."""
    return InPlace(_PLACES)


def turn_on() -> None:
    _functions().turn_on()


def turn_off() -> None:
    _functions().turn_off()


# ---------------------------------------------------------------- what the functions do instead


def _get_xla_supported_devices(devkind=None, max_devices=None):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import supported_devices

    return supported_devices(devkind, max_devices)


def _get_local_ordinal(*defval):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import local_ordinal

    return local_ordinal(defval)


def _parallel_loader(self, *args, loader=None, **settings):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import parallel_loader

    return parallel_loader(self, args, loader, settings)


def _compile(*args, num_different_graphs_allowed=None, **settings):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import compiled

    return compiled(args, num_different_graphs_allowed, settings)


def _device(index=None):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import device

    return device(index)


def _master_print(*args, **settings):  # type: ignore[no-untyped-def]
    from xla_nb.old_parameters import master_print

    return master_print(args, settings)


_PLACES = (
    Place(_XM, "master_print", _master_print),
    Place(_XM, "get_xla_supported_devices", _get_xla_supported_devices),
    Place(_XM, "get_local_ordinal", _get_local_ordinal),
    Place(_LOADER, "ParallelLoader.__init__", _parallel_loader),
    Place("torch_xla.torch_xla", "compile", _compile),
    Place("torch_xla.torch_xla", "device", _device),
)


def _original(name: str) -> Any:
    return _functions().original(name)


def _tell(function: str, parameter: str, gone: str, today: str) -> None:
    old_names.used(f"{parameter} of {function} is gone since torch_xla {gone}: {today}")


def supported_devices(devkind: object, max_devices: int | None) -> Any:
    if isinstance(devkind, int):  # today's first parameter
        devkind, max_devices = None, devkind
    if devkind is not None:
        _tell("xm.get_xla_supported_devices", "devkind", "2.8", "leave it out")
    return _original("get_xla_supported_devices")(max_devices)


def local_ordinal(defval: tuple[object, ...]) -> Any:
    if defval:
        _tell("xm.get_local_ordinal", "defval", "2.5", "leave it out")
    return _original("get_local_ordinal")()


def master_print(args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    """It printed one thing to the stream `fd`, which came second, before `local` and `flush`; today
    it prints all that is given by position, the stream too."""
    is_former = 1 < len(args) < 5 and all(isinstance(flag, bool) for flag in args[2:])
    if is_former and _is_stream(args[1]):
        _tell("xm.master_print", "fd as second argument", "1.6", "write fd=…")
        settings = {**dict(zip(("fd", "local", "flush"), args[1:], strict=False)), **settings}
        args = args[:1]
    _original("master_print")(*args, **settings)


def _is_stream(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("write", "flush"))


def parallel_loader(made: Any, args: tuple[Any, ...], loader: Any, settings: dict[str, Any]) -> Any:
    if loader is not None:
        _tell("pl.ParallelLoader", "loader", "2.5", "write cpu_loader")
        settings = {"cpu_loader": loader, **settings}
    if args[3:] and args[3] is True:  # today's batches_per_execution, of which it would be one
        raise TypeError("pl.ParallelLoader has no fixed_batch_size any more: use drop_last=True")
    return _original("ParallelLoader.__init__")(made, *args, **settings)


def compiled(args: tuple[Any, ...], graphs: int | None, settings: dict[str, Any]) -> Any:
    if graphs is not None:
        name = "num_different_graphs_allowed"
        _tell("torch_xla.compile", name, "2.8", "write max_different_graphs")
        settings = {"max_different_graphs": graphs, **settings}
    return _original("compile")(*args, **settings)


def device(index: int | None) -> Any:
    """One of this process's devices. A program of one process for all of them asks for others."""
    try:
        return _original("device")(index)
    except IndexError:
        there = _original("get_xla_supported_devices")()
        raise IndexError(
            f"This process has no XLA device {index}, only {', '.join(there)}: every rank has its "
            "own. Launch a function (`xmp.spawn`, `%%xla_spawn`) to use them all, and take "
            "`torch_xla.device()` in it."
        ) from None
