"""Linux processes: end with the parent, adopt orphans, set the name, find children, see stops."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    parent = os.getppid()
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (the first 15 bytes)."""
    Path("/proc/self/comm").write_text(name)


def children() -> list[int]:
    """The pids of this process's children (proc(5), task/TID/children)."""
    files = Path("/proc/self/task").glob("*/children")
    return [int(pid) for file in files for pid in file.read_text().split()]


def forked_children() -> list[int]:
    """Those of them that were forked and have executed no other program since."""
    own = Path("/proc/self/cmdline").read_bytes()
    found = []
    for pid in children():
        with contextlib.suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                found.append(pid)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, such as SIGSTOP (proc(5), stat: state T).

    One that a debugger holds (t) is not, nor is one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b") ")[2].startswith(b"T")


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
