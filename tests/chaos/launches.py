"""Launch many runs in one kernel and measure what grows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.kernel import Notebook

_CELL = (
    "%%xla_spawn -n 2 --view none\ndef f(rank):\n    print('x' * 1000)\n    return [rank] * 1000"
)

#: IPython keeps the results of the last 1,000 cells (`Out`), here their runs.
_FORGET = "%reset -f out\nimport gc; gc.collect()"


@dataclass(frozen=True)
class Standing:
    """Resources of kernel and fork server after `launches` launches; sizes in MB."""

    launches: int
    fds: tuple[int, int]
    threads: tuple[int, int]
    rss: tuple[float, float]
    disk: float
    runs: int


def standings(count: int, every: int) -> Iterator[Standing]:
    """Launch `count` runs; measure after every `every` launches.

    `every` should not be less than the number of runs that are kept, which grows until then.
    """
    with tempfile.TemporaryDirectory(prefix="xc-") as home:
        notebook = Notebook(XLA_NB_HOME=home)
        try:
            notebook.ok("%load_ext xla_nb")
            for launches in range(1, count + 1):
                notebook.ok(_CELL)
                if launches % every == 0:
                    notebook.ok(_FORGET)
                    yield _standing(launches, notebook, Path(home))
        finally:
            notebook.close()


def _standing(launches: int, notebook: Notebook, home: Path) -> Standing:
    kernel = psutil.Process(notebook.pid)
    (server,) = [p for p in kernel.children() if p.name() == "xla_nb-server"]
    both = kernel, server
    files = [path for path in home.rglob("*") if path.is_file()]
    return Standing(
        launches,
        (both[0].num_fds(), both[1].num_fds()),
        (both[0].num_threads(), both[1].num_threads()),
        (_megabytes(both[0]), _megabytes(both[1])),
        sum(path.stat().st_size for path in files) / 1e6,
        len(list((home / "runs").iterdir())),
    )


def _megabytes(process: psutil.Process) -> float:
    """The process's private memory, without pages shared with forks (proc(5), smaps_rollup)."""
    memory: float = process.memory_full_info().uss / 1e6
    return memory
