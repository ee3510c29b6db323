"""Linux process settings: end with the parent, adopt orphans, set the process name."""

from __future__ import annotations

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


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
