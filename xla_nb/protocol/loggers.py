"""Loggers of a process: a rank's own of a name gets what the notebook's of that name holds.

Of handlers only those to the standard streams and to files are made again on ranks. What others
write to cannot be sent.
"""

from __future__ import annotations

import io
import logging
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_nb.protocol import parts, remake

#: What is each process's own: a logger's name, its place among the others, handlers, a cache.
_OWN = {"name", "parent", "manager", "handlers", "_cache"}
_NOTE = (
    "the logger `{}` is without its handlers on ranks, and does not propagate: give it a handler "
    "there"
)


_STREAMS = "stdout", "stderr"


@dataclass(frozen=True)
class Handler:
    """A handler to a standard stream, or to the file `to`, without what a library added to it."""

    to: str
    level: int
    format: str | None
    dates: str | None
    style: str
    encoding: str | None

    def made(self) -> logging.Handler | None:
        """One like it in this process; None where there is no folder for its file."""
        handler: logging.Handler
        if self.to in _STREAMS:
            handler = logging.StreamHandler(getattr(sys, self.to))
        elif Path(self.to).parent.is_dir():  # not so on another machine
            handler = logging.FileHandler(self.to, encoding=self.encoding, delay=True)
        else:
            return None
        handler.setLevel(self.level)
        form: Any = logging.Formatter(self.format, self.dates, self.style, False)  # type: ignore[arg-type]
        handler.setFormatter(form)
        return handler


def handlers(logger: logging.Logger) -> tuple[Handler, ...]:
    """Those of a logger that ranks are to have. Of a module's logger none: the module is imported
    there, and adds them itself."""
    package = logger.name.partition(".")[0]
    if package != "__main__" and package in sys.modules:
        return ()
    return tuple(found for one in logger.handlers if (found := _described(one)))


def _described(handler: logging.Handler) -> Handler | None:
    if type(handler) is logging.FileHandler:
        to, encoding = handler.baseFilename, handler.encoding
    elif type(handler) is logging.StreamHandler and not isinstance(handler.stream, io.StringIO):
        to, encoding = _STREAMS[handler.stream is not sys.stdout], None
    else:
        return None
    form = handler.formatter or logging.Formatter()
    styles: dict[Any, str] = {style: mark for mark, (style, _) in logging._STYLES.items()}
    style = styles.get(type(form._style), "%")
    return Handler(to, handler.level, form._fmt, form.datefmt, style, encoding)


def of_this_process() -> dict[str, logging.Logger]:
    """All loggers by name, root's with the name that it has."""
    root = logging.getLogger()
    known = {**root.manager.loggerDict, root.name: root}
    return {name: one for name, one in known.items() if isinstance(one, logging.Logger)}


def with_filters_made_here() -> Iterator[logging.Logger]:
    """Loggers with a filter of the notebook's. Ranks may ask for them by their names alone."""
    for one in (logging.root, *logging.root.manager.loggerDict.values()):
        if any(map(_is_made_here, getattr(one, "filters", ()))):  # a place holder has none
            yield one  # type: ignore[misc]  # which is therefore a logger


def _is_made_here(part: Any) -> bool:
    if isinstance(part, types.FunctionType):
        return not parts.importable(part)
    return parts.is_made_here(type(part))


def reduced(logger: logging.Logger) -> Any:
    """As a reducer's value."""
    known = logger is logging.root or logger.manager.loggerDict.get(logger.name) is logger
    make = remake.logger if known else remake.logger_beside
    return make, (type(logger), logger.name), state(logger), None, None, remake.fill_logger


def state(logger: logging.Logger) -> dict[str, object]:
    """Level, filters, whether it propagates and is disabled, and the user's attributes, by name."""
    return {name: part for name, part in sorted(vars(logger).items()) if name not in _OWN}


def loss(logger: logging.Logger) -> str | None:
    """What to say where nobody hears the logger on ranks, since its handlers stay here."""
    is_lost = logger.handlers and not logger.propagate and not handlers(logger)
    return _NOTE.format(logger.name) if is_lost else None
