"""Begin, end and watch programs of the rank that runs a scenario, as a runtime does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_xla.experimental import plugins

from xla_nb.stopwatch import Wait


def begin(number: int, members: Iterable[int] | None = None) -> None:
    _programs().begin(number, members)


def leave(reason: str) -> None:
    _programs().leave(reason)


def waiting() -> Wait | None:
    return _programs().waits.current


def waited() -> float | None:
    return _programs().waits.seconds


def _programs() -> Any:
    return plugins.default().programs
