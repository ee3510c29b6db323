"""What a script's forked ranks have of their process besides its memory, taken from the notebook.

The arguments of the program, the limits of recursion and of integers' digits, options and filters
of warnings, what logging and torch are set to, and what NumPy does about errors.
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
    """What this thread's NumPy does about each kind of error of floats; empty without NumPy."""
    numpy = sys.modules.get("numpy")
    return dict(numpy.geterr()) if numpy is not None and hasattr(numpy, "geterr") else {}


@dataclass(frozen=True)
class ProcessState:
    """The state of a process that has no device and no rank."""

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
        """Set it in this process."""
        sys.argv[:] = self.argv
        sys.setrecursionlimit(max(self.recursion_limit, sys.getrecursionlimit()))
        sys.set_int_max_str_digits(self.digits_limit)
        sys.warnoptions[:] = self.warn_options  # of interpreters that ranks start
        own = [one for one in warnings.filters if one not in self.filters]
        warnings.filters[:] = [*self.filters, *own]  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self.loggers is not None:
            for name, given in self.loggers.items():
                rebuild.fill_logger(logging.getLogger(name), given)
            logging.disable(self.logs_disabled)
        if self.torch is not None:
            self.torch.take_on()
        if self.numpy_errors:
            sys.modules["numpy"].seterr(**self.numpy_errors)


@contextlib.contextmanager
def unmoved(*, lives: bool) -> Iterator[None]:
    """Have the user's own modules that are imported here leave the process as it is. The notebook
    has imported them before: what their top level sets was set there, and may be otherwise by now.
    Variables of the environment that were not there stay: libraries that they import need theirs.
    `lives`: a live rank, whose loggers and filters of warnings stay as they are left."""
    before, known = Inheritance.now(), len(sys.modules)
    state = ProcessState(filters=(), loggers=None) if lives else ProcessState()
    environ, folder, path = dict(os.environ), _folder(), list(sys.path)
    yield
    if len(sys.modules) == known:
        return
    os.environ.update(environ.items() - os.environ.items())
    sys.path[:] = path
    if folder and folder != _folder():
        os.chdir(folder)
    sys.setrecursionlimit(state.recursion_limit)
    before.take_on()
    state.take_on()


def _folder() -> str:
    """The working directory; none where it has been removed."""
    with contextlib.suppress(OSError):
        return str(Path.cwd())
    return ""


def _filters() -> list[_Filter]:
    """The filters of Python's own warnings. Another's class would import its package in every job:
    IPython has one, which takes 90 ms."""
    found = [tuple(one) for one in warnings.filters]
    return [one for one in found if one[2].__module__ == "builtins"]  # type: ignore[misc]
