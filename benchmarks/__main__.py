"""Run the benchmarks named on the command line (default: all) and print one table."""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks import Row
from benchmarks.client import CellFailed

ALL = (
    "launch",
    "live",
    "ship",
    "step",
    "collectives",
    "agreement",
    "two_hosts",
    "training",
    "panel",
    "lines",
    "page",
    "hosts",
)
#: Environment variables that make Python slower: unbuffered output (a system call for each part of
#: a `print`) and no bytecode files (every kernel compiles its imports).
SLOWER = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
HEADING = ("", "figure", "against", "ratio", "aim")


def main(names: list[str]) -> int:
    for name in SLOWER:
        os.environ.pop(name, None)
    lines: list[tuple[str, ...]] = [HEADING]
    failed = 0
    for name in names or ALL:
        for _ in range(2):  # a rival's launcher fails now and then
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                lines += [*map(cells, importlib.import_module(f"benchmarks.{name}").rows())]
                break
            except CellFailed as problem:
                print(problem, file=sys.stderr)
                failed = 1
                lines.append((f"{name} failed: {str(problem)[:100]!r}", "-", "-", "-", "-"))
    print(table(lines))
    return failed


def cells(row: Row) -> tuple[str, ...]:
    aim = "" if row.aim is None else f"≤ {row.aim:g} {'met' if row.ratio <= row.aim else 'MISSED'}"
    figures = (f"{value:.4g} {row.unit}" for value in (row.figure, row.against))
    return (row.what, *figures, f"{row.ratio:.3f}", aim)


def table(lines: list[tuple[str, ...]]) -> str:
    """Align the columns, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
