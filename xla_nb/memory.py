"""Lack of memory: the processes of this control group (a container's, say) that the kernel killed.

It counts them (`oom_kill` of memory.events, in version 1 of memory.oom_control) and does not say
which they were: that one died by SIGKILL and the number has grown tells.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class _Group:
    """A control group's folder, the topmost one that can be seen, and the names of its files."""

    folder: Path
    top: Path
    counter: str
    ceiling: str

    def kills(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / self.counter).read_text().splitlines():
                name, _, number = line.partition(" ")
                if name == "oom_kill":
                    return int(number)
        return 0

    def limit(self) -> int:
        """The least of its own and its parents'; 0: there is none."""
        limits = [_UNLIMITED]
        for folder in (self.folder, *self.folder.parents):
            if folder.is_relative_to(self.top):
                with contextlib.suppress(OSError, ValueError):  # it says `max`, or has none
                    limits.append(int((folder / self.ceiling).read_text()))
        return min(limits) if min(limits) < _UNLIMITED else 0


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
                    return _Group(folder, top, "memory.oom_control", "memory.limit_in_bytes")
                return _Group(folder, top, "memory.events", "memory.max")
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
