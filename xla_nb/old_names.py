"""Names that torch_xla had and no longer has: what answers them today, and what to write instead.

Only names that are missing are put there, so a release that still has one keeps its own. The first
use of each is told, in place of torch_xla's warning where it still has the name and warns on every
rank. docs/compatibility.md has the same tables, and the names that are still there.
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
from typing import Any, NamedTuple, TextIO

from xla_nb.importing import when_imported

#: How programs call these modules.
SHORT = {"torch_xla.core.xla_model": "xm", "torch_xla.runtime": "xr"}


class OldName(NamedTuple):
    """A name of a module, gone since that release. `answer` is what it is there; None: nothing."""

    module: str
    name: str
    gone: str
    today: str
    answer: Callable[..., Any] | None

    @property
    def spelling(self) -> str:
        return f"{SHORT.get(self.module, self.module)}.{self.name}"

    @property
    def notice(self) -> str:
        return f"{self.spelling} is gone since torch_xla {self.gone}: {self.today}"


class OldModule(NamedTuple):
    """A module, gone since that release. It has the public names of the modules `holds`, and what
    `renamed` says, by paths; none of both: importing it raises."""

    module: str
    gone: str
    today: str
    holds: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def notice(self) -> str:
        return f"{self.module} is gone since torch_xla {self.gone}: {self.today}"


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _same(path: str) -> Callable[..., Any]:
    """Calls what torch_xla has now. Nothing of it is imported before."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return _find(path)(*args, **kwargs)

    return call


def _has_device() -> bool:
    """Whether this process has opened its device. One that has not is no replica of any other, and
    asking torch_xla would open it."""
    return bool(_find("torch_xla._XLAC")._xla_runtime_is_initialized())


def _world_size(defval: int = 1) -> int:
    return int(_find("torch_xla.runtime.world_size")()) if _has_device() else defval


def _ordinal(defval: int = 0) -> int:
    return int(_find("torch_xla.runtime.global_ordinal")()) if _has_device() else defval


def _device(n: int | None = None, devkind: str | None = None) -> Any:
    return _find("torch_xla.device")(n)


def _no_scaler(*_: Any, **__: Any) -> Any:
    """A scaler that leaves losses and gradients as they are, as bfloat16 wants them."""
    return _find("torch.amp.GradScaler")("cpu", enabled=False)


_XM, _XR = SHORT
_ONE_RUNTIME = "leave it out, PJRT is the only runtime"
_NO_CUDA = "torch_xla has no CUDA any more, use torch itself"
_NO_XRT = "leave it out, the XRT runtime is gone"

NAMES = (
    OldName(_XM, "xrt_world_size", "2.7", "write xr.world_size()", _world_size),
    OldName(_XM, "get_ordinal", "2.7", "write xr.global_ordinal()", _ordinal),
    OldName(
        _XM,
        "parse_xla_device",
        "2.7",
        "write torch_xla._internal.utils.parse_xla_device()",
        _same("torch_xla._internal.utils.parse_xla_device"),
    ),
    OldName(_XR, "xla_device", "2.8", "write torch_xla.device()", _device),
    OldName(_XR, "using_pjrt", "2.5", _ONE_RUNTIME, lambda: True),
    OldName(_XR, "requires_pjrt", "2.5", _ONE_RUNTIME, lambda fn: fn),
    OldName(
        "torch_xla.experimental",
        "compile",
        "2.7",
        "write torch_xla.compile()",
        _same("torch_xla.compile"),
    ),
    OldName(
        "torch_xla.experimental.eager",
        "compile",
        "2.7",
        "write torch_xla.compile()",
        _same("torch_xla.compile"),
    ),
    OldName(
        "torch_xla.amp",
        "GradScaler",
        "2.9",
        "leave it out, bfloat16 needs no loss scaling",
        _no_scaler,
    ),
    OldName(
        "torch_xla.core.functions",
        "nms",
        "2.4",
        "use torchvision.ops.nms on CPU tensors",
        None,
    ),
    OldName("torch_xla.utils.dlpack", "from_xla_cuda_to_cuda", "2.9", _NO_CUDA, None),
)

MODULES = (
    OldModule(
        "torch_xla.experimental.pjrt",
        "2.5",
        "import torch_xla.runtime as xr",
        ("torch_xla.runtime", "torch_xla._internal.pjrt"),
        (
            ("rendezvous", "torch_xla.core.xla_model.xla_rendezvous"),
            ("broadcast_master_param", "torch_xla.core.xla_model.broadcast_master_param"),
            ("device_attributes", "torch_xla.runtime.runtime_device_attributes"),
            ("global_device_attributes", "torch_xla.runtime.global_runtime_device_attributes"),
        ),
    ),
    OldModule(
        "torch_xla.experimental.tpu",
        "2.5",
        "import torch_xla._internal.tpu as tpu",
        ("torch_xla._internal.tpu",),
    ),
    OldModule(
        "torch_xla.experimental.xla_sharding",
        "2.5",
        "import torch_xla.distributed.spmd as xs",
        ("torch_xla.distributed.spmd.xla_sharding",),
    ),
    OldModule(
        "torch_xla.experimental.xla_sharded_tensor",
        "2.5",
        "import torch_xla.distributed.spmd as xs",
        ("torch_xla.distributed.spmd.xla_sharded_tensor",),
    ),
    OldModule(
        "torch_xla.amp.grad_scaler",
        "2.9",
        "leave it out, bfloat16 needs no loss scaling",
        ("torch_xla.amp",),
    ),
    OldModule("torch_xla.experimental.gpu", "2.5", _NO_CUDA),
    OldModule("torch_xla.experimental.triton", "2.9", _NO_CUDA),
    OldModule("torch_xla.core.xrt_run_server", "2.1", _NO_XRT),
    OldModule("torch_xla.distributed.cluster", "2.1", _NO_XRT),
    OldModule("torch_xla.distributed.worker", "2.1", _NO_XRT),
    OldModule("torch_xla.distributed.xrt_init", "2.1", "import torch_xla.distributed.xla_backend"),
    OldModule(
        "torch_xla.distributed.xla_dist",
        "2.1",
        "run the program on every host, or use `%%xla_spawn --on ray`",
    ),
    OldModule("torch_xla.utils.gcsfs", "2.1", "leave it out, or use the package gcsfs"),
    OldModule(
        "torch_xla.utils.tf_record_reader",
        "2.1",
        "read TFRecord files with tensorflow-cpu or the package tfrecord",
    ),
    OldModule(
        "torch_xla.utils.cached_dataset",
        "2.1",
        "keep the samples in a Dataset of your own",
    ),
)

#: The names that torch_xla, or torch, still has and warns of: how its warnings begin, and what is
#: told.
DEPRECATED = {
    "torch.set_default_tensor_type() is deprecated": "torch.set_default_tensor_type is deprecated: "
    "write torch.set_default_dtype(), torch.set_default_device()",
    "Use torch_xla.device instead": "xm.xla_device is deprecated: write torch_xla.device()",
    "Use torch_xla.sync instead": "xm.mark_step is deprecated: write torch_xla.sync()",
}


# ---------------------------------------------------------------- put where they were


class _Here:
    """`tell` gets each notice, `told` has those that it got; `put` is what modules were given;
    `show` shows all other warnings."""

    def __init__(self) -> None:
        self.is_on = False
        self.tell: Callable[[str], object] = lambda notice: None
        self.told: set[str] = set()
        self.put: list[tuple[ModuleType, str, object]] = []
        self.finder = _Finder()
        self.show = warnings.showwarning

    def used(self, notice: str) -> None:
        if first_time(notice):
            self.tell(notice)


@functools.cache
def _here() -> _Here:
    """That of this process."""
    return _Here()


def used(notice: str) -> None:
    """Tell of what a program uses, once."""
    _here().used(notice)


def first_time(notice: str) -> bool:
    """Whether a notice is new to this process. The notebook asks for its ranks' notices too."""
    is_new = notice not in _here().told
    _here().told.add(notice)
    return is_new


def install(tell: Callable[[str], object] = lambda notice: None) -> None:
    """Let programs use the old names. `tell` gets the notice of each one that is used; while they
    are there, whoever put them there is told."""
    here = _here()
    if here.is_on:
        return
    here.is_on, here.tell = True, tell
    for module in dict.fromkeys(old.module for old in NAMES):
        when_imported(module, _put)
    if here.finder not in sys.meta_path:
        sys.meta_path.append(here.finder)  # last: modules that exist are found before
    if warnings.showwarning is not _show:
        here.show = warnings.showwarning
        warnings.showwarning = _show


def uninstall() -> None:
    """Take them away again, but for what the program has bound to names of its own."""
    _here().is_on = False
    if warnings.showwarning is _show:
        warnings.showwarning = _here().show
    for module, name, value in _here().put:
        if vars(module).get(name) is value:
            delattr(module, name)
    _here().put.clear()
    for old in MODULES:
        if isinstance(getattr(sys.modules.get(old.module), "__loader__", None), _Loader):
            package, _, name = old.module.rpartition(".")
            vars(sys.modules[package]).pop(name, None)
            del sys.modules[old.module]


def _show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What Python calls with each warning that its filters let through."""
    text = str(message) if category in (DeprecationWarning, UserWarning) else ""
    notice = next((told for start, told in DEPRECATED.items() if text.startswith(start)), None)
    if notice is not None and _here().is_on:
        _here().used(notice)
    else:
        _here().show(message, category, filename, lineno, file, line)


def _put(module: ModuleType) -> None:
    """Give a module the old names that it does not have."""
    if not _here().is_on:
        return
    missing = [old for old in NAMES if old.module == module.__name__]
    missing = [old for old in missing if old.name not in vars(module)]
    for old in missing:
        if old.answer is not None:
            _set(module, old.name, _answering(old))
    gone = {old.name: old.notice for old in missing if old.answer is None}
    if gone and "__getattr__" not in vars(module):
        _set(module, "__getattr__", functools.partial(_refuse, module.__name__, gone))


def _set(module: ModuleType, name: str, value: object) -> None:
    setattr(module, name, value)
    _here().put.append((module, name, value))


def _answering(old: OldName) -> Callable[..., Any]:
    """The function that a module gets: pickle finds it there, on ranks too."""
    answer = old.answer
    assert answer is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        _here().used(old.notice)
        return answer(*args, **kwargs)

    call.__module__, call.__name__, call.__qualname__ = old.module, old.name, old.name
    call.__doc__ = old.notice
    return call


def _refuse(module: str, gone: dict[str, str], name: str) -> Any:
    raise AttributeError(gone.get(name, f"module {module!r} has no attribute {name!r}"))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        old = next((old for old in MODULES if old.module == fullname), None)
        if old is None or not _here().is_on:
            return None
        if not old.holds:
            raise ModuleNotFoundError(old.notice)  # with `name`, `from … import` would drop it
        return importlib.util.spec_from_loader(fullname, _Loader(old))


class _Loader(importlib.abc.Loader):
    def __init__(self, old: OldModule) -> None:
        self._old = old

    def exec_module(self, module: ModuleType) -> None:
        for name in self._old.holds:
            held = vars(importlib.import_module(name)).items()
            vars(module).update({name: value for name, value in held if name[0] != "_"})
        vars(module).update({name: _find(path) for name, path in self._old.renamed})
        _here().used(self._old.notice)
