"""Primitives of multiprocessing in a pickle: new ones, made before the ranks are forked."""

from __future__ import annotations

import ctypes
import multiprocessing
from multiprocessing import queues, sharedctypes, synchronize
from typing import Any


def reduce(obj: Any) -> Any:
    """A primitive of multiprocessing, as a new one created before ranks are forked."""
    match obj:
        case synchronize.Event():
            return _fresh_event, (obj.is_set(),)
        case synchronize.Condition() | synchronize.Barrier() | synchronize.SemLock():
            return _shared, (type(obj).__name__, _arguments(obj))
        case queues.SimpleQueue() | queues.Queue():
            return _shared, (type(obj).__name__, _arguments(obj))
        case sharedctypes.SynchronizedBase():
            held = obj.get_obj()
            several = getattr(type(held), "_length_", None)
            kind = type(held) if several is None else type(held)._type_
            return _fresh_value, (kind, several, bytes(held))
    return NotImplemented


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
