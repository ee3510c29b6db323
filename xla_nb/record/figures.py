"""Figures reported with `xla_nb.report`: how rows are written and read, and `run.history`.

A row is one call of `report`: its number, its time, its step and its figures by name.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_nb.errors import XlaNbError
from xla_nb.record import private
from xla_nb.record.tail import before
from xla_nb.wording import listed, shortened

_CHUNK = 1 << 20  # bytes to read from one file at a time
_LAST_ROWS = 200  # rows searched for last values
_MAX_STEP = 1e300  # beyond it differences overflow


@dataclass(frozen=True)
class Row:
    """One call of `report`: `number` counts the rank's calls from 0, `at` is in seconds since the
    epoch, `step` is the position on a chart's axis."""

    number: int
    at: float
    step: float
    figures: dict[str, float]


def encode(number: int, at: float, step: float | None, figures: Mapping[str, float]) -> bytes:
    """A row as one line of JSON; NaN and infinity as Python's json writes and reads them."""
    return json.dumps([number, at, step, figures]).encode() + b"\n"


def decode(line: bytes) -> Row:
    """The row that `encode` wrote; without a step that can be drawn, its number is its step. Raises
    ValueError for other data."""
    try:
        number, at, step, figures = json.loads(line)
        step = number if step is None or not abs(step) <= _MAX_STEP else step
        # Raises for other types, and for integers with thousands of digits, which cannot be drawn.
        finite = [math.isfinite(value) for value in (number, at, step, *figures.values())]
    except (TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise ValueError(f"not a row: {line[:200]!r}") from problem
    if not all(finite[:2]):
        raise ValueError(f"not a row: {line[:200]!r}")
    return Row(number, at, step, figures)


def last_values(path: Path) -> dict[str, float]:
    """The last value of each figure in a file's last rows; none if there are no rows."""
    values: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in before(path, sys.maxsize, _LAST_ROWS).lines:
            values |= decode(line.encode()).figures
    return values


class Rows:
    """The rows of one rank's file, as they arrive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Row]:
        """The rows written since the last call. Raises XlaNbError for a line that is not a row."""
        while block := self._read_block():
            for line in block.splitlines():
                try:
                    yield decode(line)
                except ValueError:
                    text = shortened(repr(line), 60)
                    raise XlaNbError(
                        f"{self._path} is damaged: xla_nb did not write one of its lines ({text})."
                    ) from None

    def _read_block(self) -> bytes:
        data = private.part(self._path, self._offset, _CHUNK)
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        return lines


class History(Mapping[str, dict[int, list[float]]]):
    """The reported figures: ``run.history["loss"][2]`` is the list of losses of rank 2.

    rows     a dict for each row: rank, step, at (seconds since the epoch) and its figures
    frame()  the rows as a pandas DataFrame
    """

    def __init__(self, *records: Mapping[int, Path]) -> None:
        """records: for each of several consecutive runs, the file of each rank."""
        self._by_rank: dict[int, list[Row]] = {}
        for files in records:
            for rank, path in files.items():
                rows = sorted(Rows(path).new(), key=lambda row: row.number)
                self._by_rank.setdefault(rank, []).extend(rows)

    def __getitem__(self, name: str) -> dict[int, list[float]]:
        values = {
            rank: [row.figures[name] for row in rows if name in row.figures]
            for rank, rows in self._by_rank.items()
        }
        values = {rank: numbers for rank, numbers in values.items() if numbers}
        if not values:
            raise KeyError(f"No rank reported {name!r}. Reported: {listed(sorted(self))}.")
        return values

    def __iter__(self) -> Iterator[str]:
        names = (name for rows in self._by_rank.values() for row in rows for name in row.figures)
        return iter(dict.fromkeys(names))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<History {', '.join(self) or 'nothing reported'}>"

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for rank, rows in self._by_rank.items():
            for row in rows:
                columns = {"rank": rank, "step": row.step, "at": row.at}
                found.append(columns | row.figures | columns)
        return found

    def frame(self) -> Any:
        """The rows as a pandas DataFrame: rank, step, at (UTC), and a column for each figure.

        Raises ImportError if pandas is not installed.
        """
        import pandas

        columns = dict.fromkeys(["rank", "step", "at", *self])
        frame = pandas.DataFrame(self.rows, columns=list(columns))
        return frame.assign(at=pandas.to_datetime(frame["at"], unit="s", utc=True))
