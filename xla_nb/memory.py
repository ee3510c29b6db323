"""Memory: how much a process takes and may still take, and the processes of this control group (a
container's, say) that the kernel killed for lack of it.

It counts them (`oom_kill` of memory.events, in version 1 of memory.oom_control) and does not say
which they were: that one died by SIGKILL and the number has grown tells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_COUNTED = 5.0  # seconds between two counts of a process's own pages
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60  # bytes; version 1 has a number for no limit


class OutOfMemory:
    """What the kernel counts from now on. Each death that it counts is put down to one process."""

    def __init__(self) -> None:
        self._group = _Group.own()
        self._told = self._group.kills()

    def limit(self, status: int) -> int | None:
        """Of a process of this control group that ended with this status: the limit in bytes that
        it was killed for, 0 where no limit was set. None: for another reason, or nobody knows."""
        if status != -signal.SIGKILL or self._group.kills() <= self._told:
            return None
        self._told += 1
        return self._group.limit()


class Own:
    """What this process takes of the machine's memory: its share of each page (PSS). The kernel
    counts that in milliseconds, so between two counts it is taken to grow with what is resident.
    Where the kernel does not count it, nothing is known."""

    def __init__(self) -> None:
        self.free: int | None = None  # for all processes, at the last count
        self._others: int | None = None
        self._due = 0.0
        self._counting = threading.Lock()

    def count(self, anew: bool = True) -> None:
        """Count if the last count is some seconds old; without `anew`, only if there is none. Waits
        for a count of another thread."""
        with self._counting:
            if time.monotonic() < self._due or not (anew or self._others is None):
                return
            self._due = time.monotonic() + _COUNTED
            with contextlib.suppress(OSError, KeyError, ValueError):
                pss = _numbers(_PROC / "self/smaps_rollup")["Pss:"] << 10
                self._others = _resident() - pss
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.free = available()

    @property
    def nbytes(self) -> int | None:
        return None if self._others is None else max(0, _resident() - self._others)


own = Own()


def available() -> int:
    """Bytes that processes like this one can still take: of the machine's, or less where a control
    group has a limit. Raises OSError, KeyError or ValueError where that cannot be read."""
    free = _numbers(_PROC / "meminfo")["MemAvailable:"] << 10
    return min([free, *_Group.own().left()])


def _resident() -> int:
    """Bytes of this process's that are in memory."""
    return int((_PROC / "self/statm").read_bytes().split()[1]) * _PAGE


def _numbers(file: Path) -> dict[str, int]:
    """Numbers by name, one a line."""
    found = (line.split()[:2] for line in file.read_text().splitlines())
    return {name: int(number) for name, number in found if number.isdecimal()}


class _Group(NamedTuple):
    """A control group's folder, and the names of its files (cgroups(7)). In a container it is the
    topmost one that can be seen."""

    folder: Path
    counter: str = "events"
    ceiling: str = "max"
    usage: str = "current"
    cached: str = "inactive_file"

    @classmethod
    def own(cls) -> _Group:
        """This process's, in version 1 where that counts memory, else in version 2."""
        paths: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            for line in (_PROC / "self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                paths |= dict.fromkeys(controllers.split(","), path.strip("/"))
        of_1 = "oom_control", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"
        if "memory" in paths:
            return cls(_seen(_GROUPS / "memory", paths["memory"]), *of_1)
        return cls(_seen(_GROUPS, paths.get("", "")))

    def kills(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return _numbers(self.folder / f"memory.{self.counter}").get("oom_kill", 0)
        return 0

    def limit(self) -> int:
        """The least of its own and its parents'; 0: there is none."""
        return min((limit for _, limit in self._limits()), default=0)

    def left(self) -> Iterator[int]:
        """What its own limit and those of its parents leave."""
        for folder, limit in self._limits():
            used = int((folder / f"memory.{self.usage}").read_text())
            yield max(0, limit - used + _numbers(folder / "memory.stat")[self.cached])

    def _limits(self) -> Iterator[tuple[Path, int]]:
        for folder in (self.folder, *self.folder.parents):
            with contextlib.suppress(OSError, ValueError):  # it says `max`, or has none
                limit = int((folder / f"memory.{self.ceiling}").read_text())
                if limit < _UNLIMITED:
                    yield folder, limit


def _seen(top: Path, path: str) -> Path:
    return top / path if (top / path).exists() else top
