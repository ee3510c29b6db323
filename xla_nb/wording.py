"""Counts, lists, shortened texts and ends of processes, in words."""

from __future__ import annotations

import signal


def several(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cause_of_death(status: int) -> str:
    """An exit status in words: the signal's name where a signal ended the process."""
    if status >= 0:
        return f"exited with status {status} before its function returned"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hints = {
        "SIGKILL": "killed from outside; when memory ran out, the kernel's log says so",
        "SIGSEGV": "a crash in native code",
        "SIGABRT": "native code gave up; its last words are in the rank's output",
        "SIGBUS": "often /dev/shm is full",
    }
    return f"ended by {name}" + (f" ({hints[name]})" if name in hints else "")
