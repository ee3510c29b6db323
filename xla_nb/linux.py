"""What a process asks of Linux for itself: to end with its parent, to adopt orphans, a name."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path


def die_with_parent() -> None:
    """End with the parent, whatever ends it."""
    parent = os.getppid()
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def name_process(name: str) -> None:
    """What `ps` and `top` show; 15 bytes of it."""
    Path("/proc/self/comm").write_text(name)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
