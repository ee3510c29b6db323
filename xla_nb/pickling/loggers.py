"""Loggers of a process: a rank's own of a name gets what the notebook's of that name holds.

Of handlers only those to the standard streams and to files are made again on ranks. What others
write to cannot be sent.
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

_UNHEARD = (
    "logger `{}` has no handlers on ranks and does not propagate: add a handler inside the function"
)

_STREAMS = "stdout", "stderr"
#: Level and such, and handlers.
State: TypeAlias = tuple[dict[str, object], tuple["Handler", ...]]
_AS_MADE: State = {"level": logging.NOTSET, "propagate": True, "disabled": False}, ()


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
    if _is_of_module(logger):
        return ()
    return tuple(found for one in logger.handlers if (found := _described(one)))


def _is_of_module(logger: logging.Logger) -> bool:
    package = logger.name.partition(".")[0]
    return package != "__main__" and package in sys.modules


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


def reduced(logger: logging.Logger) -> Any:
    """As a reducer's value: this process's logger of its name. One that `getLogger` does not find
    logging itself refuses."""
    made: Any = logger.__reduce__()
    return *made, state(logger), None, None, rebuild.fill_logger


def state(logger: logging.Logger) -> State:
    """What ranks' logger of its name is given."""
    own = {name: getattr(logger, name) for name in ("level", "propagate", "disabled")}
    return own, handlers(logger)


def states() -> dict[str, State]:
    """That of all loggers that are not as `getLogger` makes them."""
    each = {name: state(one) for name, one in of_this_process().items()}
    return {name: one for name, one in each.items() if one != _AS_MADE}


def losses(logger: logging.Logger) -> Iterator[str]:
    """What to say of what ranks' logger of this name does without."""
    is_silent = bool(logger.handlers) and not logger.propagate and not _is_of_module(logger)
    if is_silent and not handlers(logger):
        yield _UNHEARD.format(logger.name)
