"""Work that recurses as deep as a notebook's objects do."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_STACK = 512 << 20  # bytes, of which as much is used as a chain is long
_DEPTH = 100_000

T = TypeVar("T")


def with_a_large_stack(work: Callable[[], T]) -> T:
    """Long chains (of functions that call each other, of linked nodes) are pickled recursively."""
    before, limit = threading.stack_size(_STACK), sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        with ThreadPoolExecutor(1, "xla_nb-pickle") as pool:
            return pool.submit(contextvars.copy_context().run, work).result()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(before)
