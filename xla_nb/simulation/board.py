"""Barrier in shared memory with message slots for each rank of a host.

A rank has arrived at a step when its number on the board is the step's. The last one rings a bell
(an eventfd); the others wait for it. So the cost of a meeting per rank hardly grows with their
number. Each rank has two message slots, used in turn: it may write its next message while others
still read the last one.

Other ranks see numbers and messages in the order in which they were written: x86-64 guarantees
that, and torch_xla is built for nothing else.
"""

from __future__ import annotations

import mmap
import os
import select
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from struct import Struct

Buffer = bytes | memoryview
_DIGEST = 16  # bytes
_MAX_MESSAGE = 1 << 16  # maximum bytes, including the head
_HEAD = Struct("=QII")  # step; lengths of message and payload
_PAYLOADS = 1 << 20  # bytes that each rank reads at a meeting, unless there are many ranks
_MIN_PAYLOAD = 1 << 14  # minimum bytes of one payload, however many ranks
_PROGRAM = 1 << 32  # steps of one program
_YIELDS = 10  # times a rank yields its core before it sleeps, because waking it takes longer


def step_of(program: int, number: int) -> int:
    """The number on the board for meeting `number` of a program, both counted from 0."""
    return program * _PROGRAM + number + 1


class Board:
    """Created before the fork, for ranks 0 to `size` - 1. Memory is allocated as it is used."""

    def __init__(self, size: int) -> None:
        self._size = size
        #: The maximum size of a payload in bytes.
        self.room = max(_MIN_PAYLOAD, _PAYLOADS // size & -mmap.PAGESIZE)
        begin = -(-size * (3 * 8 + 2 * _DIGEST) // mmap.PAGESIZE) * mmap.PAGESIZE
        slots = 2 * size * (_MAX_MESSAGE + self.room)
        memory = memoryview(mmap.mmap(-1, begin + slots))
        self._steps = memory[: 8 * size].cast("Q")
        self._programs = memory[8 * size : 16 * size].cast("Q")  # the last that each rank began
        self._returns = memory[16 * size : 24 * size].cast("Q")  # 1 + the last one that returned
        digests = memory[24 * size : (24 + 2 * _DIGEST) * size]
        self._digests = digests[: _DIGEST * size], digests[_DIGEST * size :]
        self._messages = memory[begin:]
        self._fence = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._bell)
        self._ears: select.epoll | None = None  # per process

    def listen(self) -> None:
        """In a rank, before its first meeting: start to listen for the bell."""
        self._ears = select.epoll()
        self._ears.register(self._bell, select.EPOLLIN | select.EPOLLET)  # each ring wakes all once

    def begin(self, rank: int, program: int) -> None:
        """Mark that a rank has begun a program: it no longer reads messages of earlier ones."""
        self._programs[rank] = program
        with self._fence:
            pass
        if not self.behind(program):
            os.eventfd_write(self._bell, 1)

    def behind(self, program: int) -> list[int]:
        """The ranks that have not begun the program. No rank may arrive before all have begun:
        others may still be at the last step of an earlier program."""
        if min(self._programs) >= program:
            return []
        return [rank for rank, latest in enumerate(self._programs) if latest < program]

    def returns(self, rank: int, program: int) -> None:
        """Mark that a rank has returned from a program. Wakes no rank: most wait for nothing."""
        self._returns[rank] = program + 1

    def returned(self, program: int, ranks: Iterable[int]) -> set[int]:
        """Which of these ranks have returned from the program, or from a later one."""
        return {rank for rank in ranks if self._returns[rank] > program}

    def arrive(
        self, rank: int, step: int, what: bytes, message: bytes, payload: Sequence[Buffer] = ()
    ) -> bool:
        """Write a message and a payload, given in parts; returns whether all ranks have arrived.
        `what` is compared between ranks. The payload has at most `room` bytes. Raises ValueError if
        the message is longer than 64 KiB."""
        start = self._start(rank, step)
        size, end = _HEAD.size + len(message), start + _MAX_MESSAGE
        if size > _MAX_MESSAGE:
            raise ValueError(f"A message of {len(message)} bytes does not fit on the board.")
        for part in payload:
            begin, end = end, end + len(part)
            self._messages[begin:end] = part
        head = _HEAD.pack(step, len(message), end - start - _MAX_MESSAGE)
        self._messages[start : start + size] = head + message
        digest = blake2b(what, digest_size=_DIGEST).digest()
        self._digests[step % 2][_DIGEST * rank : _DIGEST * (rank + 1)] = digest
        self._steps[rank] = step
        with self._fence:  # an atomic instruction: others see the number before we read theirs
            pass
        complete = self.is_complete(step)
        if complete:
            os.eventfd_write(self._bell, 1)
        return complete

    def is_complete(self, step: int) -> bool:
        """Whether all ranks have arrived."""
        return step <= min(self._steps) and max(self._steps) <= step + 1

    def missing(self, step: int) -> list[int]:
        """The ranks that have not arrived. A rank that is one step ahead has arrived; a rank in
        another program has not."""
        if self.is_complete(step):
            return []
        return [rank for rank, number in enumerate(self._steps) if not step <= number <= step + 1]

    def is_agreed(self, step: int) -> bool:
        """Whether all ranks, having arrived, gave the same `what`."""
        digests = bytes(self._digests[step % 2])
        return digests == digests[:_DIGEST] * self._size

    def messages(self, step: int, ranks: Iterable[int]) -> dict[int, bytes]:
        """The messages of ranks that have arrived, except ranks that have moved on to another
        program."""
        messages = {}
        for rank in ranks:
            start = self._start(rank, step)
            head = number, length, _ = _HEAD.unpack_from(self._messages, start)
            begin = start + _HEAD.size
            message = bytes(self._messages[begin : begin + length])
            if number == step and _HEAD.unpack_from(self._messages, start) == head:
                messages[rank] = message
        return messages

    def payloads(self, step: int) -> dict[int, memoryview]:
        """Every rank's payload, once all have arrived, without a copy: valid until this rank's next
        step."""
        payloads = {}
        for rank in range(self._size):
            start = self._start(rank, step)
            _, _, length = _HEAD.unpack_from(self._messages, start)
            payloads[rank] = self._messages[start + _MAX_MESSAGE : start + _MAX_MESSAGE + length]
        return payloads

    def wait(self, missing: Callable[[], object], seconds: float) -> bool:
        """Wait until no rank is missing or the bell rings, possibly for something else; returns
        False on timeout."""
        for _ in range(_YIELDS):
            os.sched_yield()
            if not missing():
                return True
        assert self._ears is not None
        return bool(self._ears.poll(seconds))

    def _start(self, rank: int, step: int) -> int:
        return (step % 2 * self._size + rank) * (_MAX_MESSAGE + self.room)
