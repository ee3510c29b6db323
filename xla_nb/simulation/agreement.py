"""Before any data moves, the ranks of a collective compare what they are about to do.

Every rank gives its operation and source line to the others and reads theirs: on the board, if all
ranks of the world are on this host and take part, else over the streams. Where a TPU would hang,
every waiting rank raises an error that names the ranks that disagree, returned, died or never
arrived. Small data travels in the same frame, as `payload`.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from select import POLLIN
from typing import NoReturn

from xla_nb.simulation.board import Board, Buffer, step_of
from xla_nb.simulation.frames import (
    Frame,
    absence,
    are_most,
    disagreement,
    shorten,
    show,
    take_frame,
)
from xla_nb.simulation.mesh import Mesh, StreamClosed, SwapTimeout
from xla_nb.simulation.places import calling_line
from xla_nb.stopwatch import Stopwatch
from xla_nb.wording import ranks

_LATE = 10.0  # seconds until a waiting rank prints which ranks it waits for
_GLANCE = 0.1  # seconds between two looks at the streams, of those that wait at the board
_ROOM = 1 << 14  # bytes of a payload that fit the sockets' buffers
_PATIENCE = 1.0  # seconds that a farewell waits for another thread's collective


class CollectiveMismatch(RuntimeError):
    """Ranks called different collectives. `follows`: because another rank had failed. `early`:
    ranks that had returned without the collective."""

    def __init__(self, message: str, follows: bool = False, early: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.follows = follows
        self.early = tuple(early)


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


@dataclass
class _Visit:
    """A meeting at the board. `over`: all ranks were there."""

    step: int
    mine: Frame
    payload: Sequence[Buffer]
    over: bool = False


class Agreement:
    """The meetings of one rank. A program ends with `leave`, and the next one starts with `begin`.

    board: where the whole world meets, if all of it is on one host.
    """

    def __init__(self, mesh: Mesh, board: Board | None = None) -> None:
        self.mesh = mesh
        self._board = board
        self._visits: list[_Visit] = []  # of this program: those that are not over, and the last
        self._owner = os.getpid()
        self._program = 0
        self._members = frozenset(range(mesh.size))  # the ranks that run the program
        self._gone: dict[int, Frame] = {}  # farewells received in this program, by rank
        self._failure: RuntimeError | None = None  # for which this rank is out of step with others
        self._wait: tuple[str, float, Callable[[], Iterable[int]]] | None = None
        self._waited = Stopwatch()
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
        return CollectiveWait(operation, since, tuple(sorted(missing())))

    @property
    def waited(self) -> float:
        """Seconds of all waits so far, with the one that this rank is in."""
        return self._waited.seconds

    def room(self, members: Sized) -> int:
        """The most bytes of a payload at a meeting of these."""
        return self._board.room if self._board and self._are_all(members) else _ROOM

    def _are_all(self, members: Sized) -> bool:
        return len(members) == self.mesh.size

    def meet(
        self, what: str, members: Sequence[int], payload: Sequence[Buffer] = ()
    ) -> dict[int, Buffer]:
        """Meet `members` for the operation `what`, which says how long payloads are or that they
        say so; returns each rank's payload, valid until the next meeting.

        Raises CollectiveMismatch, CollectiveTimeout or RankLost.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"A child process of rank {self.mesh.rank} called {shorten(what)}. Call it in the "
                "rank itself: its children are no ranks."
            )
        if self._failure is not None:
            raise _again(type(self._failure).__name__, str(self._failure))
        mine = Frame(self._program, shorten(what), calling_line())
        others = [rank for rank in members if rank != self.mesh.rank]
        self._check_members(mine, others)
        self._check_gone(mine, {}, others)
        try:
            if self._board is not None and self._are_all(members):
                self._meet_at_board(self._board, mine, payload)
                return {**self._board.payloads(self._visits[-1].step)}
            return self._meet_over_streams(mine, others, payload)
        finally:
            self._wait = None
            self._waited.stop()

    def _meet_over_streams(
        self, mine: Frame, others: Sequence[int], payload: Sequence[Buffer]
    ) -> dict[int, Buffer]:
        mine = replace(mine, payload=bytearray().join(payload))
        self._send(mine, others)
        frames = self._collect(mine, set(others)) | {self.mesh.rank: mine}
        if any(frame.what != mine.what for frame in frames.values()):
            raise CollectiveMismatch(disagreement(frames, ()))
        return {rank: memoryview(frame.payload) for rank, frame in frames.items()}

    def _meet_at_board(self, board: Board, mine: Frame, payload: Sequence[Buffer]) -> None:
        step = self._visits[-1].step + 1 if self._visits else step_of(self._program, 0)
        self._visits.append(_Visit(step, mine, payload))
        for visit in self._visits:
            if not visit.over:  # also one that was interrupted: others may still read its message
                self._stay(board, visit)
        del self._visits[:-1]
        if not board.is_agreed(step):
            everyone = range(self.mesh.size)
            raise CollectiveMismatch(disagreement(_frames_at(board, step, everyone), ()))

    def _stay(self, board: Board, visit: _Visit) -> None:
        """Be at the board until all ranks are."""
        mine, step = visit.mine, visit.step
        if not board.arrive(self.mesh.rank, step, mine.what.encode(), mine.pack(), visit.payload):
            missing = functools.partial(board.missing, step)
            self._wait = mine.what, time.monotonic(), missing
            self._waited.start()
            for pause in self._pauses(mine, missing):
                if board.is_complete(step):
                    break
                if not board.wait(step, min(pause, _GLANCE)):
                    self._glance(board, visit)
        visit.over, visit.payload = True, ()

    def _glance(self, board: Board, visit: _Visit) -> None:
        """Raise what keeps ranks from the board, if streams tell: those of the missing ones, or of
        others who know."""
        mine, step = visit.mine, visit.step
        closed = {}
        for rank in self._poll(self.mesh.streams, 0, mine):
            try:
                self.mesh.streams[rank].fill()
            except StreamClosed as error:
                closed[rank] = error
        if board.is_complete(step):
            return  # what has come may be the next thing, and need not be a frame
        elsewhere = {}
        for rank in self.mesh.streams:
            if frame := self._next_frame(rank, come=True):
                elsewhere[rank] = frame
        missing = set(board.missing(step))
        for rank, end in closed.items():
            if rank in missing - self._gone.keys() - elsewhere.keys():
                self._lost(rank, mine, end)
        here = set(range(self.mesh.size)) - missing
        frames = _frames_at(board, step, here) | elsewhere
        given_up = {rank for rank, frame in self._gone.items() if frame.payload}
        self._check_gone(mine, frames, missing | given_up)
        if elsewhere:
            failure = CollectiveMismatch(disagreement(frames, missing - elsewhere.keys()))
            self._give_up(failure)
            raise failure

    def begin(self, program: int, members: Iterable[int] | None = None) -> None:
        """Begin the program of that number, higher than the last one's and the same on all of its
        ranks, which are `members` (default: all)."""
        with self._lock:
            self._program = program
            everyone = range(self.mesh.size)
            self._members = frozenset(everyone if members is None else members)
            self._failure = None
            self._visits.clear()
            self._gone.clear()

    def leave(self, reason: str) -> None:
        """Tell all ranks that this one is done, and why; those that wait for it fail at once."""
        # A thread of the user's may hold the lock in a collective for a long time.
        locked = self._lock.acquire(timeout=_PATIENCE)
        data = Frame(self._program, reason, "", farewell=True).pack()
        for stream in self.mesh.streams.values():
            with suppress(StreamClosed):
                stream.send(data)
        self._program += 1
        self._visits.clear()
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
        self._wait = mine.what, time.monotonic(), missing.copy
        self._waited.start()
        ready: Iterable[int] = sorted(missing)
        for pause in self._pauses(mine, missing.copy):
            for rank in ready:
                self._read(rank, mine, frames, missing)
            self._check_gone(mine, frames, missing)
            if not missing:
                break
            ready = self._poll(missing, pause, mine)
        return frames

    def _pauses(self, mine: Frame, missing: Callable[[], Iterable[int]]) -> Iterator[float]:
        """How long to wait at most, again and again, while ranks are missing."""
        started, warned, limit = time.monotonic(), False, self.timeout()
        yield min(limit, _LATE)
        while (waited := time.monotonic() - started) < limit:
            if waited >= _LATE and not warned:
                warned = True
                # In one write, so that lines of ranks sharing a stream do not mix.
                sys.stderr.write(f"xla_nb: {absence(mine, missing(), waited)}\n")
                sys.stderr.flush()
            yield limit - waited if warned else min(limit, _LATE) - waited
        raise CollectiveTimeout(absence(mine, missing(), waited))

    def _poll(self, missing: Iterable[int], pause: float, mine: Frame) -> list[int]:
        try:
            return self.mesh.poll(dict.fromkeys(missing, POLLIN), pause)
        except StreamClosed as error:
            self._lost(error.rank, mine, error)

    def _read(self, rank: int, mine: Frame, frames: dict[int, Frame], missing: set[int]) -> None:
        try:
            frame = self._next_frame(rank)
        except StreamClosed as error:
            self._lost(rank, mine, error)
        if frame:
            frames[rank] = frame
            missing.discard(rank)

    def _next_frame(self, rank: int, come: bool = False) -> Frame | None:
        """What a rank has sent in this program, but for a farewell, which is kept.

        come: only what has been read from its stream already."""
        frame = take_frame(self.mesh.streams[rank], come)
        while frame and frame.program < self._program:  # left over from an earlier program
            frame = take_frame(self.mesh.streams[rank], come)
        if frame and frame.farewell:
            self._gone.setdefault(rank, frame)
            return None
        return frame

    def _check_members(self, mine: Frame, others: Iterable[int]) -> None:
        absent = set(others) - self._members
        if absent:
            operation, do = mine.what.partition(" ")[0], "does" if len(absent) == 1 else "do"
            raise CollectiveMismatch(
                f"{operation} needs {ranks(absent)}, which {do} not run this cell (it runs on "
                f"{ranks(self._members)}). Run it on all ranks, or give the collective groups of "
                "those that run."
            )

    def _check_gone(self, mine: Frame, frames: dict[int, Frame], others: Iterable[int]) -> None:
        gone = {rank: self._gone[rank] for rank in others if rank in self._gone}
        for frame in gone.values():
            if frame.payload:
                raise _again(frame.payload.decode(), frame.what)
        if gone:
            present = frames | {self.mesh.rank: mine} | gone
            failures = "raised", "was stopped"
            failed = any(frame.what.startswith(failures) for frame in gone.values())
            early = sorted(rank for rank, frame in gone.items() if frame.what == "returned")
            if are_most(early, [*(present.keys() - gone.keys())]):
                early = []
            told = disagreement(present, set(others) - present.keys())
            raise CollectiveMismatch(told, failed, early)

    def _lost(self, rank: int, mine: Frame, cause: Exception) -> NoReturn:
        raise RankLost(f"{self._ended(rank)} while this rank was in {show(mine)}") from cause

    def _ended(self, rank: int) -> str:
        """`rank 2's process ended`. A rank that is alive may have closed its streams because of
        another; that one's are closed too, and both are named."""
        closed = {rank, *self.mesh.closed()} - (self._gone.keys() - {rank})
        return " or ".join(f"rank {each}'s" for each in sorted(closed)) + " process ended"

    def swap(
        self, what: str, out: Mapping[int, memoryview], into: Mapping[int, memoryview]
    ) -> None:
        """Move bytes between ranks that have met for it: the rank shows as waiting, and errors of
        streams become ours. Others may have half of the bytes after any error, so the streams are
        closed then."""
        self._wait = shorten(what), time.monotonic(), tuple
        self._waited.start()
        try:
            self.mesh.swap(out, into, self.timeout())
        except BaseException as error:
            failure = self._of_stream(error, what)
            self._failure = failure or self._raised(error, what)
            self.mesh.close()
            if failure:
                raise failure from error
            raise
        finally:
            self._wait = None
            self._waited.stop()

    def _of_stream(self, error: BaseException, what: str) -> RuntimeError | None:
        during = f"during {shorten(what)}"
        if isinstance(error, SwapTimeout):
            return CollectiveTimeout(f"{ranks(error.ranks)} stopped {during}")
        if isinstance(error, StreamClosed):
            return RankLost(f"{self._ended(error.rank)} {during}")
        return None

    def break_off(self, what: str, error: BaseException) -> None:
        """Tell the others, who may wait for this rank in the middle of a collective, that an error
        has ended it here."""
        if self._failure is None:
            if not isinstance(error, (CollectiveMismatch, CollectiveTimeout, RankLost)):
                error = self._raised(error, what)
            self._give_up(error)

    def _raised(self, error: BaseException, what: str) -> CollectiveMismatch:
        reason = f"rank {self.mesh.rank} raised {type(error).__name__} during {shorten(what)}"
        return CollectiveMismatch(reason, follows=True)

    def _give_up(self, failure: RuntimeError) -> None:
        """Leave the step that others are at, so that none of them takes this rank for the one that
        has ended; no collective of this process is in step with theirs any more."""
        self._failure = failure
        name = bytearray(type(failure).__name__.encode())
        data = Frame(self._program, str(failure), "", name, farewell=True).pack()
        for stream in self.mesh.streams.values():
            with suppress(StreamClosed):
                stream.send(data)


def _frames_at(board: Board, step: int, of: Iterable[int]) -> dict[int, Frame]:
    found = {rank: Frame.unpack(bytearray(m)) for rank, m in board.messages(step, of).items()}
    return {rank: each[0] for rank, each in found.items() if each}


def _again(name: str, message: str) -> RuntimeError:
    """An error of this name, raised in another rank or before."""
    if name == CollectiveMismatch.__name__:
        return CollectiveMismatch(message, follows=True)
    return {each.__name__: each for each in (CollectiveTimeout, RankLost)}[name](message)
