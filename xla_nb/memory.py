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
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_COUNTED = 5.0  # seconds between two counts of a process's own pages
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Of each version: the files with kills, the limit and what is used, and what of that is cached.
_VERSION_1 = "oom_control", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"
_VERSION_2 = "events", "max", "current", "inactive_file"
_UNLIMITED = 1 << 60  # bytes; version 1 has a number for no limit


class OutOfMemory:
    """What the kernel counts from now on. Each death that it counts is put down to one process."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._group = _group(proc)
        self._told = 0 if self._group is None else self._group.kills()

    def limit(self, status: int) -> int | None:
        """Of a process of this control group that ended with this status: the limit in bytes that
        it was killed for, 0 where no limit was set. None: for another reason, or nobody knows."""
        if status != -signal.SIGKILL or self._group is None or self._group.kills() <= self._told:
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


def available(proc: Path = _PROC) -> int:
    """Bytes that processes like this one can still take: of the machine's, or less where a control
    group has a limit. Raises OSError, KeyError or ValueError where that cannot be read."""
    group = _group(proc / "self")
    free = _numbers(proc / "meminfo")["MemAvailable:"] << 10
    return min([free, *([] if group is None else group.left())])


def _resident() -> int:
    """Bytes of this process's that are in memory."""
    return int((_PROC / "self/statm").read_bytes().split()[1]) * _PAGE


def _numbers(file: Path) -> dict[str, int]:
    """Numbers by name, one a line."""
    found = (line.split()[:2] for line in file.read_text().splitlines())
    return {name: int(number) for name, number in found if number.isdecimal()}


@dataclass(frozen=True)
class _Group:
    """A control group's folder, the topmost one that can be seen, and the names of its files."""

    folder: Path
    top: Path
    counter: str
    ceiling: str
    usage: str
    cached: str

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
            if folder.is_relative_to(self.top):
                with contextlib.suppress(OSError, ValueError):  # it says `max`, or has none
                    limit = int((folder / f"memory.{self.ceiling}").read_text())
                    if limit < _UNLIMITED:
                        yield folder, limit


def _group(proc: Path) -> _Group | None:
    """This process's, in whichever version counts memory here; None if it cannot be seen."""
    with contextlib.suppress(OSError, ValueError):
        paths = dict(_paths((proc / "cgroup").read_text()))
        version_1 = "memory" in paths
        controller = "memory" if version_1 else ""
        for root, top, controllers in _mounts((proc / "mountinfo").read_text()):
            if controller in controllers and controller in paths:
                folder = Path(top, Path(paths[controller]).relative_to(root))
                if version_1:
                    return _Group(folder, top, *_VERSION_1)
                return _Group(folder, top, *_VERSION_2)
    return None


def _paths(text: str) -> Iterator[tuple[str, str]]:
    """Each controller, and where in its hierarchy the process is; version 2 is named ""."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        yield from ((name, path) for name in controllers.split(","))


def _mounts(text: str) -> Iterator[tuple[str, Path, list[str]]]:
    """What of each hierarchy is mounted, where, and its controllers (proc(5), mountinfo)."""
    for line in text.splitlines():
        fields, _, mounted = line.partition(" - ")
        kind, _, options = mounted.split(" ", 2)
        root, top = fields.split(" ")[3:5]
        if kind in ("cgroup", "cgroup2"):
            yield root, Path(top), [""] if kind == "cgroup2" else options.split(",")
