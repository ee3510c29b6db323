"""Process-wide settings that ranks inherit from the notebook, as a script's forked ranks would.

The program's arguments, the limits on recursion and on digits of integers, options and filters of
warnings, the settings of logging and torch, and NumPy's error handling.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xla_nb.pickling import loggers, rebuild
from xla_nb.process_state.random_state import Inheritance
from xla_nb.process_state.torch_settings import TorchSettings

_Filter = tuple[Any, Any, type[Warning], Any, int]


def _numpy_errors() -> dict[str, str]:
    """NumPy's handling of each kind of floating-point error in this thread; empty without NumPy."""
    numpy = sys.modules.get("numpy")
    return dict(numpy.geterr()) if numpy is not None and hasattr(numpy, "geterr") else {}


@dataclass(frozen=True)
class ProcessState:
    """The settings of a process that has no device and is not a rank."""

    argv: tuple[str, ...] = field(default_factory=lambda: tuple(map(str, sys.argv)))
    recursion_limit: int = field(default_factory=sys.getrecursionlimit)
    digits_limit: int = field(default_factory=sys.get_int_max_str_digits)
    warn_options: tuple[str, ...] = field(default_factory=lambda: tuple(sys.warnoptions))
    filters: tuple[_Filter, ...] = field(default_factory=lambda: tuple(_filters()))
    loggers: dict[str, loggers.State] | None = field(default_factory=loggers.states)
    logs_disabled: int = field(default_factory=lambda: logging.root.manager.disable)
    torch: TorchSettings | None = field(default_factory=TorchSettings.of_this_process)
    numpy_errors: dict[str, str] = field(default_factory=_numpy_errors)

    def take_on(self) -> None:
        """Apply the settings in this process."""
        sys.argv[:] = self.argv
        sys.setrecursionlimit(max(self.recursion_limit, sys.getrecursionlimit()))
        sys.set_int_max_str_digits(self.digits_limit)
        sys.warnoptions[:] = self.warn_options  # for interpreters that ranks start
        added = [entry for entry in warnings.filters if entry not in self.filters]
        warnings.filters[:] = [*self.filters, *added]  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self.loggers is not None:
            for name, state in self.loggers.items():
                rebuild.fill_logger(logging.getLogger(name), state)
            logging.disable(self.logs_disabled)
        if self.torch is not None:
            self.torch.take_on()
        if self.numpy_errors:
            sys.modules["numpy"].seterr(**self.numpy_errors)


@contextlib.contextmanager
def unmoved(*, lives: bool) -> Iterator[None]:
    """Restore the process's settings after own modules are imported in the block. The notebook has
    imported them before: the settings made by their top level were made there, and may have changed
    since. New environment variables stay, because libraries that they import need them. `lives`: a
    live rank, whose loggers and warning filters are not restored."""
    generators, module_count = Inheritance.now(), len(sys.modules)
    state = ProcessState(filters=(), loggers=None) if lives else ProcessState()
    environ, folder, path = dict(os.environ), _working_directory(), list(sys.path)
    yield
    if len(sys.modules) == module_count:
        return
    os.environ.update(environ.items() - os.environ.items())
    sys.path[:] = path
    if folder and folder != _working_directory():
        os.chdir(folder)
    sys.setrecursionlimit(state.recursion_limit)
    generators.take_on()
    state.take_on()


def _working_directory() -> str:
    """The working directory; empty if it has been removed."""
    with contextlib.suppress(OSError):
        return str(Path.cwd())
    return ""


def _filters() -> list[_Filter]:
    """The filters for Python's built-in warnings. The class of any other would import its package
    in every job, such as IPython's, which takes 90 ms."""
    filters = [tuple(entry) for entry in warnings.filters]
    return [entry for entry in filters if entry[2].__module__ == "builtins"]  # type: ignore[misc]
