"""Keeps the notebook's own process from opening a TPU: no rank could have its chips after that.

A question stands before each way in: the functions of torch_xla that make its client (`OPENERS`);
those of torch that ask it in C++ for the default device (`MAKERS`, as in `x.to("xla")`), where an
exception would leave the next that asks waiting for ever; the kernels of torch_xla that make a
tensor of none (`KERNELS`, as in `torch.ones(2, device="xla")`); JAX's search for its backends.
On a simulated host, whose ranks have devices of their own, opening it is only noted, but at the
top level of a launched cell, where a laptop is to show what a TPU would do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from xla_nb import notebook
from xla_nb.dropin import answers
from xla_nb.errors import UsageError
from xla_nb.patching import when_imported
from xla_nb.run.options import GUARD

#: Functions of torch_xla._XLAC that make the client of this process, or open its devices.
OPENERS = (
    "_init_computation_client",
    "_xla_get_all_device_attributes",
    "_xla_get_all_devices",
    "_xla_get_all_runtime_devices",
    "_xla_get_default_device",
    "_xla_get_default_device_ordinal",
    "_xla_get_device_attributes",
    "_xla_get_devices",
    "_xla_get_num_processes",
    "_xla_get_process_index",
    "_xla_get_replication_devices_count",
    "_xla_get_runtime_devices",
    "_xla_memory_info",
    "_xla_metrics_report",
    "_xla_num_devices",
    "_xla_num_global_devices",
    "_xla_num_runtime_devices",
    "_xla_real_devices",
    "_xla_tensors_from_aten",
    "_xla_wait_device_ops",
)
#: Functions of torch, and methods of its tensors, that look for the index of a device without one.
MAKERS = (
    "Tensor.new_tensor",
    "Tensor.to",
    "as_tensor",
    "asarray",
    "range",
    "sparse_coo_tensor",
    "tensor",
    "tril_indices",
    "triu_indices",
)
#: Operators that torch_xla implements and that take a device: the rest work on tensors that are on
#: it, or call these.
KERNELS = (
    "_to_copy",
    "empty.memory_format",
    "empty_strided",
    "full",
    "linspace",
    "new_empty_strided",
    "randperm",
)
ALLOWED = "# xla: allow"
_BRIDGE = "jax._src.xla_bridge"
#: What IPython calls the code of `%%time`, which begins below that line.
_TIMED = "<timed exec>"


class Guard:
    """That of one shell and process."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._pid = shell, os.getpid()
        self._openers: dict[str, Callable[..., Any]] = {}
        self._makers: dict[str, Callable[..., Any]] = {}
        self._kernels: Any = None  # a torch.library.Library, while it stands before KERNELS
        self._jax: Callable[[], Any] | None = None
        self._is_on = self._has_noted = False
        self._launcher = ""  # that calls a function in this process
        self._raised: UsageError | None = None  # in this cell

    def turn_on(self) -> None:
        self._is_on = True
        if self._after_cell not in self._shell.events.callbacks["post_run_cell"]:
            self._shell.events.register("post_run_cell", self._after_cell)
        when_imported("torch_xla", self._watch_torch_xla)
        when_imported(_BRIDGE, self._watch_jax)

    def turn_off(self) -> None:
        if self._is_on:
            self._shell.events.unregister("post_run_cell", self._after_cell)
        self._is_on = False
        for name, original in self._openers.items():
            setattr(sys.modules["torch_xla"]._XLAC, name, original)
        self._openers.clear()
        self._restore_torch()
        if self._jax is not None:
            sys.modules[_BRIDGE].backends = self._jax  # type: ignore[attr-defined]
            self._jax = None

    @contextlib.contextmanager
    def opened_by(self, launcher: str) -> Iterator[None]:
        """Let this process open the TPU, as a launcher means it to that starts no other."""
        before, self._launcher = self._launcher, launcher
        try:
            yield
        finally:
            self._launcher = before

    def _watch_torch_xla(self, torch_xla: ModuleType) -> None:
        if not self._is_on or self._openers:
            return
        for name in OPENERS:
            original = getattr(torch_xla._XLAC, name, None)
            if original is not None:
                self._openers[name] = original
                setattr(torch_xla._XLAC, name, functools.partial(self._call, original))
        if not _is_open():
            self._watch_makers(sys.modules["torch"])
            self._watch_kernels(sys.modules["torch"])

    def _watch_makers(self, torch: Any) -> None:
        for name in MAKERS:
            owner, last = _owner(torch, name)
            self._makers[name] = original = getattr(owner, last)
            watched = self._watched(original, name)
            in_scripts = torch.jit._builtins._find_builtin(original)
            if in_scripts:
                torch.jit._builtins._register_builtin(watched, in_scripts)
            setattr(owner, last, watched)

    def _watched(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        torch: Any = sys.modules["torch"]

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # IPython leaves this frame out
            if not torch.compiler.is_compiling() and _asks_device(name, args, kwargs):
                self._call_torch()
            return original(*args, **kwargs)

        watched.__module__, watched.__qualname__ = "torch", name  # it pickles by these
        return watched

    def _watch_kernels(self, torch: Any) -> None:
        library = self._kernels = torch.library.Library("aten", "IMPL", "XLA")
        with warnings.catch_warnings():  # that it stands before others is its purpose
            warnings.simplefilter("ignore")
            for name in KERNELS:
                if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "XLA"):
                    packet, _, overload = name.partition(".")
                    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                    call = functools.partial(self._call_kernel, operator)
                    library.impl(name, call, allow_override=True)

    def _watch_jax(self, bridge: ModuleType) -> None:
        self._jax = getattr(bridge, "backends", None) if self._is_on else None
        if self._jax is not None:
            bridge.backends = self._backends  # type: ignore[attr-defined]

    def _call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Called in place of one of OPENERS."""
        if not _is_open():
            self._opening(sys._getframe(1))
        return original(*args, **kwargs)

    def _call_torch(self) -> None:
        """Called by one of MAKERS, if it is about to ask for the device."""
        if not _is_open():
            self._opening(sys._getframe(2))

    def _call_kernel(self, operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Called in place of one of KERNELS, while the device is not open."""
        self._opening(sys._getframe(1))
        return operator(*args, **kwargs)

    def _restore_torch(self) -> None:
        """No function of torch opens the device any more."""
        for name, original in self._makers.items():
            owner, last = _owner(sys.modules["torch"], name)
            setattr(owner, last, original)
        self._makers.clear()
        library, self._kernels = self._kernels, None
        if library is not None:
            library._destroy()

    def _backends(self) -> Any:
        """Called in place of JAX's `backends`, which opens the devices of all its platforms."""
        bridge: Any = sys.modules[_BRIDGE]
        if not bridge._backends and _is_tpu() and _jax_takes_tpu(bridge) and self._is_asked():
            self._stop(self._own_frame(sys._getframe(1)))
        return (self._jax or bridge.backends)()

    def _opening(self, caller: FrameType) -> None:
        """Raises UsageError on a TPU, but for a launcher; says so once on a simulated host."""
        if self._is_asked():
            frame = self._own_frame(caller)
            top_level = notebook.of(self._shell).top_level
            if top_level is not None and not self._launcher:
                top_level.refused = UsageError(_OF_LAUNCHED.format(*self._place(frame)))
                raise top_level.refused
            if _is_tpu():
                self._stop(frame)
            if frame is not None and not self._has_noted and not self._launcher:
                self._has_noted = True
                print(_note(*self._place(frame)))
        self._restore_torch()

    def _stop(self, frame: FrameType | None) -> None:
        """Raises UsageError; of what a launcher opens it says once what that costs."""
        if not self._launcher:
            self._raised = UsageError(_sentence(*self._place(frame)))
            raise self._raised
        if not self._has_noted:
            self._has_noted = True
            print(_COST.format(self._launcher))

    def _after_cell(self, _result: object = None) -> None:
        """Say what `except Exception: device = "cpu"` would keep from the user."""
        raised, self._raised = self._raised, None
        if raised is not None and getattr(sys, "last_value", None) is not raised:
            print(f"{raised}\nThe program caught this error and goes on without the TPU.")

    def _is_asked(self) -> bool:
        """Whether it stands guard over this process, and nobody has allowed it."""
        is_here = self._is_on and os.getpid() == self._pid
        if not is_here or not notebook.of(self._shell).own.get(GUARD, True):
            return False
        return ALLOWED not in self._cell()

    def _cell(self) -> str:
        return str(self._shell.history_manager.input_hist_raw[-1])

    def _own_frame(self, caller: FrameType) -> FrameType | None:
        """The innermost frame of the notebook's own code, or of a file that `%run` executes."""
        frame: FrameType | None = caller
        while frame is not None:
            names, file = frame.f_globals, frame.f_code.co_filename
            is_script = names.get("__name__") == "__main__" and names.get("__spec__") is None
            is_known = self._is_timed(file) or linecache.getline(file, frame.f_lineno)
            if is_known and (names is self._shell.user_ns or is_script):
                return frame
            frame = frame.f_back
        return None

    def _place(self, frame: FrameType | None) -> tuple[str, str]:
        """Where that is, and the line."""
        if frame is None:
            return "A thread of the notebook", ""
        file, line = frame.f_code.co_filename, frame.f_lineno
        if self._is_timed(file):
            label = f"Cell In[{len(self._shell.history_manager.input_hist_raw) - 1}]"
            return f"{label}, line {line + 1},", self._cell().splitlines()[line]
        is_cells = frame.f_globals is self._shell.user_ns
        label = notebook.of(self._shell).executed.label(file) if is_cells else file
        return f"{label}, line {line},", linecache.getline(file, line)

    def _is_timed(self, file: str) -> bool:
        """Whether that is the text below a `%%time`."""
        return file == _TIMED and self._cell().startswith("%%")


@functools.cache
def of(shell: Any) -> Guard:
    """The one Guard of a shell."""
    return Guard(shell)


def _is_tpu() -> bool:
    """Whether the next launch would use the chips of this machine."""
    try:
        return answers.wish() is None
    except UsageError:
        return False


def _is_open() -> bool:
    """Whether this process has torch_xla's client."""
    return bool(sys.modules["torch_xla"]._XLAC._xla_runtime_is_initialized())


def _owner(torch: Any, name: str) -> tuple[Any, str]:
    """The module or class that a name of MAKERS belongs to, and its name there."""
    owner, _, last = name.rpartition(".")
    return (getattr(torch, owner) if owner else torch), last


def _asks_device(maker: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of one of MAKERS is given "xla" alone, or takes that from a `with`."""
    torch: Any = sys.modules["torch"]
    for each in (*args, kwargs.get("device")):
        if isinstance(each, str | torch.device):
            return str(each) == "xla"
    if "." in maker or not torch._C._len_torch_function_stack():
        return False
    modes = reversed(torch.overrides._get_current_function_mode_stack())
    devices = (mode.device for mode in modes if hasattr(mode, "device"))
    return str(next(devices, "")) == "xla"


def _jax_takes_tpu(bridge: Any) -> bool:
    """Whether JAX would look for a TPU, and could use one."""
    wanted = getattr(sys.modules["jax"].config, "jax_platforms", None) or "tpu"
    has_library = "TPU_LIBRARY_PATH" in os.environ or importlib.util.find_spec("libtpu")
    return "tpu" in bridge._backend_factories and "tpu" in wanted.split(",") and bool(has_library)


# ---------------------------------------------------------------- what is said


_OF_LAUNCHED = (
    "{} would open the XLA device in the notebook; move it into the function. Nothing was launched."
)
_COST = (
    "{} runs the function in the notebook process, which now holds the TPU; ranks cannot use it "
    "until you restart the kernel."
)


def _sentence(where: str, line: str) -> str:
    return (
        f"{where} is about to open the TPU in the notebook's own process: no rank could have its "
        f"chips until the kernel is restarted.{_shown(line)}\nMove it into the function that ranks "
        f"run. To use the TPU in the notebook itself, write `{ALLOWED}` in the cell, or "
        "`%xla_config guard=off`."
    )


def _note(where: str, line: str) -> str:
    return (
        f"{where} opens the device in the notebook's own process.{_shown(line)}\nOn a TPU it would "
        "be stopped, as no rank could have the chips after it: move it into the function that "
        "ranks run."
    )


def _shown(line: str) -> str:
    return f"\n  {line.strip()}" if line.strip() else ""
