"""Loggers: a rank's logger gets the state of the notebook's logger of the same name.

Only handlers to the standard streams and to files are re-created on ranks. The targets of others
cannot be sent.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from xla_nb.pickling import rebuild

_NO_HANDLERS = (
    "logger `{}` has no handlers on ranks and does not propagate: add a handler inside the function"
)

_STREAMS = "stdout", "stderr"
#: Level and the like, and handlers.
State: TypeAlias = tuple[dict[str, object], tuple["Handler", ...]]
_INITIAL_STATE: State = {"level": logging.NOTSET, "propagate": True, "disabled": False}, ()


@dataclass(frozen=True)
class Handler:
    """A handler to a standard stream, or to the file `to`, without anything a library added to
    it. `format` are the arguments of its formatter."""

    to: str
    level: int
    format: tuple[str | None, str | None, str]
    encoding: str | None

    def made(self) -> logging.Handler | None:
        """Create such a handler in this process; None if the folder of its file does not exist."""
        handler: logging.Handler
        if self.to in _STREAMS:
            handler = logging.StreamHandler(getattr(sys, self.to))
        elif Path(self.to).parent.is_dir():  # may not exist on another machine
            handler = logging.FileHandler(self.to, encoding=self.encoding, delay=True)
        else:
            return None
        handler.setLevel(self.level)
        handler.setFormatter(logging.Formatter(*self.format, validate=False))  # type: ignore[arg-type]
        return handler


def handlers(logger: logging.Logger) -> tuple[Handler, ...]:
    """Return the handlers that ranks get. None for a module's logger: the module is imported there
    and adds its own."""
    if _is_of_module(logger):
        return ()
    return tuple(description for handler in logger.handlers if (description := _describe(handler)))


def _is_of_module(logger: logging.Logger) -> bool:
    package = logger.name.partition(".")[0]
    return package != "__main__" and package in sys.modules


def _describe(handler: logging.Handler) -> Handler | None:
    if type(handler) is logging.FileHandler:
        to, encoding = handler.baseFilename, handler.encoding
    elif type(handler) is logging.StreamHandler and not isinstance(handler.stream, io.StringIO):
        to, encoding = _STREAMS[handler.stream is not sys.stdout], None
    else:
        return None
    formatter = handler.formatter or logging.Formatter()
    styles: dict[Any, str] = {style: mark for mark, (style, _) in logging._STYLES.items()}
    style = styles.get(type(formatter._style), "%")
    arguments = formatter._fmt, formatter.datefmt, style
    return Handler(to, handler.level, arguments, encoding)


def of_this_process() -> dict[str, logging.Logger]:
    """Return all loggers by name, including the root logger under its name."""
    root = logging.getLogger()
    known = {**root.manager.loggerDict, root.name: root}
    return {name: logger for name, logger in known.items() if isinstance(logger, logging.Logger)}


def reduced(logger: logging.Logger) -> Any:
    """Return the reducer value: this process's logger of the same name. logging itself refuses a
    logger that `getLogger` does not find."""
    by_name: Any = logger.__reduce__()
    return *by_name, state(logger), None, None, rebuild.fill_logger


def state(logger: logging.Logger) -> State:
    """Return the state that ranks' logger of the same name gets. A module that adds a handler on
    import, if the root logger has none, stops propagation there itself."""
    adds_handlers = bool(logger.handlers) and _is_of_module(logger)
    names = ("level", "disabled") if adds_handlers else ("level", "propagate", "disabled")
    return {name: getattr(logger, name) for name in names}, handlers(logger)


def states() -> dict[str, State]:
    """Return the states of all loggers that differ from a new one of `getLogger`."""
    all_states = {name: state(logger) for name, logger in of_this_process().items()}
    return {name: value for name, value in all_states.items() if value != _INITIAL_STATE}


def losses(logger: logging.Logger) -> Iterator[str]:
    """Yield notes on what ranks' logger of this name lacks."""
    is_silent = bool(logger.handlers) and not logger.propagate and not _is_of_module(logger)
    if is_silent and not handlers(logger):
        yield _NO_HANDLERS.format(logger.name)
