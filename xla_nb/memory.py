"""Memory: how much a process uses and may still use, and detection of processes killed by the OOM
killer of this control group (for example a container's).

The kernel counts the kills (`oom_kill` in memory.events, with cgroup v1 in memory.oom_control) but
does not name the processes: one that died by SIGKILL while the count grew is taken to be killed.
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
_COUNT_INTERVAL = 5.0  # seconds between two counts of a process's pages
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60  # bytes; cgroup v1 represents "no limit" by a number


class OutOfMemory:
    """The kills that the kernel counts from now on. Each is attributed to one process."""

    def __init__(self) -> None:
        self._group = _Group.own()
        self._attributed = self._group.kills()

    def limit(self, status: int) -> int | None:
        """The limit, in bytes, for which a process of this control group with this exit status was
        killed; 0 if no limit was set, None if it ended for another reason or that is unknown."""
        if status != -signal.SIGKILL or self._group.kills() <= self._attributed:
            return None
        self._attributed += 1
        return self._group.limit()


class Own:
    """The memory that this process uses: its share of each page (PSS). Counting it takes the kernel
    milliseconds, so between counts it is assumed to grow with the resident size. None if the
    kernel does not count it."""

    def __init__(self) -> None:
        self.free: int | None = None  # for all processes, at the last count
        self._shared: int | None = None
        self._next_count = 0.0
        self._count_lock = threading.Lock()

    def count(self, anew: bool = True) -> None:
        """Count if the last count is some seconds old; without `anew`, only if there is none yet.
        Waits for a count in another thread."""
        with self._count_lock:
            if time.monotonic() < self._next_count or not (anew or self._shared is None):
                return
            self._next_count = time.monotonic() + _COUNT_INTERVAL
            with contextlib.suppress(OSError, KeyError, ValueError):
                pss = _read_numbers(_PROC / "self/smaps_rollup")["Pss:"] << 10
                self._shared = _resident_size() - pss
            with contextlib.suppress(OSError, KeyError, ValueError):
                self.free = available()

    @property
    def nbytes(self) -> int | None:
        return None if self._shared is None else max(0, _resident_size() - self._shared)


own = Own()


def available() -> int:
    """Bytes still available to processes like this one: the machine's, or less if a control group
    has a limit. Raises OSError, KeyError or ValueError if that cannot be read."""
    free = _read_numbers(_PROC / "meminfo")["MemAvailable:"] << 10
    return min([free, *_Group.own().left()])


def _resident_size() -> int:
    """The resident size of this process in bytes."""
    return int((_PROC / "self/statm").read_bytes().split()[1]) * _PAGE


def _read_numbers(file: Path) -> dict[str, int]:
    """Parse a file with a name and a number on each line."""
    pairs = (line.split()[:2] for line in file.read_text().splitlines())
    return {name: int(number) for name, number in pairs if number.isdecimal()}


class _Group(NamedTuple):
    """A control group's folder, and the names of its files (cgroups(7)). In a container it is the
    topmost visible one."""

    folder: Path
    counter: str = "events"
    ceiling: str = "max"
    usage: str = "current"
    cached: str = "inactive_file"

    @classmethod
    def own(cls) -> _Group:
        """The group of this process: of cgroup v1 if that counts memory, otherwise of v2."""
        paths: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            for line in (_PROC / "self/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                paths |= dict.fromkeys(controllers.split(","), path.strip("/"))
        v1_names = "oom_control", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"
        if "memory" in paths:
            return cls(_visible_folder(_GROUPS / "memory", paths["memory"]), *v1_names)
        return cls(_visible_folder(_GROUPS, paths.get("", "")))

    def kills(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return _read_numbers(self.folder / f"memory.{self.counter}").get("oom_kill", 0)
        return 0

    def limit(self) -> int:
        """The lowest limit of the group and its parents, in bytes; 0 if there is none."""
        return min((limit for _, limit in self._limits()), default=0)

    def left(self) -> Iterator[int]:
        """The bytes left under the limits of the group and of its parents."""
        for folder, limit in self._limits():
            used = int((folder / f"memory.{self.usage}").read_text())
            yield max(0, limit - used + _read_numbers(folder / "memory.stat")[self.cached])

    def _limits(self) -> Iterator[tuple[Path, int]]:
        for folder in (self.folder, *self.folder.parents):
            with contextlib.suppress(OSError, ValueError):  # it is `max`, or there is no file
                limit = int((folder / f"memory.{self.ceiling}").read_text())
                if limit < _UNLIMITED:
                    yield folder, limit


def _visible_folder(top: Path, path: str) -> Path:
    return top / path if (top / path).exists() else top
