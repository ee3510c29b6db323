"""Keep the notebook process from opening a TPU, because ranks could not use its chips afterwards.

Two kinds of functions are intercepted: those of torch_xla that create its client (OPENERS) and,
while a cell runs, each function of torch that receives the device (`x.to("xla")`), because torch
opens it in C++, where nothing can be refused. Any other way (a thread, JAX) is reported below the
cell. On a simulated host, whose ranks have their own devices, opening it only prints a note, except
at the top level of a launched cell, so that a laptop shows what a TPU would do.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

from xla_nb import notebook
from xla_nb.dropin import answers
from xla_nb.errors import UsageError
from xla_nb.patching import when_imported
from xla_nb.run.options import GUARD

#: Functions of torch_xla._XLAC that create the client of this process, or open its devices.
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
ALLOWED = "# xla: allow"


class Guard:
    """The guard of one shell and process."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._pid = shell, os.getpid()
        self._openers: dict[str, Callable[..., Any]] = {}
        self._mode: Any = None  # a TorchFunctionMode, while torch's functions are watched
        self._has_warned = self._was_open = False
        self._launcher = ""  # the launcher that is calling a function in this process
        self._error: UsageError | None = None  # in this cell

    def turn_on(self) -> None:
        when_imported("torch_xla", self._watch_torch_xla)

    @contextlib.contextmanager
    def opened_by(self, launcher: str) -> Iterator[None]:
        """Let this process open the TPU, for a launcher that starts no other process."""
        outer, self._launcher = self._launcher, launcher
        try:
            yield
        finally:
            self._launcher = outer

    def _watch_torch_xla(self, torch_xla: ModuleType) -> None:
        for name in OPENERS:
            original = getattr(torch_xla._XLAC, name, None)
            if original is not None:
                self._openers[name] = original
                setattr(torch_xla._XLAC, name, functools.partial(self._call, original))
        self.before_cell()  # in the cell that imports it

    def before_cell(self, _info: object = None) -> None:
        """Watch the functions of torch that the cell calls, if it may not open the device."""
        self._was_open = _is_open()
        top_level = notebook.of(self._shell).top_level
        is_armed = self._openers and notebook.of(self._shell).settings[GUARD]
        if not is_armed or self._was_open or self._mode is not None:
            return
        if top_level is not None or _is_tpu():
            self._mode = _mode(self)
            self._mode.__enter__()

    def _stop_watching(self) -> None:
        """Stop watching, unless the cell has left a mode of its own on top of ours."""
        torch: Any = sys.modules.get("torch")
        if self._mode is not None and torch.overrides._get_current_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Called instead of one of OPENERS."""
        if not _is_open():
            self.opening(sys._getframe(1))
        return original(*args, **kwargs)

    def opening(self, caller: FrameType) -> None:
        """Raise UsageError on a TPU, except for a launcher, for which the cost is printed once. On
        a simulated host, print once what a TPU would do."""
        if _is_open() or not self._is_guarded():
            return
        frame, top_level = self._find_frame(caller), notebook.of(self._shell).top_level
        if top_level is not None and not self._launcher:
            top_level.refused = UsageError(_IN_TOP_LEVEL.format(*self._describe_place(frame)))
            raise top_level.refused
        if _is_tpu() and not self._launcher:
            self._error = UsageError(_refusal(*self._describe_place(frame)))
            raise self._error
        if not self._has_warned and (_is_tpu() if self._launcher else frame is not None):
            self._has_warned = True
            place = self._describe_place(frame)
            print(_COST.format(self._launcher) if self._launcher else _warning(*place))

    def after_cell(self, _result: object = None) -> None:
        """Print an error that code such as `except Exception: device = "cpu"` hid from the user, or
        that the TPU was opened unseen."""
        self._stop_watching()
        error, self._error = self._error, None
        if error is not None and getattr(sys, "last_value", None) is not error:
            print(f"{error}\nYour code caught this error and continued without the TPU.")
        if _is_open() and not self._was_open and not self._has_warned:
            self._has_warned = True
            if self._is_guarded() and _is_tpu():
                print(_OPENED)

    def _is_guarded(self) -> bool:
        """True if this process is guarded and the cell does not allow opening the device."""
        if os.getpid() != self._pid or not notebook.of(self._shell).settings[GUARD]:
            return False
        return ALLOWED not in self._shell.history_manager.input_hist_raw[-1]

    def _find_frame(self, caller: FrameType) -> FrameType | None:
        """The innermost frame of the notebook's code, or of a file that `%run` executes."""
        frame: FrameType | None = caller
        while frame is not None:
            names, file = frame.f_globals, frame.f_code.co_filename
            is_script = names.get("__name__") == "__main__" and names.get("__spec__") is None
            is_ours = names is self._shell.user_ns or is_script
            if is_ours and linecache.getline(file, frame.f_lineno):
                return frame
            frame = frame.f_back
        return None

    def _describe_place(self, frame: FrameType | None) -> tuple[str, str]:
        """The place of a frame in words, and its line of code."""
        if frame is None:
            return "A thread of the notebook", ""
        file, line = frame.f_code.co_filename, frame.f_lineno
        is_cell = frame.f_globals is self._shell.user_ns
        label = notebook.of(self._shell).label(file) if is_cell else file
        return f"{label}, line {line},", linecache.getline(file, line)


@functools.cache
def of(shell: Any) -> Guard:
    """The Guard of a shell, always the same."""
    return Guard(shell)


def _mode(guard: Guard) -> Any:
    """The mode that torch consults before each of its functions, in this thread."""
    torch: Any = sys.modules["torch"]
    device_context: Any = sys.modules["torch.utils._device"]  # a `with torch.device("xla")`

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            values = (*args, *kwargs.values())
            devices = [value for value in values if isinstance(value, str | torch.device)]
            if not devices and function in device_context._device_constructors():
                devices = [device_context.CURRENT_DEVICE]
            if function is not torch.device and any(str(device)[:3] == "xla" for device in devices):
                guard.opening(sys._getframe(1))
            return function(*args, **kwargs)

    return Mode()


def _is_tpu() -> bool:
    """True if the next launch would use this machine's chips."""
    try:
        return answers.wish() is None
    except UsageError:
        return False


def _is_open() -> bool:
    """True if this process has torch_xla's client, or JAX's for the TPU."""
    torch_xla: Any = sys.modules.get("torch_xla")
    client = getattr(getattr(torch_xla, "_XLAC", None), "_xla_runtime_is_initialized", bool)
    jax = sys.modules.get("jax._src.xla_bridge")
    return bool(client()) or "tpu" in getattr(jax, "_backends", ())


# ---------------------------------------------------------------- messages


_IN_TOP_LEVEL = (
    "{} would open the XLA device in the notebook; move it into the function. Nothing was launched."
)
_OPENED = (
    "This cell opened the TPU in the notebook process: ranks cannot use it until you restart the "
    "kernel."
)
_COST = (
    "{} runs the function in the notebook process, which now holds the TPU; ranks cannot use it "
    "until you restart the kernel."
)


def _refusal(where: str, line: str) -> str:
    return (
        f"{where} would open the TPU in the notebook process; ranks could not use it until you "
        f"restart the kernel.{_quote(line)}\nMove it into the function that ranks run. To use the "
        f"TPU in the notebook itself, write `{ALLOWED}` in the cell, or run `%xla_config "
        "guard=off`."
    )


def _warning(where: str, line: str) -> str:
    return (
        f"{where} opens the device in the notebook process.{_quote(line)}\nOn a TPU this would be "
        "an error, because ranks could not use the chips afterwards: move it into the function "
        "that ranks run."
    )


def _quote(line: str) -> str:
    return f"\n  {line.strip()}" if line.strip() else ""
