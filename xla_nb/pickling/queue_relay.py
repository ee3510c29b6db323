"""Carry what one process puts into a queue to the queue's pipe, whoever reads it and when.

A program of its own, started by `outbox` as ``python -I -S relay.py SOURCE TARGET KIND MAXIMUM
NAME``: the socket that messages come from, the pipe, and the semaphore of those who write to it. It
belongs to no run: nobody ends it in the middle of a message. It ends when all is written, or when
nobody can read the pipe any longer.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections import deque
from typing import Any

#: In every relay's command: others tell by it what to leave alone.
FILE = os.fsencode(__file__)
#: What `ps` shows (proc(5), comm), once a relay has begun.
NAME = "xla_nb-relay"
_BLOCKED = 0.1  # seconds without room in the pipe, after which the rest waits for a reader


class Relay:
    """`run` writes to `target` what comes from `source`, whole messages at a time."""

    def __init__(self, source: socket.socket, target: int, lock: Any) -> None:
        self._source = source
        self._target = target
        self._lock = lock
        self._room = select.poll()
        self._room.register(target, select.POLLOUT)
        self._messages: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = self._told = False

    def run(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while messages := self._take():
            while not self._lock.acquire(True, _BLOCKED):
                self._tell()
                if self._is_abandoned():
                    return
            try:
                self._write(messages)
            except BrokenPipeError:
                return
            finally:
                self._lock.release()

    def _take(self) -> bytes:
        """All that has come, in one: after a message there is no moment without the next."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._ended)
            taken = b"".join(self._messages)
            self._messages.clear()
        return taken

    def _write(self, messages: bytes) -> None:
        rest = memoryview(messages)
        while rest:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                if not self._room.poll(None if self._told else int(1000 * _BLOCKED)):
                    self._tell()

    def _receive(self) -> None:
        with self._source.makefile("rb") as file:
            while message := _message(file):
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _tell(self) -> None:
        """Let the process that has put all of it end: the rest waits for a reader."""
        if self._ended and not self._told:
            self._told = True
            self._source.shutdown(socket.SHUT_WR)

    def _is_abandoned(self) -> bool:
        return any(event & select.POLLERR for _, event in self._room.poll(0))


def _message(file: Any) -> bytes:
    """One message as multiprocessing writes it to a pipe, with its length; nothing at the end, or
    where the process was killed in the middle of it."""
    head: bytes = file.read(4)
    if len(head) < 4:
        return b""
    (size,) = struct.unpack("!i", head)
    if size == -1:
        longer = file.read(8)
        if len(longer) < 8:
            return b""
        head, (size,) = head + longer, struct.unpack("!Q", longer)
    body = file.read(size)
    return head + body if len(body) == size else b""


def main(*words: str) -> None:
    """Begin, and end the process that waits for that: nobody else is to wait for this one."""
    source, pipe, kind, maximum = map(int, words[:4])
    lock = importlib.import_module("_multiprocessing").SemLock._rebuild(0, kind, maximum, words[4])
    target = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.close(pipe)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    comm = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    os.write(comm, NAME.encode())
    os.close(comm)
    if os.fork():
        os._exit(0)
    Relay(socket.socket(fileno=source), target, lock).run()
    os._exit(0)  # the thread may still be receiving


if __name__ == "__main__":
    main(*sys.argv[1:])
