"""Loggers of a process: a rank's own of a name gets what the notebook's of that name holds.

Handlers stay where they are, since what they write to cannot be sent.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from typing import Any

from xla_nb.protocol import parts, remake

#: What is each process's own: a logger's name, its place among the others, handlers, a cache.
_OWN = {"name", "parent", "manager", "handlers", "_cache"}
_NOTE = (
    "the logger `{}` is without its handlers on ranks, and does not propagate: give it a handler "
    "there"
)


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
    return _NOTE.format(logger.name) if logger.handlers and not logger.propagate else None
