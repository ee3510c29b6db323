"""Names and parameters removed from torch_xla: working replacements, and what to write instead.

Only missing names are added, so a release that still has one keeps its own. The first use of each
prints a notice, which replaces torch_xla's own warning on every rank for names that still exist.
docs/compatibility.md has the same tables, and the names that still exist.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from xla_nb.patching import InPlace, Place, when_imported

_XM, _XR = "torch_xla.core.xla_model", "torch_xla.runtime"
#: The usual short names of these modules.
SHORT = {_XM: "xm", _XR: "xr"}


class Old(NamedTuple):
    """A removed name or module, as programs spell it, and the release that removed it.

    `answer` is its replacement: a function or, for a module, the modules whose public names it
    gets.
    """

    spelling: str
    gone: str
    today: str
    answer: Callable[..., Any] | tuple[str, ...]

    @property
    def notice(self) -> str:
        return f"{self.spelling} was removed in torch_xla {self.gone}: {self.today}"

    @property
    def place(self) -> tuple[str, str]:
        """The module, and the name in it."""
        module, _, name = self.spelling.rpartition(".")
        return {short: path for path, short in SHORT.items()}.get(module, module), name


def _import_name(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _forward_to(path: str) -> Callable[..., Any]:
    """A function that calls today's function of torch_xla, importing it only then."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _import_name(path)(*args, **kwargs)

    return call


def _replicas(path: str) -> Callable[..., int]:
    """Like `_forward_to`, for a number of replicas. A process that has not opened its device is not
    a replica, and asking torch_xla would open it."""

    def call(defval: int = int(path.endswith("size"))) -> int:
        is_open = _import_name("torch_xla._XLAC")._xla_runtime_is_initialized()
        return int(_import_name(path)()) if is_open else defval

    return call


def _device(n: int | None = None, devkind: str | None = None) -> Any:
    return _import_name("torch_xla.device")(n)


def _make_scaler(*_: Any, **__: Any) -> Any:
    """A scaler that leaves losses and gradients unchanged, since bfloat16 needs no scaling."""
    return _import_name("torch.amp.GradScaler")("cpu", enabled=False)


_ONE_RUNTIME = "leave it out; PJRT is the only runtime"
_BFLOAT16 = "leave it out; bfloat16 needs no loss scaling"
_PARSE = "torch_xla._internal.utils.parse_xla_device"
_TPU = "torch_xla._internal.tpu"
_SPMD, _AS_SPMD = "torch_xla.distributed.spmd", "import torch_xla.distributed.spmd as xs"
_OLD = "torch_xla.experimental"

OLD = (
    Old("xm.xrt_world_size", "2.7", "write xr.world_size()", _replicas(f"{_XR}.world_size")),
    Old("xm.get_ordinal", "2.7", "write xr.global_ordinal()", _replicas(f"{_XR}.global_ordinal")),
    Old("xm.parse_xla_device", "2.7", f"write {_PARSE}()", _forward_to(_PARSE)),
    Old("xr.xla_device", "2.8", "write torch_xla.device()", _device),
    Old("xr.using_pjrt", "2.5", _ONE_RUNTIME, lambda: True),
    Old("xr.requires_pjrt", "2.5", _ONE_RUNTIME, lambda fn: fn),
    Old(f"{_OLD}.compile", "2.7", "write torch_xla.compile()", _forward_to("torch_xla.compile")),
    Old("torch_xla.amp.GradScaler", "2.9", _BFLOAT16, _make_scaler),
    Old(f"{_OLD}.pjrt", "2.5", f"import {_XR} as xr", (_XM, _XR, "torch_xla._internal.pjrt")),
    Old(f"{_OLD}.tpu", "2.5", f"import {_TPU} as tpu", (_TPU,)),
    Old(f"{_OLD}.xla_sharding", "2.5", _AS_SPMD, (f"{_SPMD}.xla_sharding",)),
    Old(f"{_OLD}.xla_sharded_tensor", "2.5", _AS_SPMD, (f"{_SPMD}.xla_sharded_tensor",)),
    Old("torch_xla.amp.grad_scaler", "2.9", _BFLOAT16, ("torch_xla.amp",)),
)
_MODULES = {old.spelling: old for old in OLD if isinstance(old.answer, tuple)}
_NAMES = {old.place: old for old in OLD if old.spelling not in _MODULES}

#: Deprecated names that torch_xla, or torch, still has: the start of its warning, and our notice.
DEPRECATED = {
    "torch.set_default_tensor_type() is deprecated": "torch.set_default_tensor_type is deprecated: "
    "write torch.set_default_dtype(), torch.set_default_device()",
    "Use torch_xla.device instead": "xm.xla_device is deprecated: write torch_xla.device()",
    "Use torch_xla.sync instead": "xm.mark_step is deprecated: write torch_xla.sync()",
}


# ---------------------------------------------------------------- former parameters

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def _notify(function: str, parameter: str, gone: str, today: str) -> None:
    _here().used(f"{parameter} of {function} was removed in torch_xla {gone}: {today}")


def _supported_devices(args: tuple[Any, ...], settings: dict[str, Any]) -> _Call:
    first = args[0] if args else settings.get("devkind")
    settings.pop("devkind", None)
    if first is None or isinstance(first, int):  # today's first parameter
        return args, settings
    _notify("xm.get_xla_supported_devices", "devkind", "2.8", "leave it out")
    return args[1:], settings


def _master_print(args: tuple[Any, ...], settings: dict[str, Any]) -> _Call:
    """It used to print one object to the stream `fd`, its second parameter, before `local` and
    `flush`; today it prints all positional arguments, including the stream."""
    is_former = 1 < len(args) < 5 and all(isinstance(flag, bool) for flag in args[2:])
    if is_former and all(callable(getattr(args[1], name, None)) for name in ("write", "flush")):
        _notify("xm.master_print", "fd as second argument", "1.6", "write fd=…")
        settings = {**dict(zip(("fd", "local", "flush"), args[1:], strict=False)), **settings}
        args = args[:1]
    return args, settings


def _parallel_loader(args: tuple[Any, ...], settings: dict[str, Any]) -> _Call:
    if args[4:] and args[4] is True:  # today's batches_per_execution: True would mean 1
        raise TypeError("pl.ParallelLoader no longer has fixed_batch_size: use drop_last=True")
    return args, settings


def device(index: int | None = None) -> Any:
    """One of this process's devices. Programs with one process for all devices ask for others."""
    try:
        return _functions().original("device")(index)
    except IndexError:
        devices = _functions().original("get_xla_supported_devices")()
        raise IndexError(
            f"This process has no XLA device {index}, only {', '.join(devices)}: each rank has its "
            "own device. To use them all, launch a function (`xmp.spawn`, `%%xla_spawn`) that "
            "calls `torch_xla.device()`."
        ) from None


def _make_place(module: str, name: str, convert: Callable[..., _Call]) -> Place:
    """A function called with its arguments converted to today's form."""

    def call(*args: Any, **settings: Any) -> Any:
        args, settings = convert(args, settings)
        return _functions().original(name)(*args, **settings)

    return Place(module, name, call)


@functools.cache
def _functions() -> InPlace:
    """The replaced functions of this process."""
    return InPlace(
        (
            _make_place(_XM, "master_print", _master_print),
            _make_place(_XM, "get_xla_supported_devices", _supported_devices),
            _make_place(
                "torch_xla.distributed.parallel_loader", "ParallelLoader.__init__", _parallel_loader
            ),
            Place("torch_xla.torch_xla", "device", device),
        )
    )


# ---------------------------------------------------------------- installation


class _Here:
    """The state of this process: `report` receives each notice, `reported` are those it received,
    and `show` shows all other warnings."""

    def __init__(self) -> None:
        self.is_on = False
        self.report: Callable[[str], object] | None = None
        self.reported: set[str] = set()
        self.show = warnings.showwarning

    def used(self, notice: str) -> None:
        if first_time(notice) and self.report is not None:
            self.report(notice)


#: The state of this process, always the same.
_here = functools.cache(_Here)


def first_time(notice: str) -> bool:
    """True if a notice is new to this process. The notebook also asks for notices of its ranks."""
    is_new = notice not in _here().reported
    _here().reported.add(notice)
    return is_new


def install(report: Callable[[str], object] | None = None) -> None:
    """Let programs use the old names and parameters. The first `report` given receives the notice
    for each one used."""
    state = _here()
    state.report = state.report or report
    if state.is_on:
        return
    state.is_on = True
    for module in dict.fromkeys(module for module, _ in _NAMES):
        when_imported(module, _add_names)
    _functions().turn_on()
    sys.meta_path.append(_OldModules())  # last: existing modules take precedence
    state.show, warnings.showwarning = warnings.showwarning, _warn


def _warn(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    """Python's `warnings.showwarning`, called for each warning that passes the filters."""
    text = str(message) if category in (DeprecationWarning, UserWarning) else ""
    notice = next((notice for start, notice in DEPRECATED.items() if text.startswith(start)), None)
    if notice is not None:
        _here().used(notice)
    else:
        _here().show(message, category, *args, **kwargs)


def _add_names(module: ModuleType) -> None:
    """Add to a module the old names that it lacks."""
    for (path, name), old in _NAMES.items():
        if path == module.__name__ and name not in vars(module):
            setattr(module, name, _make_function(path, name, old))


def _make_function(module: str, name: str, old: Old) -> Callable[..., Any]:
    """The function added to a module: pickle finds it there, also on ranks."""
    answer: Any = old.answer

    def call(*args: Any, **kwargs: Any) -> Any:
        _here().used(old.notice)
        return answer(*args, **kwargs)

    call.__module__, call.__name__, call.__qualname__ = module, name, name
    call.__doc__ = old.notice
    return call


class _OldModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads removed modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        old = _MODULES[module.__name__]
        modules: Any = old.answer
        for name in modules:
            contents = vars(importlib.import_module(name)).items()
            vars(module).update({name: value for name, value in contents if name[0] != "_"})
        _here().used(old.notice)
