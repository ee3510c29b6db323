"""Run functions of scenarios.py on simulated hosts, through one clean process (launcher.py)."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.fork_job import environment
from xla_nb.topology import addresses


@dataclass(frozen=True)
class Ended:
    """How a rank ended ("returned", or the exception's name), and its value or message."""

    how: str
    value: Any


@dataclass(frozen=True)
class Job:
    folder: Path
    status: int

    @property
    def ranks(self) -> dict[int, Ended]:
        """How each rank ended, except killed ranks."""
        paths = sorted(self.folder.glob("*.result"), key=lambda path: int(path.stem))
        return {int(path.stem): Ended(*pickle.loads(path.read_bytes())) for path in paths}

    @property
    def stderr(self) -> str:
        return (self.folder / "err").read_text()

    def values(self) -> list[Any]:
        """Return the results of all ranks; fail if any rank did not return."""
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
            env=environment(),
            text=True,
        )
        assert self._line() == "ready"

    def run(self, *jobs: dict[str, Any]) -> list[Job]:
        for job in jobs:
            self._count += 1
            folder = self._folder / str(self._count)
            folder.mkdir()
            job["folder"] = str(folder)
        self._send(jobs)
        statuses = json.loads(self._line())
        return [Job(Path(j["folder"]), s) for j, s in zip(jobs, statuses, strict=True)]

    def run_hosts(self, scenario: str, hosts: int, ranks: int = 2, **options: Any) -> list[Job]:
        """Run a scenario on several hosts with this many ranks each."""
        with addresses.hold_port("127.0.0.1") as held:
            world = {"hosts": hosts, "address": held.getsockname(), **options}
            return self.run(*(job(scenario, ranks, index=n, **world) for n in range(hosts)))

    def _send(self, request: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate(timeout=60)


def job(
    scenario: str,
    ranks: int = 4,
    env: dict[str, str] | None = None,
    files: int | None = None,
    **group: Any,
) -> Any:
    """Describe a job; `files` limits the open files of its processes. `group`: see HostGroup."""
    return {
        "scenario": scenario,
        "ranks": ranks,
        "env": env or {},
        "files": files,
        "hosts": 1,
        "index": 0,
        "address": None,
        **group,
    }
