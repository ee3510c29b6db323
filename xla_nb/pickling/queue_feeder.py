"""What ranks put into a queue of the notebook, which reads it when it likes: also when they have
ended.

A process that has put items waits at its end until they are in the queue's pipe, which holds 64
KiB. The reader of the notebook's queues is the notebook, whose cell waits for the ranks. So a
program of its own (`relay`) takes the items, and outlives the rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing import connection, queues, util
from typing import Any

from xla_nb.pickling import queue_relay

_AFTER_FEEDING = -6  # multiprocessing joins the thread that feeds a queue at -5


def opened(kind: type[queues.Queue[Any]], state: Any) -> Any:
    """A queue of the notebook's on ranks. Raises FileNotFoundError if it is gone."""
    queue: Any = kind.__new__(kind)
    queue.__setstate__(state)
    util.register_after_fork(queue, kind._after_fork)  # type: ignore[attr-defined]
    held = weakref.ref(queue)
    queue._start_thread = lambda: _start_feeding(held())
    return queue


def _start_feeding(queue: Any) -> None:
    """As `Queue._start_thread`, with a relay in place of the pipe."""
    own = _start_relay(queue)
    if own is None:  # the notebook's queue is gone: only ranks read it
        queues.Queue._start_thread(queue)  # type: ignore[attr-defined]
        return
    feed = connection.Connection(os.dup(own.fileno()))
    kept = queue._send_bytes, queue._wlock
    queue._send_bytes, queue._wlock = feed.send_bytes, threading.Lock()
    try:
        queues.Queue._start_thread(queue)  # type: ignore[attr-defined]
    finally:
        queue._send_bytes, queue._wlock = kept
    util.Finalize(queue._thread, _settle, (own,), exitpriority=_AFTER_FEEDING)


def _start_relay(queue: Any) -> socket.socket | None:
    ours, theirs = socket.socketpair()
    pipe, lock = queue._writer.fileno(), queue._wlock._semlock
    words = [theirs.fileno(), pipe, lock.kind, lock.maxvalue, lock.name]
    begun = subprocess.run(
        [sys.executable, "-I", "-S", queue_relay.__file__, *map(str, words)],
        pass_fds=(theirs.fileno(), pipe),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # the group of the run's processes is killed at its end
        check=False,
    )
    theirs.close()
    if begun.returncode == 0:
        return ours
    ours.close()
    return None


def _settle(own: socket.socket) -> None:
    """Wait until all is in the queue's pipe, or waits for room there. The thread that feeds the
    queue has ended."""
    with contextlib.suppress(OSError), own:
        own.shutdown(socket.SHUT_WR)  # also for processes that this one has forked
        own.recv(1)
