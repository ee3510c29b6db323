"""Exit statuses of processes in words: how a rank or another process of ours ended."""

from __future__ import annotations

import signal

from xla_nb.wording import size


def cause_of_death(status: int, lack: int | None = None) -> str:
    """A rank's exit status in words: `killed by SIGKILL (…)`, `crashed with SIGSEGV …`, `exited
    with status 1 …`.

    lack: the memory limit, in bytes, that the kernel killed it for; 0: it had none."""
    advice = {"SIGABRT": " (see the rank's output)"}.get(_signal_name(status), "")
    return f"{_cause(status, lack)}{' before finishing' if status >= 0 else advice}"


def cause_in_short(status: int, lack: int | None = None) -> str:
    """`cause_of_death` without advice: `killed by SIGKILL`, `exited with status 1`."""
    if lack is not None:
        return "killed by the OOM killer"
    if status >= 0:
        return f"exited with status {status}"
    name = _signal_name(status)
    if name == "SIGINT":
        return "interrupted (SIGINT)"
    return f"crashed with {name}" if name in _CRASHES else f"killed by {name}"


#: The exit status of a process of ours that SIGTERM asked to end, as shells write it.
TERMINATED = 128 + signal.SIGTERM


def ending(status: int, lack: int | None = None) -> str:
    """How a process of ours ended, after its name: `was killed by SIGKILL …`; `lack` as above."""
    return in_past(_cause(-signal.SIGTERM if status == TERMINATED else status, lack))


def in_past(cause: str) -> str:
    """`was killed by SIGKILL`, `exited with status 1`: a cause, to follow a process's name."""
    return cause if cause.startswith(("exited", "crashed", "ended")) else f"was {cause}"


#: Signals raised by a fault in the process's own code; any other was sent by somebody.
_CRASHES = {"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
_HINTS = {
    "SIGKILL": " (often out of memory; check dmesg)",
    "SIGSEGV": " in native code",
    "SIGFPE": " in native code",
    "SIGILL": " in native code",
    "SIGBUS": " (often because /dev/shm is full)",
}


def _cause(status: int, lack: int | None) -> str:
    """`cause_in_short` with what is known about it."""
    hint = _HINTS.get(_signal_name(status), "")
    if lack is not None:
        hint = f" (the container's limit is {size(lack)})" if lack else ""
    return f"{cause_in_short(status, lack)}{hint}"


def _signal_name(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
