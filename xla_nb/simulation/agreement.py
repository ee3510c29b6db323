"""Compare what the ranks of a collective are about to do before any data moves.

Every rank sends its operation and source line to the others and reads theirs: on the board, if all
ranks of the world are on this host and take part, else over the streams. Where a TPU would hang,
every waiting rank raises an error that names the ranks that disagree, returned or died; it
waits for late ranks. Small data travels in the same frame, as `payload`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from xla_nb.simulation.board import Board, Buffer, step_of
from xla_nb.simulation.frames import (
    Frame,
    are_most,
    disagreement,
    shorten,
    show,
)
from xla_nb.simulation.mesh import Mesh, StreamClosed
from xla_nb.simulation.places import calling_line
from xla_nb.simulation.waits import Waits
from xla_nb.wording import ranks

_CHECK_INTERVAL = 0.1  # seconds between checks of why ranks are missing and of the program's end
_STREAM_ROOM = 1 << 14  # payload bytes that fit in the sockets' buffers
_GROUPLESS = "rendezvous", "init_process_group"  # operations without groups
_RETURNED = "returned"  # the reason in most farewells
_FAREWELL_TIMEOUT = 1.0  # seconds that a farewell may block this thread


class CollectiveMismatch(RuntimeError):
    """Ranks called different collectives. `follows`: as a consequence of another rank's failure.
    `early`: ranks that had returned without calling the collective."""

    def __init__(self, message: str, follows: bool = False, early: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.follows = follows
        self.early = tuple(early)


class RankLost(RuntimeError):
    """Another rank's process ended in the middle of the program."""


@dataclass
class _Visit:
    """A meeting at the board. `over`: all ranks arrived."""

    step: int
    mine: Frame
    payload: Sequence[Buffer]
    over: bool = False


class Agreement:
    """The meetings of one rank in one program, which ends with `leave`. One thread at a time may
    meet.

    board: the meeting point of the whole world, if all of it is on one host. number: the program
    number, the same on all ranks of the program, which are `members` (default: all).
    """

    def __init__(
        self,
        mesh: Mesh,
        board: Board | None = None,
        waits: Waits | None = None,
        number: int = 0,
        members: Iterable[int] | None = None,
    ) -> None:
        self.mesh = mesh
        self.number = number
        self.has_ended = False  # on this rank; threads may still be in it
        self._board = board
        self._waits = waits or Waits()
        self._members = frozenset(range(mesh.size) if members is None else members)
        self._visits: list[_Visit] = []  # unfinished ones, and the last
        self._owner = os.getpid()
        self._farewells: dict[int, Frame] = {}  # received, by rank
        self._failure: RuntimeError | None = None  # the error that put this rank out of step

    def room(self, members: Sized) -> int:
        """The maximum payload size in bytes at a meeting of these ranks."""
        return self._board.room if self._board and self._is_whole_world(members) else _STREAM_ROOM

    def _is_whole_world(self, members: Sized) -> bool:
        return len(members) == self.mesh.size

    def begin(self) -> None:
        """Get ready to meet others, and drop messages left from earlier programs."""
        if self._board is not None:
            self._board.begin(self.mesh.rank, self.number)
        self._read_messages(self.mesh.streams)

    def _read_messages(self, others: Iterable[int]) -> None:
        """Read the messages that these ranks have sent."""
        for rank in others:
            with suppress(StreamClosed):  # raised to callers that wait for this rank
                self._look(rank, come=False)

    def meet(
        self,
        what: str,
        members: Sequence[int],
        payload: Sequence[Buffer] = (),
        dealt: Mapping[int, Buffer] | None = None,
    ) -> dict[int, Buffer]:
        """Meet `members` for the operation `what`, which implies the payload size unless payloads
        contain it; returns each rank's payload, valid until the next meeting.

        dealt: separate payloads for some ranks, each of any length.

        Raises CollectiveMismatch or RankLost.
        """
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"A child process of rank {self.mesh.rank} called {shorten(what)}. Call it in the "
                "rank itself: child processes are not ranks."
            )
        if self._failure is not None:
            raise _make_error(type(self._failure).__name__, str(self._failure))
        self.check(what)
        mine = Frame(self.number, shorten(what), calling_line())
        others = [rank for rank in members if rank != self.mesh.rank]
        self._check_members(mine, others)
        self._check_farewells(mine, {}, others)
        board = self._board if dealt is None and self._is_whole_world(members) else None
        try:
            if board is not None:
                self._meet_at_board(board, mine, payload)
                return {**board.payloads(self._visits[-1].step)}
            return self._meet_over_streams(mine, others, payload, dealt or {})
        except (CollectiveMismatch, RankLost):
            raise
        except BaseException as error:
            if board is None or not payload:  # the others will continue without this rank
                self.break_off(what, error)
            raise
        finally:
            self._waits.stop()

    def check(self, what: str) -> None:
        """Raise CollectiveMismatch if the program has ended: others no longer wait for a collective
        that a thread of this rank is in."""
        if self.has_ended:
            raise CollectiveMismatch(
                f"A thread of rank {self.mesh.rank} was in {shorten(what)} after its cell or "
                "program had ended. Join threads that call collectives before the end."
            )

    def confirm(self, what: str, others: Iterable[int]) -> None:
        """Raise CollectiveMismatch if data read from memory shared with these ranks may have been
        overwritten: one of them gave up in between, or this program has ended."""
        self.check(what)
        mine = Frame(self.number, shorten(what), "")
        self._read_messages(self._ranks_alive(others))
        self._check_farewells(mine, {}, [rank for rank in others if self._has_given_up(rank)])

    def _ranks_alive(self, others: Iterable[int]) -> list[int]:
        return [
            rank for rank in others if rank in self.mesh.streams and rank not in self._farewells
        ]

    def _has_given_up(self, rank: int) -> bool:
        return rank in self._farewells and bool(self._farewells[rank].payload)

    def _meet_over_streams(
        self,
        mine: Frame,
        others: Sequence[int],
        payload: Sequence[Buffer],
        dealt: Mapping[int, Buffer],
    ) -> dict[int, Buffer]:
        for rank, data in dealt.items():
            self._send(replace(mine, payload=bytearray(data)), [rank])
        mine = replace(mine, payload=bytearray().join(payload))
        self._send(mine, [rank for rank in others if rank not in dealt])
        frames = self._collect(mine, set(others)) | {self.mesh.rank: mine}
        if any(frame.what != mine.what for frame in frames.values()):
            raise CollectiveMismatch(disagreement(frames, ()))
        return {rank: memoryview(frame.payload) for rank, frame in frames.items()}

    def _meet_at_board(self, board: Board, mine: Frame, payload: Sequence[Buffer]) -> None:
        step = self._visits[-1].step + 1 if self._visits else step_of(self.number, 0)
        self._visits.append(_Visit(step, mine, payload))
        for visit in self._visits:
            if not visit.over:  # also an interrupted one: others may still read its message
                self._finish_visit(board, visit)
        del self._visits[:-1]
        if not board.is_agreed(step):
            everyone = range(self.mesh.size)
            raise CollectiveMismatch(disagreement(_frames_at(board, step, everyone), ()))

    def _finish_visit(self, board: Board, visit: _Visit) -> None:
        """Stay at the board until all ranks have arrived."""
        mine, step = visit.mine, visit.step
        # Others may still be reading what this rank wrote there in an earlier program.
        self._wait_at(board, visit, functools.partial(board.behind, self.number))
        if not board.arrive(self.mesh.rank, step, mine.what.encode(), mine.pack(), visit.payload):
            self._wait_at(board, visit, functools.partial(board.missing, step))
        visit.over, visit.payload = True, ()

    def _wait_at(self, board: Board, visit: _Visit, find_missing: Callable[[], list[int]]) -> None:
        self._waits.wait(visit.mine.what, find_missing)
        while find_missing():
            if not board.wait(find_missing, _CHECK_INTERVAL):
                self._check_streams(board, visit, find_missing)
            self.check(visit.mine.what)

    def _check_streams(
        self, board: Board, visit: _Visit, find_missing: Callable[[], list[int]]
    ) -> None:
        """Raise the reason why ranks are missing at the board, if streams contain one: the streams
        of the missing ranks, or of others that know it."""
        mine, step = visit.mine, visit.step
        returned, errors = self._returned_ranks(self.mesh.streams), {}
        for rank in self.mesh.poll(self.mesh.streams, 0):
            try:
                self.mesh.streams[rank].fill()
            except StreamClosed as error:
                errors[rank] = error
        missing = set(find_missing())
        if not missing:
            return  # received data may belong to the next step, and need not be a frame
        stream_frames = {}
        for rank in self.mesh.streams:
            if frame := self._look(rank, take=True):
                stream_frames[rank] = frame
        self._mark_returned(returned - stream_frames.keys())
        for rank, cause in errors.items():
            if rank in missing - self._farewells.keys() - stream_frames.keys():
                self._raise_rank_lost(rank, mine, cause)
        arrived = set(range(self.mesh.size)) - missing
        frames = _frames_at(board, step, arrived) | stream_frames
        given_up = {rank for rank in self._farewells if self._has_given_up(rank)}
        self._check_farewells(mine, frames, missing | given_up)
        if stream_frames:
            failure = CollectiveMismatch(disagreement(frames, missing - stream_frames.keys()))
            self._give_up(failure)
            raise failure

    def leave(self, reason: str) -> None:
        """Tell all ranks that this one is done, and why; ranks that wait for it fail at once. A
        thread of this rank that is in a collective fails at its next step."""
        if not self.has_ended:
            self.has_ended = True
            if reason == _RETURNED and self._board is not None:
                self._board.returns(self.mesh.rank, self.number)  # messaging many ranks takes long
            else:
                self._broadcast(Frame(self.number, reason, "", farewell=True))
            if self.mesh.is_sending:  # to a rank that does not read; no program waits for it
                thread = threading.Thread(
                    target=self.mesh.flush, name="xla_nb-farewell", daemon=True
                )
                thread.start()
                thread.join(_FAREWELL_TIMEOUT)

    def _broadcast(self, frame: Frame) -> None:
        self._send(frame, self._members - {self.mesh.rank})

    def _send(self, frame: Frame, others: Iterable[int]) -> None:
        message = frame.pack()
        for rank in others:
            with suppress(StreamClosed):  # its farewell may still be unread
                self.mesh.streams[rank].send(message)

    def _collect(self, mine: Frame, missing: set[int]) -> dict[int, Frame]:
        frames: dict[int, Frame] = {}
        self._waits.wait(mine.what, missing.copy)
        ready: Iterable[int] = sorted(missing)
        while True:
            returned = self._returned_ranks(missing)
            for rank in {*ready, *returned}:
                self._receive(rank, mine, frames, missing)
            self._mark_returned(returned & missing)
            self._check_farewells(mine, frames, missing)
            if not missing and not self.mesh.is_sending:
                return frames
            ready = self.mesh.poll(missing, _CHECK_INTERVAL)
            self.check(mine.what)

    def _receive(self, rank: int, mine: Frame, frames: dict[int, Frame], missing: set[int]) -> None:
        try:
            frame = self._look(rank, come=False, take=True)
        except StreamClosed as error:
            self._raise_rank_lost(rank, mine, error)
        if frame:
            frames[rank] = frame
            missing.discard(rank)

    def _look(self, rank: int, come: bool = True, take: bool = False) -> Frame | None:
        """The frame that a rank has sent in this program, except a farewell, which is stored.

        come: look only at data already read from the stream. take: remove the frame."""
        stream = self.mesh.streams[rank]
        with stream.guard:
            while True:
                entry = Frame.unpack(stream.inbox)
                if entry is None:
                    if come or not stream.fill():
                        return None
                    continue
                frame, length = entry
                if frame.program > self.number:
                    return None
                if frame.program < self.number:
                    stream.drop(length)
                    continue
                if frame.farewell:
                    self._farewells.setdefault(rank, frame)
                if frame.farewell or take:
                    stream.drop(length)
                return None if frame.farewell else frame

    def _returned_ranks(self, others: Iterable[int]) -> set[int]:
        """Which of these ranks are marked on the board as returned: all that they sent is already
        in their streams."""
        return set() if self._board is None else self._board.returned(self.number, others)

    def _mark_returned(self, returned: Iterable[int]) -> None:
        """Mark ranks as left once everything they sent before returning has been read."""
        for rank in returned:
            self._farewells.setdefault(rank, Frame(self.number, _RETURNED, "", farewell=True))

    def _check_members(self, mine: Frame, others: Iterable[int]) -> None:
        absent = set(others) - self._members
        if absent:
            operation, verb = mine.what.partition(" ")[0], "does" if len(absent) == 1 else "do"
            groups = "" if operation in _GROUPLESS else ", or pass groups of the ranks that run it"
            raise CollectiveMismatch(
                f"{operation} needs {ranks(absent)}, which {verb} not run this cell (it runs on "
                f"{ranks(self._members)}). Run the cell on all ranks{groups}."
            )

    def _check_farewells(
        self, mine: Frame, frames: dict[int, Frame], others: Iterable[int]
    ) -> None:
        farewells = {rank: self._farewells[rank] for rank in others if rank in self._farewells}
        for frame in farewells.values():
            if frame.payload:
                raise _make_error(frame.payload.decode(), frame.what)
        if farewells:
            all_frames = frames | {self.mesh.rank: mine} | farewells
            prefixes = "raised", "was stopped"
            has_failed = any(frame.what.startswith(prefixes) for frame in farewells.values())
            early = sorted(rank for rank, frame in farewells.items() if frame.what == _RETURNED)
            if are_most(early, [*(all_frames.keys() - farewells.keys())]):
                early = []
            message = disagreement(all_frames, set(others) - all_frames.keys())
            raise CollectiveMismatch(message, has_failed, early)

    def _raise_rank_lost(self, rank: int, mine: Frame, cause: Exception) -> NoReturn:
        event = f"rank {rank}'s process ended"
        raise RankLost(f"{event} while this rank was in {show(mine)}") from cause

    def break_off(self, what: str, error: BaseException) -> None:
        """Tell the others, which may wait for this rank in the middle of a collective, that an
        error has ended it here."""
        if self._failure is None:
            if not isinstance(error, (CollectiveMismatch, RankLost)):
                name = type(error).__name__
                reason = f"rank {self.mesh.rank} raised {name} during {shorten(what)}"
                error = CollectiveMismatch(reason, follows=True)
            self._give_up(error)

    def _give_up(self, failure: RuntimeError) -> None:
        """Leave the step that others are in, so that none of them blames this rank for the end;
        no later collective of this process is in step with theirs."""
        self._failure = failure
        name = bytearray(type(failure).__name__.encode())
        self._broadcast(Frame(self.number, str(failure), "", name, farewell=True))


def _frames_at(board: Board, step: int, members: Iterable[int]) -> dict[int, Frame]:
    entries = {rank: Frame.unpack(m) for rank, m in board.messages(step, members).items()}
    return {rank: entry[0] for rank, entry in entries.items() if entry}


def _make_error(name: str, message: str) -> RuntimeError:
    """An error of this class name, raised in another rank or earlier."""
    if name == CollectiveMismatch.__name__:
        return CollectiveMismatch(message, follows=True)
    return RankLost(message)
