"""Starts functions of scenarios.py in JAX worlds, through one clean process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fork_job import environment
from xla_nb.pickling.parcel import Parcel

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Ended:
    """How a rank ended ("returned", or the exception's name), its value, and its exit status."""

    how: str
    value: Any
    status: int


@dataclass(frozen=True)
class Run:
    folder: Path
    status: int

    def ended(self, rank: int) -> Ended:
        deaths = json.loads((self.folder / "deaths").read_text())
        status = deaths[(self.folder / f"{rank}.pid").read_text()]
        path = self.folder / f"{rank}.result"
        if not path.exists():
            return Ended("died", None, status)
        fd = os.open(path, os.O_RDONLY)
        try:
            how, value = Parcel(fd).open()["result"]
        finally:
            os.close(fd)
        return Ended(how, value, status)

    @property
    def ranks(self) -> list[Ended]:
        return [self.ended(rank) for rank in range(len(list(self.folder.glob("*.pid"))))]

    def values(self) -> list[Any]:
        """What the ranks returned; fails unless all of them returned and exited with 0."""
        for rank, ended in enumerate(self.ranks):
            assert ended.how == "returned", f"rank {rank}: {ended}\n{self.output()}"
            assert ended.status == 0, f"rank {rank}: {ended}\n{self.output()}"
        assert self.status == 0, self.output()
        return [ended.value for ended in self.ranks]

    def output(self) -> str:
        """All output of the job and its ranks."""
        paths = sorted([*self.folder.glob("*.out"), *self.folder.glob("*.err")])
        return "".join(path.read_text() for path in paths)

    def joined(self) -> list[float]:
        """The seconds each rank took to join."""
        return [float(path.read_text()) for path in self.folder.glob("*.joined")]


class Worlds:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.worlds.launcher"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        self.clean: dict[str, Any] = json.loads(self._line())

    def run(self, scenario: str, ranks: int = 4, env: dict[str, str] | None = None) -> Run:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        request = {"scenario": scenario, "ranks": ranks, "folder": str(folder), "env": env or {}}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Run(folder, int(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=60)
