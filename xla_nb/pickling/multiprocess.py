"""Primitives of multiprocessing in a pickle: the notebook's own, opened by their semaphores' names.

Semaphores of the start methods "spawn" and "forkserver" have names, and what is built on them
(queues, events, values) is designed to be opened by processes that were not forked. Those of "fork"
have names while `named()` is on. An older lock becomes a new one on ranks; other older primitives
are refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import multiprocessing
import os
import stat
import subprocess
import sys
import termios
import time
import weakref
from collections.abc import Iterator
from multiprocessing import (
    connection,
    context,
    heap,
    queues,
    reduction,
    resource_tracker,
    sharedctypes,
    synchronize,
    util,
)
from typing import Any

from xla_nb.patching import InPlace, Place
from xla_nb.pickling.mapped_files import GONE, File
from xla_nb.pickling.refusals import Unshippable

_SPAWN = 'multiprocessing.get_context("spawn")'
_RECREATE_ADVICE = "after `%load_ext xla_nb` (in a script, `xla_nb.install()`), or with "
_GONE = f"{GONE}, where ranks can use the `lock` parameter"
_SHAREABLE = (
    synchronize.SemLock,
    synchronize.Condition,
    synchronize.Event,
    synchronize.Barrier,
    queues.Queue,
    queues.SimpleQueue,
    sharedctypes.SynchronizedBase,
)
_FED_QUEUES = (queues.Queue, queues.JoinableQueue)  # by a thread
_CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
_PRIMITIVES = (*_SHAREABLE, heap.Arena, connection.Connection, *_CTYPES)


def reduced(obj: Any, notes: set[str]) -> Any:
    """Reduce a primitive to the notebook's own, or a lock without a name to a new one, adding a
    note for the user; NotImplemented for other objects."""
    if not isinstance(obj, _PRIMITIVES):  # called for every object
        return NotImplemented
    if isinstance(obj, _SHAREABLE) and not all(lock._semlock.name for lock in _semaphores(obj)):
        return _reduced_without_name(obj, notes)
    if isinstance(obj, synchronize.SemLock):
        return _open_semaphore, (type(obj), _reduce_for_spawn(obj)[2])
    if type(obj) in _FED_QUEUES:
        _, (kind,), state, *_ = _reduce_for_spawn(obj)
        return _open_queue, (kind, state)
    if isinstance(obj, _CTYPES) and not _is_shared_memory(obj):
        return NotImplemented
    return _reduce_for_spawn(obj)


def _reduced_without_name(obj: Any, notes: set[str]) -> Any:
    """Reduce a free lock to a new one. Raises Unshippable for a held lock, and for anything
    else."""
    maker = type(obj).__name__
    if isinstance(obj, sharedctypes.SynchronizedBase):
        maker = "Array" if isinstance(obj, sharedctypes.SynchronizedArray) else "Value"
    recreate = f"{_RECREATE_ADVICE}`{_SPAWN}.{maker}`"
    if not isinstance(obj, synchronize.Lock | synchronize.RLock):
        thing = f"a multiprocessing {maker} that only forked processes can use"
        raise Unshippable(thing, f"Re-create it {recreate}")
    if obj._semlock._is_zero():  # type: ignore[union-attr]
        raise Unshippable("a lock that is held", "Release it before the launch")
    notes.add(
        f"ranks share a new {maker}, not the notebook's: to share that, re-create it {recreate}"
    )
    return _new_lock, (type(obj),)


def _semaphores(obj: Any) -> Iterator[Any]:
    if isinstance(obj, synchronize.SemLock):
        yield obj
        return
    for part in vars(obj).values():
        if isinstance(part, synchronize.SemLock | synchronize.Condition):
            yield from _semaphores(part)


# ---------------------------------------------------------------- names

_TRACKER = "from multiprocessing.resource_tracker import main; main({})"


@functools.cache
def named() -> InPlace:
    """A patch: while it is on, semaphores of "fork" are created with names, like those of
    "spawn"."""
    return InPlace([Place("multiprocessing.synchronize", "SemLock.__init__", _make_named)])


def _make_named(lock: Any, kind: int, value: int, maxvalue: int, *, ctx: Any) -> None:
    _start_tracker()
    original, spawn = named().original("SemLock.__init__"), multiprocessing.get_context("spawn")
    original(lock, kind, value, maxvalue, ctx=spawn)


def _start_tracker() -> None:
    """Start the process that unlinks the names left by this one, in its own session: Jupyter kills
    the kernel's process group at once, and ipykernel waits for the processes in it."""
    tracker: Any = resource_tracker._resource_tracker
    with tracker._lock:
        if tracker._fd is None:
            reader, writer = os.pipe()
            command = [sys.executable, "-I", "-S", "-c", _TRACKER.format(reader)]
            process = subprocess.Popen(command, pass_fds=[reader], start_new_session=True)
            process.returncode = 0  # it outlives this process; `-X dev` would warn
            tracker._fd, tracker._pid = writer, process.pid
            os.close(reader)


# ---------------------------------------------------------------- the notebook's own


class _SpawnedProcess:
    """The interface that multiprocessing calls for descriptors while it pickles for a new
    process."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> File:  # multiprocessing's name
        return File.of(fd)


def _reduce_for_spawn(obj: Any) -> Any:
    if isinstance(obj, connection.Connection) and not stat.S_ISFIFO(os.fstat(obj.fileno()).st_mode):
        raise Unshippable("an open connection", f"Use `{_SPAWN}.Queue()`")
    previous = context.get_spawning_popen()
    context.set_spawning_popen(_SpawnedProcess())  # type: ignore[arg-type]
    try:
        reducers: dict[type, Any] = vars(reduction.ForkingPickler)["_extra_reducers"]
        reduce = reducers.get(type(obj))
        return reduce(obj) if reduce else obj.__reduce_ex__(5)
    finally:
        context.set_spawning_popen(previous)


def _is_shared_memory(obj: Any) -> bool:
    """True for a RawValue or RawArray, or what a Value with a lock holds."""
    return isinstance(getattr(obj, "_wrapper", None), heap.BufferWrapper)


def _open_semaphore(kind: Any, state: Any) -> Any:
    """Open the notebook's semaphore. Raises FileNotFoundError if it is gone."""
    semaphore = kind.__new__(kind)
    try:
        semaphore.__setstate__(state)
    except FileNotFoundError:
        raise FileNotFoundError(_GONE) from None
    return semaphore


def _new_lock(kind: Any) -> Any:
    return kind(ctx=multiprocessing.get_context("fork"))


# ---------------------------------------------------------------- queues on ranks

_PIPE_SIZE = 1 << 20  # bytes in a queue's pipe: Linux's default maximum instead of 64 KiB
_MAX_WAIT = 10.0  # seconds without a reader
_UNREAD = (
    "This rank put more than {room} KiB into a notebook queue, and nothing has been read for "
    "{seconds:g} s. Re-create the queue and read it in a notebook thread while the ranks run, or "
    "return the value."
)


class UnreadError(Exception):
    """Raised when a rank cannot end without losing what it put into a queue."""


@functools.cache
def _queues() -> weakref.WeakSet[Any]:
    """The notebook's queues opened in this process, inherited from its job."""
    return weakref.WeakSet()


def _open_queue(kind: type[queues.Queue[Any]], state: Any) -> Any:
    """Open a queue of the notebook on ranks. Raises FileNotFoundError if it is gone."""
    queue: Any = kind.__new__(kind)
    queue.__setstate__(state)
    util.register_after_fork(queue, kind._after_fork)  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):  # this user's pipe quota is used up
        fcntl.fcntl(queue._writer.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
    _queues().add(queue)
    return queue


def wait_for_readers(seconds: float = _MAX_WAIT) -> None:
    """Wait until all that this process put into queues is in their pipes, where it stays after the
    process has ended. Raises UnreadError if nobody reads: the reader may be the notebook, whose
    cell waits for the ranks."""
    for queue in list(_queues()):
        last_state, since = None, time.monotonic()
        with contextlib.suppress(OSError):  # closed after its thread wrote everything
            while _is_feeding(queue):
                pipe = queue._writer.fileno()
                # Only the pipe shows that a large item is being read.
                state = queue.qsize(), fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
                if state != last_state:
                    last_state, since = state, time.monotonic()
                elif time.monotonic() - since > seconds:
                    queue.cancel_join_thread()  # otherwise the process would wait at exit
                    room = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) >> 10
                    raise UnreadError(_UNREAD.format(seconds=seconds, room=room))
                time.sleep(0.005)


def _is_feeding(queue: Any) -> bool:
    """True if a queue's thread has something to write; otherwise it waits or has ended. A program
    may opt out of waiting for it (`cancel_join_thread`)."""
    thread = queue._thread
    is_working = thread is not None and thread.is_alive() and not queue._notempty._waiters
    return is_working and not queue._joincancelled
