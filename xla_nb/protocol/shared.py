"""Primitives of multiprocessing in a pickle: the notebook's own where they can be reached.

A semaphore of the start methods "spawn" and "forkserver" has a name, and what stands on such ones
(queues, events, values) is made to be opened by a process that was not forked: ranks share it with
the notebook. One of "fork" has none, so ranks get a new one, and nothing that it holds is lost in
silence.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, context, heap, queues, reduction, sharedctypes, synchronize
from typing import Any

from xla_nb.protocol.refusals import Unshippable

_SPAWN = 'multiprocessing.get_context("spawn")'
_SHAREABLE = (
    synchronize.SemLock,
    synchronize.Condition,
    synchronize.Event,
    synchronize.Barrier,
    queues.Queue,
    queues.SimpleQueue,
    sharedctypes.SynchronizedBase,
)
#: What ranks do with a copy of these the notebook would miss; locks it seldom shares with them.
_TOLD = (queues.Queue, queues.SimpleQueue, synchronize.Event, sharedctypes.SynchronizedBase)
_MADE_BY = {
    "Synchronized": "Value",
    "SynchronizedArray": "Array",
    "SynchronizedString": "Array",
}
_OPENED = (heap.Arena, connection.Connection)
_MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
_CONCERNED = (*_SHAREABLE, *_OPENED, *_MEMORY)


def to_ranks(obj: Any, note: Callable[[str], None]) -> Any:
    """A primitive as the notebook's own, or else as a copy with a `note` for the user."""
    if not isinstance(obj, _CONCERNED):  # of each object of a pickle
        return NotImplemented
    if isinstance(obj, _SHAREABLE) and _has_a_name(_lock_of(obj)):
        return _as_to_a_spawned_process(obj)
    if isinstance(obj, _OPENED) or _is_shared_memory(obj):
        return _as_to_a_spawned_process(obj)
    reduced = copied(obj)
    if isinstance(obj, _TOLD):
        kind = _MADE_BY.get(type(obj).__name__, type(obj).__name__)
        note(
            f"ranks share one {kind} of their own, not the notebook's: to share that, make it with "
            f"`{_SPAWN}.{kind}`"
        )
    return reduced


def copied(obj: Any) -> Any:
    """A primitive as a new one in the state of this one, created before ranks are forked."""
    match obj:
        case synchronize.Event():
            return _fresh_event, (obj.is_set(),)
        case synchronize.Condition() | synchronize.Barrier() | synchronize.SemLock():
            _refuse_if_held(obj)
            return _shared, (type(obj).__name__, _arguments(obj))
        case queues.SimpleQueue() | queues.Queue():
            _refuse_if_filled(obj)
            return _shared, (type(obj).__name__, _arguments(obj))
        case sharedctypes.SynchronizedBase():
            held = obj.get_obj()
            several = getattr(type(held), "_length_", None)
            kind = type(held) if several is None else type(held)._type_
            return _fresh_value, (kind, several, bytes(held))
    return NotImplemented


# ---------------------------------------------------------------- the notebook's own


@dataclass(frozen=True)
class _File:
    """An open pipe or memory of the notebook's process, which a rank's job opens again.

    The number may be another file's by then, or of another machine: `identity` tells.
    """

    path: str
    access: int
    identity: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> _File:
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        return cls(f"/proc/{os.getpid()}/fd/{fd}", access, _identity(fd))

    def detach(self) -> int:
        """Open it; multiprocessing calls this where it would receive a descriptor."""
        try:
            fd = os.open(self.path, self.access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as problem:
            raise FileNotFoundError(_GONE) from problem
        if _identity(fd) != self.identity:
            os.close(fd)
            raise FileNotFoundError(_GONE)
        os.set_blocking(fd, True)
        return fd


_GONE = "the notebook has closed it, or runs on another machine"


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class _Spawning:
    """What multiprocessing asks for descriptors while it pickles for a new process."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> _File:  # its own name
        return _File.of(fd)


def _as_to_a_spawned_process(obj: Any) -> Any:
    if isinstance(obj, connection.Connection) and not _is_pipe(obj.fileno()):
        raise Unshippable("an open connection", f"Use `{_SPAWN}.Queue()`")
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Spawning())  # type: ignore[arg-type]
    try:
        reducers: dict[type, Any] = vars(reduction.ForkingPickler)["_extra_reducers"]
        reduce = reducers.get(type(obj))
        return reduce(obj) if reduce else obj.__reduce_ex__(5)
    finally:
        context.set_spawning_popen(before)


def _is_pipe(fd: int) -> bool:
    return stat.S_ISFIFO(os.fstat(fd).st_mode)


def _is_shared_memory(obj: Any) -> bool:
    """Whether this is a RawValue or a RawArray, or what a Value with a lock holds."""
    return isinstance(obj, _MEMORY) and isinstance(
        getattr(obj, "_wrapper", None), heap.BufferWrapper
    )


def _lock_of(obj: Any) -> Any:
    match obj:
        case synchronize.Condition():
            return obj._lock  # type: ignore[attr-defined]
        case synchronize.Event() | synchronize.Barrier():
            return obj._cond._lock  # type: ignore[union-attr]
        case sharedctypes.SynchronizedBase():
            return obj.get_lock()
        case queues.Queue() | queues.SimpleQueue():
            return obj._rlock  # type: ignore[union-attr]
    return obj


def _has_a_name(lock: Any) -> bool:
    return getattr(getattr(lock, "_semlock", None), "name", None) is not None


# ---------------------------------------------------------------- copies


def _refuse_if_held(obj: Any) -> None:
    is_a_lock = isinstance(obj, synchronize.Lock | synchronize.RLock)
    if is_a_lock and obj._semlock._is_zero():
        raise Unshippable("a lock that is held", "Release it before the launch")
    if isinstance(obj, synchronize.Barrier) and (obj.broken or obj.n_waiting):
        raise Unshippable("a barrier that is broken or in use", "Send a new one")


def _refuse_if_filled(queue: Any) -> None:
    if not (queue.empty() if isinstance(queue, queues.SimpleQueue) else queue.qsize() == 0):
        raise Unshippable(
            "a queue with items",
            f"Make it with `{_SPAWN}`, so that ranks share it, or send its items as a list",
        )
    unfinished = getattr(queue, "_unfinished_tasks", None)
    if unfinished is not None and not unfinished._semlock._is_zero():
        raise Unshippable("a queue with unfinished tasks", f"Make it with `{_SPAWN}`")


def _arguments(obj: Any) -> tuple[Any, ...]:
    match obj:
        case synchronize.Condition():
            return (obj._lock,)  # type: ignore[attr-defined]
        case synchronize.Barrier():
            return (obj.parties,)
        case synchronize.BoundedSemaphore():
            return (obj._semlock.maxvalue,)  # type: ignore[attr-defined]
        case synchronize.Semaphore():
            return (obj.get_value(),)
        case queues.Queue():
            return (obj._maxsize,)  # type: ignore[attr-defined]
    return ()


def _shared(kind: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(multiprocessing.get_context("fork"), kind)(*arguments)


def _fresh_value(kind: Any, several: int | None, content: bytes) -> Any:
    whole = kind if several is None else kind * several
    made: Any = multiprocessing.get_context("fork").Value(whole)
    ctypes.memmove(ctypes.byref(made.get_obj()), content, len(content))
    return made


def _fresh_event(is_set: bool) -> Any:
    event = multiprocessing.get_context("fork").Event()
    if is_set:
        event.set()
    return event
