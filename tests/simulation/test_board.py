"""Ranks of one host meet at a board in shared memory; here two of them, in one process."""

from __future__ import annotations

import copy
import os
import socket
import threading

import pytest

from xla_nb.simulation.agreement import Agreement
from xla_nb.simulation.board import Board, step_of
from xla_nb.simulation.frames import Frame
from xla_nb.simulation.mesh import Mesh, Stream

FIRST, SECOND, THIRD = (step_of(0, number) for number in range(3))
ANOTHER = step_of(1, 0)


def arrive(board: Board, rank: int, step: int = FIRST, what: bytes = b"sum") -> bool:
    return board.arrive(rank, step, what, b"message of %d at %d" % (rank, step))


def test_the_last_one_to_arrive_is_told_so() -> None:
    board = Board(3)
    assert [arrive(board, rank) for rank in (2, 0, 1)] == [False, False, True]
    assert board.is_complete(FIRST)


def test_those_that_have_not_arrived_are_missing() -> None:
    board = Board(3)
    arrive(board, 1)
    assert board.missing(FIRST) == [0, 2]
    assert not board.is_complete(FIRST)


def test_one_that_is_a_step_ahead_has_arrived_and_its_message_is_there_still() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1)
    arrive(board, 1, SECOND)
    assert board.is_complete(FIRST)
    assert board.is_agreed(FIRST)
    messages = {0: b"message of 0 at 1", 1: b"message of 1 at 1"}
    assert board.messages(FIRST, (0, 1)) == messages


def test_one_that_is_in_its_next_program_has_not_arrived() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1, ANOTHER)
    assert board.missing(FIRST) == [1]
    assert board.missing(ANOTHER) == [0]
    assert not board.is_complete(FIRST)
    assert board.messages(FIRST, (0, 1)) == {0: b"message of 0 at 1"}  # rank 1 has no other there


def test_ranks_that_are_there_for_something_else_are_noticed() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1, what=b"max")
    assert board.is_complete(FIRST)
    assert not board.is_agreed(FIRST)
    arrive(board, 0, SECOND)
    arrive(board, 1, SECOND)
    assert board.is_agreed(SECOND)


def test_a_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="A message of 65536 bytes does not fit the board"):
        Board(1).arrive(0, FIRST, b"sum", bytes(1 << 16))


def test_the_bell_wakes_all_that_sleep_and_is_heard_once() -> None:
    boards = [Board(3)]
    boards += [copy.copy(boards[0]) for _ in range(2)]
    for board in boards:
        board.listen()
    arrive(boards[0], 0)
    arrive(boards[1], 1)
    assert not boards[0].wait(FIRST, 0)
    threads = [
        threading.Thread(target=lambda board=board: awake.append(board.wait(FIRST, 60)))
        for board in boards[:2]
    ]
    awake: list[bool] = []
    for thread in threads:
        thread.start()
    arrive(boards[2], 2)
    for thread in threads:
        thread.join()
    assert awake == [True, True]
    assert boards[2].wait(SECOND, 0)
    assert not boards[2].wait(SECOND, 0)
    for board in boards:
        board._ears.close()


@pytest.fixture
def pair():
    """The agreements of ranks 0 and 1, and their board."""
    board = Board(2)
    ends = socket.socketpair()
    agreements = []
    for rank, end in enumerate(ends):
        own = copy.copy(board)
        own.listen()
        agreements.append(Agreement(Mesh(rank, 2, {1 - rank: Stream(1 - rank, end)}), own))
    yield agreements
    for agreement, end in zip(agreements, ends, strict=True):
        agreement._board._ears.close()
        end.close()


def test_what_a_rank_sends_after_the_meeting_waits_for_its_own(pair, monkeypatch) -> None:
    """Rank 0 looks at the stream of rank 1, which it took for missing, and is there already."""
    early, late = pair
    board = early._board
    missing, waits, complete = iter([[1]]), iter([False, True]), iter([False])
    monkeypatch.setattr(board, "arrive", lambda *_: False)
    monkeypatch.setattr(board, "missing", lambda step: next(missing, []))
    monkeypatch.setattr(board, "wait", lambda step, seconds: next(waits))
    monkeypatch.setattr(board, "is_complete", lambda step: next(complete, True))
    monkeypatch.setattr(board, "messages", lambda step, of: {})
    sent = Frame(0, "of its group", "line\t1", bytearray(b"data"))
    late.mesh.streams[0].send(sent.pack())
    assert early.meet("all_reduce", range(2)) == {0: b"", 1: b""}
    assert next(missing, None) is None  # it has looked
    assert early._next_frame(1) == sent


def test_a_child_of_a_rank_is_refused(pair) -> None:
    pair[0]._owner = os.getppid()
    with pytest.raises(RuntimeError, match="A child process of rank 0 called all_reduce"):
        pair[0].meet("all_reduce", range(2))
