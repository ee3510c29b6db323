"""Stops processes for certain: a process keeps running until SIGSTOP reaches all its threads, which
may take a while on a busy machine."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from xla_nb import linux


def halt(pid: int) -> None:
    """Stop a process, and wait until it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, f"{pid} does not stop"
        time.sleep(0.001)


def survivors(pids: Iterable[int], seconds: float = 60) -> list[int]:
    """The processes that are still alive after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if linux.is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left
