"""Before any data moves, the ranks of a collective compare what they are about to do.

Every rank sends its operation and source line to the others and reads theirs. Where a TPU would
hang, every waiting rank raises an error that names the ranks that disagree, returned, died or
never arrived. Small data travels in the same frame, as `payload`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from select import POLLIN
from struct import Struct
from typing import NoReturn
from zlib import crc32

from xla_nb.simulation.mesh import Mesh, Stream, StreamClosed, SwapTimeout
from xla_nb.simulation.places import calling_line, show_line
from xla_nb.wording import listed, ranks

_HEAD = Struct("<IIII?")  # program; lengths of what, where and payload; whether it is a farewell
_LATE = 10.0  # seconds until a waiting rank prints which ranks it waits for
_PATIENCE = 1.0  # seconds that a farewell waits for another thread's collective
_LONGEST = 4000  # characters of an operation that are sent and shown


class CollectiveMismatch(RuntimeError):
    """Ranks called different collectives. `follows`: because another rank had failed."""

    def __init__(self, message: str, follows: bool = False) -> None:
        super().__init__(message)
        self.follows = follows


class CollectiveTimeout(RuntimeError):
    """Some ranks did not reach a collective in time."""


class RankLost(RuntimeError):
    """Another rank's process ended in the middle of the program."""


@dataclass(frozen=True)
class CollectiveWait:
    """A collective that this rank waits in."""

    operation: str
    since: float  # of time.monotonic()
    missing: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """One rank's message at a meeting: its operation, or a farewell with the reason in `what`.

    One that gives up, as another has ended inside a collective, has in the payload of its farewell
    the name of the error that those who read it are to raise too.
    """

    program: int
    what: str
    where: str
    payload: bytearray = field(default_factory=bytearray)
    farewell: bool = False

    def pack(self) -> bytes:
        what, where = self.what.encode(), self.where.encode()
        sizes = (len(what), len(where), len(self.payload))
        head = _HEAD.pack(self.program, *sizes, self.farewell)
        return b"".join((head, what, where, self.payload))


def take_frame(stream: Stream) -> Frame | None:
    """The next frame of a stream, or None until all of it has arrived."""
    inbox = stream.inbox
    while True:
        if len(inbox) >= _HEAD.size:
            program, what, where, payload, farewell = _HEAD.unpack_from(inbox)
            middle = _HEAD.size + what
            body = middle + where
            end = body + payload
            if len(inbox) >= end:
                text = inbox[_HEAD.size : middle].decode(), inbox[middle:body].decode()
                frame = Frame(program, *text, inbox[body:end], farewell)
                del inbox[:end]
                return frame
        if not stream.fill():
            return None


class Agreement:
    """The meetings of one rank. A program ends with `leave`; the next call begins another."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._owner = os.getpid()
        self._program = 0
        self._gone: dict[int, Frame] = {}  # farewells received in this program, by rank
        self._failure: RuntimeError | None = None  # for which this rank is out of step with others
        self._wait: tuple[str, float, set[int]] | None = None
        self._lock = threading.RLock()

    @property
    def lock(self) -> threading.RLock:
        """Held while meeting and moving data: one collective at a time."""
        return self._lock

    @property
    def waiting(self) -> CollectiveWait | None:
        current = self._wait
        if current is None:
            return None
        operation, since, missing = current
        return CollectiveWait(operation, since, tuple(sorted(missing.copy())))

    def meet(self, what: str, members: Iterable[int], payload: bytes = b"") -> dict[int, bytearray]:
        """Meet `members` for the operation `what`; returns each rank's payload.

        Raises CollectiveMismatch, CollectiveTimeout or RankLost.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"A child process of rank {self.mesh.rank} called {_shorten(what)}. Call it in the "
                "rank itself: its children are no ranks."
            )
        if self._failure is not None:
            raise _again(type(self._failure).__name__, str(self._failure))
        mine = Frame(self._program, _shorten(what), calling_line(), bytearray(payload))
        others = [rank for rank in members if rank != self.mesh.rank]
        self._check_gone(mine, {}, others)
        self._send(mine, others)
        missing = set(others)
        self._wait = mine.what, time.monotonic(), missing
        try:
            frames = self._collect(mine, missing)
        finally:
            self._wait = None
        frames[self.mesh.rank] = mine
        if any(frame.what != mine.what for frame in frames.values()):
            raise CollectiveMismatch(_disagreement(frames, ()))
        return {rank: frame.payload for rank, frame in frames.items()}

    def leave(self, reason: str) -> None:
        """Tell all ranks that this one is done, and why; those that wait for it fail at once."""
        # A thread of the user's may hold the lock in a collective for a long time.
        locked = self._lock.acquire(timeout=_PATIENCE)
        data = Frame(self._program, reason, "", farewell=True).pack()
        for stream in self.mesh.streams.values():
            with suppress(StreamClosed):
                stream.send(data)
        self._program += 1
        self._gone.clear()
        if locked:
            self._lock.release()

    def timeout(self) -> float:
        return float(os.environ.get("XLA_NB_COLLECTIVE_TIMEOUT") or 600)

    def _send(self, frame: Frame, others: Sequence[int]) -> None:
        data = frame.pack()
        for rank in others:
            with suppress(StreamClosed):  # its farewell may still be unread
                self.mesh.streams[rank].send(data)

    def _collect(self, mine: Frame, missing: set[int]) -> dict[int, Frame]:
        frames: dict[int, Frame] = {}
        started, warned, limit = time.monotonic(), False, 0.0
        ready: Iterable[int] = sorted(missing)
        while True:
            for rank in ready:
                self._read(rank, mine, frames, missing)
            self._check_gone(mine, frames, missing)
            if not missing:
                return frames
            limit = limit or self.timeout()
            waited = time.monotonic() - started
            if waited >= limit:
                raise CollectiveTimeout(_absence(mine, missing, waited))
            if waited >= _LATE and not warned:
                warned = True
                # In one write, so that lines of ranks sharing a stream do not mix.
                sys.stderr.write(f"xla_nb: {_absence(mine, missing, waited)}\n")
                sys.stderr.flush()
            pause = limit - waited if warned else min(limit, _LATE) - waited
            ready = self._poll(missing, pause, mine)

    def _poll(self, missing: set[int], pause: float, mine: Frame) -> list[int]:
        try:
            return self.mesh.poll(dict.fromkeys(missing, POLLIN), pause)
        except StreamClosed as error:
            self._lost(error.rank, mine, error)

    def _read(self, rank: int, mine: Frame, frames: dict[int, Frame], missing: set[int]) -> None:
        try:
            frame = take_frame(self.mesh.streams[rank])
            while frame and frame.program < self._program:  # left over from an earlier program
                frame = take_frame(self.mesh.streams[rank])
        except StreamClosed as error:
            self._lost(rank, mine, error)
        if frame is None:
            return
        if frame.farewell:
            self._gone[rank] = frame
        else:
            frames[rank] = frame
            missing.discard(rank)

    def _check_gone(self, mine: Frame, frames: dict[int, Frame], others: Iterable[int]) -> None:
        if self._gone and not self._gone.keys().isdisjoint(others):
            for frame in self._gone.values():
                if frame.payload:
                    raise _again(frame.payload.decode(), frame.what)
            present = frames | {self.mesh.rank: mine} | self._gone
            failures = "raised", "was stopped"
            failed = any(frame.what.startswith(failures) for frame in self._gone.values())
            raise CollectiveMismatch(_disagreement(present, set(others) - present.keys()), failed)

    def _lost(self, rank: int, mine: Frame, cause: Exception) -> NoReturn:
        raise RankLost(f"{self._ended(rank)} while this rank was in {_show(mine)}") from cause

    def _ended(self, rank: int) -> str:
        """`rank 2's process ended`. A rank that is alive may have closed its streams because of
        another; that one's are closed too, and both are named."""
        closed = {rank, *self.mesh.closed()} - (self._gone.keys() - {rank})
        return " or ".join(f"rank {each}'s" for each in sorted(closed)) + " process ended"

    @contextmanager
    def moving(self, what: str, numbers: bool = True) -> Iterator[None]:
        """Around a swap: the rank shows as waiting, and stream errors become ours.

        numbers: what moves is data, of which others may have half after an error, so the streams
        are closed then; else they hear of it.
        """
        self._wait = _shorten(what), time.monotonic(), set()
        try:
            yield
        except BaseException as error:
            failure = self._of_stream(error, what)
            interrupted = f"raised {type(error).__name__}"
            self._give_up(failure or self._left(self.mesh.rank, interrupted, what), numbers)
            if failure:
                raise failure from error
            raise
        finally:
            self._wait = None

    def _of_stream(self, error: BaseException, what: str) -> RuntimeError | None:
        during = f"during {_shorten(what)}"
        if isinstance(error, SwapTimeout):
            return CollectiveTimeout(f"{ranks(error.ranks)} stopped {during}")
        if isinstance(error, StreamClosed):
            return RankLost(f"{self._ended(error.rank)} {during}")
        return None

    def left_during(self, what: str, rank: int, data: bytearray) -> NoReturn:
        """Raise for a rank whose farewell, which begins with `data`, came in the middle of a
        collective: something was raised there between two of its steps."""
        self.mesh.streams[rank].inbox[:0] = data
        frame = take_frame(self.mesh.streams[rank])
        if frame and frame.payload:
            failure = _again(frame.payload.decode(), frame.what)
        else:
            failure = self._left(rank, frame.what if frame else "left", what)
        self._give_up(failure, numbers=False)
        raise failure

    def _left(self, rank: int, reason: str, what: str) -> CollectiveMismatch:
        return CollectiveMismatch(f"rank {rank} {reason} during {_shorten(what)}", follows=True)

    def _give_up(self, failure: RuntimeError, numbers: bool) -> None:
        """Leave the step that others are at, so that none of them takes this rank for the one that
        has ended; no collective of this process is in step with theirs any more."""
        self._failure = failure
        if numbers:
            self.mesh.close()
            return
        name = bytearray(type(failure).__name__.encode())
        data = Frame(self._program, str(failure), "", name, farewell=True).pack()
        for stream in self.mesh.streams.values():
            with suppress(StreamClosed):
                stream.send(data)


def _again(name: str, message: str) -> RuntimeError:
    """An error of this name, raised in another rank or before."""
    if name == CollectiveMismatch.__name__:
        return CollectiveMismatch(message, follows=True)
    return {each.__name__: each for each in (CollectiveTimeout, RankLost)}[name](message)


def _shorten(what: str) -> str:
    if len(what) <= _LONGEST:
        return what
    return f"{what[:_LONGEST]}… ({len(what)} characters in all, #{crc32(what.encode()):x})"


def _disagreement(frames: dict[int, Frame], absent: Iterable[int]) -> str:
    start = _first_difference([frame.what for frame in frames.values() if not frame.farewell])
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, frame in sorted(frames.items()):
        groups[frame.what if frame.farewell else _show(frame, start)].append(rank)
    ended = [rank for rank, frame in sorted(frames.items()) if frame.farewell]
    culprit_first = sorted(groups.items(), key=lambda e: (e[1][0] not in ended, len(e[1])))
    lines = [f"  {ranks(group)}: {text}" for text, group in culprit_first]
    if absent:
        lines.append(f"  {ranks(absent)}: not arrived yet")
    heading = _who_ended(ended, frames) if ended else _who_differs([g for _, g in culprit_first])
    return "\n".join((f"{heading[0].upper()}{heading[1:]}:", *lines))


def _who_differs(groups: list[list[int]]) -> str:
    """`rank 1 and ranks 0, 2, 3 called different collectives`, while the groups are few."""
    who = listed(map(ranks, groups)) if len(groups) <= 3 else f"{len(groups)} groups of ranks"
    return f"{who} called different collectives"


def _who_ended(ended: list[int], frames: Iterable[int]) -> str:
    callers = ranks(rank for rank in frames if rank not in ended)
    return f"{ranks(ended)} ended without a collective that {callers} called"


def _show(frame: Frame, start: int = 0) -> str:
    return f"{_abridge(frame.what, start)} at {show_line(frame.where)}"


def _first_difference(texts: Sequence[str]) -> int:
    """Where the texts first differ."""
    columns = enumerate(zip(*texts, strict=False))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, texts)))


def _abridge(what: str, start: int) -> str:
    """A long list of tensors shortened to its head and what follows `start`, where two differ."""
    if len(what) <= 200:
        return what
    start = max(80, min(start - 20, len(what) - 100))
    return f"{what[:80]} … {what[start : start + 100]} …"


def _absence(mine: Frame, missing: Iterable[int], waited: float) -> str:
    return f"waited {waited:.0f} s for {ranks(missing)} in {_show(mine)}"
