"""What ranks reported with `xla_nb.report`, read back from the record.

The rule: the files are the truth; nothing is kept but what somebody asked to see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20  # bytes read of one file at a time


@dataclass(frozen=True)
class Row:
    """One call of `report`: `number` counts the rank's calls, `step` is the axis' value, `at`
    seconds since the epoch."""

    number: int
    at: float
    step: float
    figures: dict[str, float]


class Rows:
    """The rows of one rank's file, as they come in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Row]:
        """The rows written since the last call."""
        while block := self._block():
            for line in block.splitlines():
                number, at, step, figures = json.loads(line)
                yield Row(number, at, number if step is None else step, figures)

    def _block(self) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                data = file.read(_CHUNK)
        except FileNotFoundError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


class History(Mapping[str, dict[int, list[float]]]):
    """The reported figures: ``run.history["loss"][2]`` are the losses of rank 2, in order.

    rows     every report as a dict: rank, step, at (seconds since the epoch) and its figures
    frame()  the same as a pandas DataFrame
    """

    def __init__(self, files: Mapping[int, Path]) -> None:
        self._by_rank = {
            rank: sorted(Rows(path).new(), key=lambda row: row.number)
            for rank, path in files.items()
        }

    def __getitem__(self, name: str) -> dict[int, list[float]]:
        found = {
            rank: [row.figures[name] for row in rows if name in row.figures]
            for rank, rows in self._by_rank.items()
        }
        found = {rank: values for rank, values in found.items() if values}
        if not found:
            raise KeyError(f"no rank reported {name!r}; there are {sorted(self)}")
        return found

    def __iter__(self) -> Iterator[str]:
        every = (name for rows in self._by_rank.values() for row in rows for name in row.figures)
        return iter(dict.fromkeys(every))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        said = [f"{name}: {_in_short(list(self[name].values()))}" for name in self]
        return f"<History {'; '.join(said) or 'nothing was reported'}>"

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {**(ours := {"rank": rank, "step": row.step, "at": row.at}), **row.figures, **ours}
            for rank, rows in self._by_rank.items()
            for row in rows
        ]

    def frame(self) -> Any:
        """A pandas DataFrame with a row for each report: rank, step, at, and the figures.

        Raises ImportError where pandas is not installed.
        """
        import pandas

        columns = dict.fromkeys(["rank", "step", "at", *self])
        found = pandas.DataFrame(self.rows, columns=list(columns))
        return found.assign(at=pandas.to_datetime(found["at"], unit="s", utc=True))


def _in_short(lists: Sequence[Sequence[float]]) -> str:
    total = sum(map(len, lists))
    return f"{total} of {len(lists)} rank{'s' if len(lists) > 1 else ''}, last {lists[0][-1]:.4g}"
