"""Linux processes: end with the parent, adopt orphans, set the name, find and end others; and what
they can have too little of."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_BEGINNING = 0.5  # seconds at most until a process that was started has its command
_LARGE = 2 << 20  # bytes of a large page
_TRACKER = b".resource_tracker import main"  # of the command that starts one
_FLAGS, _EXITING = 6, 0x4  # a place in proc(5), stat, from the state on; PF_EXITING (sched.h)
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
    """What there is too little of where a system call failed with this number (errno(3)), and what
    to do; empty for other reasons."""
    return _SHORTAGES.get(number or 0, "")


def first_environ() -> dict[str, str]:
    """The variables as this process was given them, whatever it has set since (proc(5))."""
    given = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(each).partition("=")[::2] for each in given if each)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    parent = os.getppid()
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has ended."""
    _prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def watch_parent(pid: int) -> int | None:
    """A pidfd of this process's parent, which is readable when that has ended, whoever still holds
    its sockets. `pid` is the parent's as it said; None if that has ended already."""
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(pid)
        if os.getppid() == pid:
            return watched
        os.close(watched)
    return None


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show (the first 15 bytes)."""
    Path("/proc/self/comm").write_text(name)


def children() -> list[int]:
    """The pids of this process's children (proc(5), task/TID/children)."""
    found = []
    for file in Path("/proc/self/task").glob("*/children"):
        # A thread that has ended meanwhile: its children are another's now (proc(5)).
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in file.read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    """Whether a process has not ended (not a zombie)."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def _stat(pid: int) -> list[str]:
    """What proc(5), stat, has of a process from its state on; nothing if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return stat.rpartition(b") ")[2].decode().split()


def reaped(pid: int) -> bool:
    """Whether a child of this process has ended; there is no zombie of it any more then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def in_group(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    return _alive_with(os.getpgid, group)


def in_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    return _alive_with(os.getsid, session)


def _alive_with(number_of: Callable[[int], int], number: int) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                pid = int(path.name)
                if number_of(pid) == number and is_alive(pid):
                    found.append(pid)
    return found


def is_ending(pid: int) -> bool:
    """Whether a process is on its way out, or gone: it may have given up its memory, and its
    command with it (proc(5), cmdline)."""
    stat = _stat(pid)
    return not stat or bool(int(stat[_FLAGS]) & _EXITING)


def is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker of multiprocessing's or joblib's, by its command. One
    that is just beginning (execve(2)) has none for a moment, which is waited for."""
    path, end = Path(f"/proc/{pid}/cmdline"), time.monotonic() + _BEGINNING
    try:
        while not (command := path.read_bytes()) and not is_ending(pid) and time.monotonic() < end:
            time.sleep(0.001)
    except OSError:  # it has ended
        return False
    return _TRACKER in command


def kill(pids: Iterable[int], *, trackers: bool = False) -> None:
    """Kill processes, but for resource trackers, unless these too."""
    for pid in pids:
        if trackers or not is_tracker(pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_all(find: Callable[[], list[int]], seconds: float = 5.0) -> None:
    """Kill the processes that `find` gives until it gives none.

    A tracker unlinks the shared memory and semaphores that its processes have left as soon as all
    of them have ended, which takes milliseconds: it is killed only after so many seconds, since
    that would leave them in /dev/shm for ever. What nothing can kill is left after as many more."""
    deadline = time.monotonic() + seconds
    # Twice: what a process leaves behind that ends in between is somebody else's child only then.
    while (pids := find() or find()) and (late := time.monotonic() - deadline) < seconds:
        kill(pids, trackers=late > 0)
        time.sleep(0.005)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def gather_pages() -> int:
    """Gather this process's heap into pages of 2 MiB, of which a fork copies one entry each and
    not 512; what is written to afterwards is copied by 4 KiB as before.

    Gives how many bytes could be gathered: 0 where the system is older than Linux 6.1, or is told
    to have no such pages.
    """
    gathered = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _offset, _device, _inode, *name = line.split()
        if mode == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(each, 16) for each in span.split("-"))
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
