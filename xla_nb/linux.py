"""Linux processes: end with the parent, adopt orphans, set the name, find and end others; and
advice for exhausted resources."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_STARTUP = 0.5  # seconds at most until a new process has its command line
_LARGE = 2 << 20  # bytes of a large page
_TRACKER = b".resource_tracker import main"  # part of a resource tracker's command line
_FLAGS, _EXITING = 6, 0x4  # index in proc(5), stat, counted from the state; PF_EXITING (sched.h)
_SHORTAGES = {
    errno.EMFILE: "Too many files are open in one process (`ulimit -n`). Use fewer ranks (-n), or "
    "raise the limit before starting Jupyter.",
    errno.ENFILE: "Too many files are open on this machine (fs.file-max). Close some, or have the "
    "limit raised.",
    errno.EAGAIN: "Too many processes and threads are running for this user (`ulimit -u`) or "
    "container. End some, use fewer ranks (-n), or raise the limit before starting Jupyter.",
    errno.ENOMEM: "Not enough memory for a process (`ulimit -v`, or the machine's). Use fewer "
    "ranks (-n), free memory, or raise the limit before starting Jupyter.",
}


def shortage(number: int | None) -> str:
    """The exhausted resource behind a system call's failure with this number (errno(3)), and what
    to do; empty for other failures."""
    return _SHORTAGES.get(number or 0, "")


def first_environ() -> dict[str, str]:
    """The environment with which this process was started, without later changes (proc(5))."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    parent = os.getppid()
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent has ended."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def watch_parent(pid: int) -> int | None:
    """Return a pidfd of this process's parent, readable once the parent has ended, even if other
    processes hold its sockets. `pid` is the pid that the parent gave; None if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        if os.getppid() == pid:
            return pidfd
        os.close(pidfd)
    return None


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (the first 15 bytes)."""
    Path("/proc/self/comm").write_text(name)


def children() -> list[int]:
    """The pids of this process's children (proc(5), task/TID/children)."""
    pids = []
    for file in Path("/proc/self/task").glob("*/children"):
        # A thread that has just ended: its children now belong to another (proc(5)).
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids += [int(child) for child in file.read_text().split()]
    return pids


def is_alive(pid: int) -> bool:
    """True if a process has not ended and is not a zombie."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """The fields of proc(5), stat, of a process, from its state on; empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat.rpartition(b") ")[2].decode().split()


def reaped(pid: int) -> bool:
    """Reap a child of this process; True if it has ended, and no longer is a zombie."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def in_group(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    return _find_alive(os.getpgid, group)


def in_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    return _find_alive(os.getsid, session)


def _find_alive(get_number: Callable[[int], int], number: int) -> list[int]:
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                pid = int(path.name)
                if get_number(pid) == number and is_alive(pid):
                    pids.append(pid)
    return pids


def is_ending(pid: int) -> bool:
    """True if a process is exiting, or gone: it may have released its memory, and its command line
    with it (proc(5), cmdline)."""
    stat = _stat(pid)
    return not stat or bool(int(stat[_FLAGS]) & _EXITING)


def is_tracker(pid: int) -> bool:
    """True if a process is a resource tracker of multiprocessing or joblib, by its command line. A
    process that is just starting (execve(2)) has none for a moment; wait for it."""
    path, end = Path(f"/proc/{pid}/cmdline"), time.monotonic() + _STARTUP
    try:
        while not (command := path.read_bytes()) and not is_ending(pid) and time.monotonic() < end:
            time.sleep(0.001)
    except OSError:  # it has ended
        return False
    return _TRACKER in command


def kill(pids: Iterable[int], *, trackers: bool = False) -> None:
    """Kill processes, resource trackers only with `trackers`."""
    for pid in pids:
        if trackers or not is_tracker(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_all(find: Callable[[], list[int]], seconds: float = 5.0) -> None:
    """Kill the processes that `find` returns until it returns none.

    A resource tracker unlinks shared memory and semaphores left by its processes as soon as all of
    them have ended, which takes milliseconds. Killing it would leave them in /dev/shm forever, so
    it is killed only after `seconds`. Processes that cannot be killed are given up after as many
    more."""
    deadline = time.monotonic() + seconds
    # Twice: children of a process that ends during one look are reparented only by the next.
    while (pids := find() or find()) and (overdue := time.monotonic() - deadline) < seconds:
        kill(pids, trackers=overdue > 0)
        time.sleep(0.005)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def gather_pages() -> int:
    """Gather this process's heap into pages of 2 MiB, for which a fork copies one entry instead of
    512; pages written to later are still copied in units of 4 KiB.

    Returns the number of bytes gathered: 0 if Linux is older than 6.1 or has such pages disabled.
    """
    gathered = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _offset, _device, _inode, *name = line.split()
        if mode == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in span.split("-"))
            start = -(-start // _LARGE) * _LARGE
            size = end // _LARGE * _LARGE - start
            if size > 0 and _madvise(start, size, 25) == 0:  # MADV_COLLAPSE
                gathered += size
    return gathered


def _madvise(start: int, size: int, advice: int) -> int:
    call = ctypes.CDLL(None).madvise
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    result: int = call(start, size, advice)
    return result
