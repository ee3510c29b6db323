"""Starts functions of scenarios.py on simulated hosts, through one clean process (launcher.py)."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A rank that ended: how ("returned", or the exception's name), and with what."""

    how: str
    value: Any


@dataclass(frozen=True)
class Job:
    folder: Path
    status: int

    @property
    def ranks(self) -> dict[int, Ended]:
        """What the ranks that ended of themselves left behind."""
        found = sorted(self.folder.glob("*.result"), key=lambda path: int(path.stem))
        return {int(path.stem): Ended(*pickle.loads(path.read_bytes())) for path in found}

    @property
    def stderr(self) -> str:
        return (self.folder / "err").read_text()

    def values(self) -> list[Any]:
        """What the ranks returned, all of them."""
        for rank, ended in self.ranks.items():
            assert ended.how == "returned", f"rank {rank}: {ended.value}"
        assert self.status == 0, self.stderr
        return [ended.value for ended in self.ranks.values()]


class Launcher:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def run(self, *jobs: dict[str, Any]) -> list[Job]:
        for job in jobs:
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            job["folder"] = str(folder)
        self._say(jobs)
        statuses = json.loads(self._line())
        return [Job(Path(j["folder"]), s) for j, s in zip(jobs, statuses, strict=True)]

    @contextmanager
    def store(self) -> Iterator[tuple[str, int]]:
        """The address of a TCPStore that another process serves."""
        self._say("open store")
        yield "127.0.0.1", int(self._line())
        self._say("close store")
        self._line()

    def _say(self, request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=60)


def job(scenario: str, ranks: int = 4, env: dict[str, str] | None = None, **place: Any) -> Any:
    return {"scenario": scenario, "place": {"ranks_here": ranks, **place}, "env": env or {}}
