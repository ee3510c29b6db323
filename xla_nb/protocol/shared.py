"""Primitives of multiprocessing in a pickle: the notebook's own where they can be reached.

A semaphore of the start methods "spawn" and "forkserver" has a name, and what stands on such ones
(queues, events, values) is made to be opened by a process that was not forked: ranks share it with
the notebook. One of "fork" has none, and is replaced by one with a name at its first launch, unless
somebody is using it: then a new primitive arrives, and nothing that it held is lost in silence.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import stat
import sys
from collections.abc import Callable, Iterator
from multiprocessing import (
    connection,
    context,
    heap,
    process,
    queues,
    reduction,
    resource_tracker,
    sharedctypes,
    synchronize,
    util,
)
from typing import Any

from xla_nb.linux import descendants, forked_children, forking_parent, shared_mappings
from xla_nb.protocol import outbox
from xla_nb.protocol.mapped import GONE, Descriptor, File
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
#: What gets semaphores with names: all but barriers, which nobody looks into.
_NAMED = tuple(kind for kind in _SHAREABLE if kind is not synchronize.Barrier)
_MADE_BY = {
    "Synchronized": "Value",
    "SynchronizedArray": "Array",
    "SynchronizedString": "Array",
}
_FED = (queues.Queue, queues.JoinableQueue)  # by a thread
_OPENED = (heap.Arena, connection.Connection)
_MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
_CONCERNED = (*_SHAREABLE, *_OPENED, *_MEMORY)


class ToRanks:
    """Reduces the primitives of one pickle; `note` gets a sentence for the user."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._forked = _Forked()
        self._copied: list[Any] = []
        self._parts: list[Any] = []  # of what a new one elsewhere would be no event of the notebook

    def reduce(self, obj: Any) -> Any:
        """A primitive as the notebook's own, or else as a copy with a note."""
        if not isinstance(obj, _CONCERNED):  # of each object of a pickle
            return NotImplemented
        if isinstance(obj, _NAMED) and not any(one in self._copied for one in semaphores(obj)):
            _give_names(obj, self._forked)
        if isinstance(obj, synchronize.SemLock) and _has_a_name(obj):
            other = None if any(obj is one for one in self._parts) else _arguments(obj)
            return _opened, (_as_to_a_spawned_process(obj)[2], type(obj).__name__, other)
        if isinstance(obj, _SHAREABLE) and _has_a_name(_lock_of(obj)):
            if isinstance(obj, synchronize.Event):
                self._parts += semaphores(obj)
            if type(obj) in _FED:
                _, (kind,), state, *_ = _as_to_a_spawned_process(obj)
                return outbox.opened, (kind, state)
            return _as_to_a_spawned_process(obj)
        if isinstance(obj, connection.Connection):
            return _opened_connection, _as_to_a_spawned_process(obj)[1]
        if isinstance(obj, heap.Arena) or _is_shared_memory(obj):
            return _as_to_a_spawned_process(obj)
        reduced = copied(obj)
        if reduced is not NotImplemented:
            if isinstance(obj, _NAMED) and not any(obj is one for one in self._copied):
                maker = made_by(obj)
                self._note(
                    f"ranks share one {maker} of their own, not the notebook's, which another "
                    f"process or thread is using: to share that, make it with `{_SPAWN}.{maker}`"
                )
            self._copied += [obj, *semaphores(obj)]
        return reduced


def made_by(obj: Any) -> str:
    """What multiprocessing calls the maker of a primitive; "" for other objects."""
    name = type(obj).__name__
    return _MADE_BY.get(name, name) if isinstance(obj, _SHAREABLE) else ""


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


class _Spawning:
    """What multiprocessing asks for descriptors while it pickles for a new process."""

    def duplicate_for_child(self, fd: int) -> int:
        return fd

    def DupFd(self, fd: int) -> File:  # its own name
        return File.of(fd)


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


# ---------------------------------------------------------------- names


_MANAGERS = "multiprocessing.managers"
#: Where what a `Manager()` makes is from.
_MANAGED = {"builtins", "queue", "threading", "_thread", "multiprocessing.pool", _MANAGERS}


class _Forked:
    """The processes that were forked from this one, or this one from, and what they may use of its
    semaphores.

    A semaphore lies in memory that is mapped, and a process that was forked since has it mapped
    too. Each process's mappings are read once: what it has not, it cannot get any more."""

    def __init__(self) -> None:
        self._mapped: dict[int, frozenset[tuple[str, str]] | None] = {}  # None: not known
        self._own: dict[int, tuple[str, str]] = {}

    def may_use(self, locks: list[Any]) -> bool:
        """Whether one of them may use one of these."""
        pids = [pid for pid in forked_children() if pid not in _managers()]
        pids += [pid for child in pids for pid in descendants(child)]
        pids += forking_parent()
        if not pids:
            return False
        with contextlib.suppress(OSError):  # then none of them is known
            self._own = self._own or shared_mappings(os.getpid())
        files = {self._own.get(lock._semlock.handle) for lock in locks}
        each = [self._files(pid) for pid in pids]
        return None in files or any(known is None or files & known for known in each)

    def _files(self, pid: int) -> frozenset[tuple[str, str]] | None:
        if pid not in self._mapped:
            try:
                self._mapped[pid] = frozenset(shared_mappings(pid).values())
            except OSError:
                self._mapped[pid] = None
        return self._mapped[pid]


def _managers() -> set[int]:
    """The processes of `multiprocessing.Manager()`. They make what they manage themselves, so they
    use nothing of this process, unless a program has registered something of its own with them."""
    kind = getattr(sys.modules.get(_MANAGERS), "SyncManager", None)
    if kind is None or any(
        call and call.__module__ not in _MANAGED for call, *_ in kind._registry.values()
    ):
        return set()
    started: set[Any] = process._children  # type: ignore[attr-defined]
    return {one.pid for one in started if one.name.startswith(f"{kind.__name__}-")}


def _give_names(obj: Any, forked: _Forked) -> None:
    """Replace the semaphores without a name in a primitive by named ones with the same count.

    Not if somebody uses the former ones: a process that was forked from this one, a lock that is
    held, or a method that is being called or kept elsewhere (a queue's feeding thread does both).
    """
    unnamed = [one for one in semaphores(obj) if not _has_a_name(one)]
    if not unnamed or any(map(_is_held, unnamed)) or forked.may_use(unnamed):
        return
    holders = [one for one in (obj, *vars(obj).values()) if isinstance(one, _HOLDERS)]
    for one in unnamed:
        if not _holds_all(holders, one):
            holders += _referring(one)
        if not _holds_all(holders, one):
            return
    for one in unnamed:
        _give_name(one)
    for holder in holders:
        if isinstance(holder, synchronize.Condition):
            holder._make_methods()  # type: ignore[attr-defined]
        else:
            lock = holder.get_lock()
            holder.acquire, holder.release = lock.acquire, lock.release


#: What copies the methods of its lock.
_HOLDERS = (synchronize.Condition, sharedctypes.SynchronizedBase)


def semaphores(obj: Any) -> Iterator[Any]:
    if isinstance(obj, synchronize.SemLock):
        yield obj
        return
    for part in vars(obj).values():
        if isinstance(part, synchronize.SemLock | synchronize.Condition):
            yield from semaphores(part)


def _is_held(lock: Any) -> bool:
    is_a_lock = isinstance(lock, synchronize.Lock | synchronize.RLock)
    return is_a_lock and bool(lock._semlock._is_zero())


def _holds_all(holders: list[Any], lock: Any) -> bool:
    """Whether nothing but the lock and these objects refers to its methods."""
    for name in ("acquire", "release"):
        method = vars(lock)[name]
        known = sum(vars(holder).get(name) is method for holder in holders)
        if sys.getrefcount(method) > known + 3:  # the lock's, `method`'s and getrefcount's own
            return False
    return True


def _referring(lock: Any) -> list[Any]:
    """The objects that copy a lock's methods, wherever they are."""
    found = [one for one in gc.get_objects() if issubclass(type(one), _HOLDERS)]
    return [one for one in found if vars(one).get("acquire") is vars(lock)["acquire"]]


def _give_name(lock: Any) -> None:
    """As multiprocessing makes a semaphore where it does not fork (synchronize.SemLock)."""
    former = lock._semlock
    name = lock._make_name()
    made = type(former)(former.kind, former._get_value(), former.maxvalue, name, False)
    lock._semlock, lock._is_fork_ctx = made, False
    lock._make_methods()
    resource_tracker.register(name, "semaphore")
    util.Finalize(lock, synchronize.SemLock._cleanup, (name,), exitpriority=0)  # type: ignore[attr-defined]


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


def _opened_connection(*arguments: Any) -> Any:
    made: Any = connection.rebuild_connection(*arguments)  # type: ignore[attr-defined]
    made._handle = Descriptor(made._handle)
    return made


def _opened(state: Any, kind: str, arguments: tuple[Any, ...] | None) -> Any:
    """The notebook's own semaphore; on another machine a new one with these arguments, which is its
    host's. None: FileNotFoundError is raised there."""
    made = getattr(synchronize, kind).__new__(getattr(synchronize, kind))
    try:
        made.__setstate__(state)
    except FileNotFoundError:
        if arguments is None:
            raise FileNotFoundError(GONE) from None
        return _shared(kind, arguments)
    return made


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
