"""The board in shared memory where ranks of a host meet, with all ranks in one process."""

from __future__ import annotations

import copy
import os
import socket
import threading

import pytest

from xla_nb.simulation.agreement import Agreement, CollectiveMismatch
from xla_nb.simulation.board import Board, step_of
from xla_nb.simulation.frames import Frame
from xla_nb.simulation.mesh import Mesh, Stream

FIRST, SECOND = step_of(0, 0), step_of(0, 1)
ANOTHER = step_of(1, 0)


def arrive(board: Board, rank: int, step: int = FIRST, what: bytes = b"sum") -> bool:
    return board.arrive(rank, step, what, b"message of %d at %d" % (rank, step))


def test_arrive_returns_true_for_the_last_rank() -> None:
    board = Board(3)
    assert [arrive(board, rank) for rank in (2, 0, 1)] == [False, False, True]
    assert board.is_complete(FIRST)


def test_missing_lists_ranks_that_have_not_arrived() -> None:
    board = Board(3)
    arrive(board, 1)
    assert board.missing(FIRST) == [0, 2]
    assert not board.is_complete(FIRST)


def test_rank_one_step_ahead_counts_as_arrived_and_keeps_its_message() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1)
    arrive(board, 1, SECOND)
    assert board.is_complete(FIRST)
    assert board.is_agreed(FIRST)
    messages = {0: b"message of 0 at 1", 1: b"message of 1 at 1"}
    assert board.messages(FIRST, (0, 1)) == messages


def test_rank_in_its_next_program_does_not_count_as_arrived() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1, ANOTHER)
    assert board.missing(FIRST) == [1]
    assert board.missing(ANOTHER) == [0]
    assert not board.is_complete(FIRST)
    assert board.messages(FIRST, (0, 1)) == {0: b"message of 0 at 1"}  # none from rank 1


def test_ranks_calling_different_operations_do_not_agree() -> None:
    board = Board(2)
    arrive(board, 0)
    arrive(board, 1, what=b"max")
    assert board.is_complete(FIRST)
    assert not board.is_agreed(FIRST)
    arrive(board, 0, SECOND)
    arrive(board, 1, SECOND)
    assert board.is_agreed(SECOND)


def test_oversized_message_is_refused() -> None:
    with pytest.raises(ValueError, match="A message of 65536 bytes does not fit on the board"):
        Board(1).arrive(0, FIRST, b"sum", bytes(1 << 16))


def test_payloads_stay_available_until_the_next_step_completes() -> None:
    board = Board(2)
    board.arrive(0, FIRST, b"sum", b"", [b"ab", memoryview(b"c")])
    board.arrive(1, FIRST, b"sum", b"", [b"d"])
    payloads = board.payloads(FIRST)
    arrive(board, 1, SECOND)
    assert {rank: bytes(payload) for rank, payload in payloads.items()} == {0: b"abc", 1: b"d"}


def test_bell_wakes_every_waiting_rank_once() -> None:
    boards = [Board(3)]
    boards += [copy.copy(boards[0]) for _ in range(2)]
    for board in boards:
        board.listen()
    arrive(boards[0], 0)
    arrive(boards[1], 1)
    assert not boards[0].wait(lambda: True, 0)
    threads = [
        threading.Thread(
            target=lambda board=board: awake.append(
                board.wait(lambda: not board.is_complete(FIRST), 60)
            )
        )
        for board in boards[:2]
    ]
    awake: list[bool] = []
    for thread in threads:
        thread.start()
    arrive(boards[2], 2)
    for thread in threads:
        thread.join()
    assert awake == [True, True]
    assert boards[2].wait(lambda: True, 0)
    assert not boards[2].wait(lambda: True, 0)
    for board in boards:
        board._ears.close()


@pytest.fixture
def pair():
    """The agreements of ranks 0 and 1 on one board."""
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


def test_bytes_sent_after_a_meeting_stay_in_the_inbox(pair, monkeypatch) -> None:
    """Rank 0 reads rank 1's stream just after rank 1 arrived and continued. The bytes that rank 1
    then sent may be anything, such as a rendezvous payload; these look like a farewell."""
    early, late = pair
    board = early._board
    sent = Frame(0, "", "", farewell=True).pack() + b"data"

    def wait(missing: object, seconds: float) -> bool:
        arrive(late._board, 1)
        late.mesh.streams[0].send(sent)
        return False

    monkeypatch.setattr(board, "wait", wait)
    monkeypatch.setattr(board, "is_agreed", lambda step: True)
    assert early.meet("all_reduce", range(2)) == {0: b"", 1: b""}
    assert early.mesh.streams[1].inbox == sent


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (Frame(0, "of its group", "line\t1"), "Rank 0 and rank 1 called different collectives"),
        (
            Frame(0, "raised KeyError", "", farewell=True),
            "Rank 1 raised KeyError while rank 0 was in all_reduce",
        ),
    ],
)
def test_second_frame_is_processed_when_read_together_with_the_first(pair, second, says) -> None:
    """Both frames are in the stream when rank 0 reads the first, as on a busy core."""
    early, late = pair
    first = Frame(0, "of its group", "line\t1")
    late.mesh.streams[0].send(first.pack() + second.pack())
    assert early._look(1, come=False, take=True) == first
    with pytest.raises(CollectiveMismatch, match=says):
        early.meet("all_reduce", range(2))


def test_ranks_learn_from_the_board_that_another_returned(pair) -> None:
    early, late = pair
    late.leave("returned")
    assert not early.mesh.streams[1].fill()  # no frame: with many ranks, sending them takes long
    with pytest.raises(CollectiveMismatch, match="Rank 1 returned while rank 0 was in all_reduce"):
        early.meet("all_reduce", range(2))


def test_return_from_an_earlier_program_does_not_count_for_later_ones() -> None:
    board = Board(2)
    board.returns(1, 3)
    assert [board.returned(number, range(2)) for number in (2, 3, 4)] == [{1}, {1}, set()]


def test_frames_sent_before_returning_take_precedence_over_the_return(pair) -> None:
    early, late = pair
    late.mesh.streams[0].send(Frame(0, "of its group", "line\t1").pack())
    late.leave("returned")
    with pytest.raises(CollectiveMismatch, match="Rank 0 and rank 1 called different collectives"):
        early.meet("all_reduce", range(2))


@pytest.mark.parametrize("has_come", [True, False])
def test_group_does_not_wait_for_a_returned_rank(pair, has_come) -> None:
    early, late = (
        Agreement(Mesh(n, 3, each.mesh.streams), Board(3)) for n, each in enumerate(pair)
    )
    late._board = early._board
    if has_come:
        late.mesh.streams[0].send(Frame(0, "sum", "line\t1").pack())
    late.leave("returned")
    if has_come:
        assert early.meet("sum", range(2)) == {0: b"", 1: b""}
    else:
        with pytest.raises(CollectiveMismatch, match="Rank 1 returned while rank 0 was in sum"):
            early.meet("sum", range(2))


def test_ranks_stay_in_step_after_two_interrupts_while_waiting(pair, monkeypatch) -> None:
    early, late = pair
    with monkeypatch.context() as patch:
        patch.setattr(early._board, "wait", interrupt)
        for number in (b"0", b"1"):
            with pytest.raises(KeyboardInterrupt):
                early.meet("rendezvous", range(2), [number])
    seen: list[dict[int, bytes]] = []

    def meet_all() -> None:
        for number in (b"0", b"1", b"2"):
            met = late.meet("rendezvous", range(2), [number])
            seen.append({rank: bytes(payload) for rank, payload in met.items()})

    thread = threading.Thread(target=meet_all)
    thread.start()
    assert early.meet("rendezvous", range(2), [b"2"]) == {0: b"2", 1: b"2"}
    thread.join()
    assert seen == [dict.fromkeys(range(2), number) for number in (b"0", b"1", b"2")]


def test_interrupt_in_a_group_ends_its_collectives(pair, monkeypatch) -> None:
    """The other rank's message would otherwise become that of the next collective."""
    early, late = (Agreement(each.mesh) for each in pair)
    with monkeypatch.context() as patch:
        patch.setattr(early.mesh, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            early.meet("sum", range(2), [b"0"])
    reason = "rank 0 raised KeyboardInterrupt during sum"
    assert late.meet("sum", range(2), [b"0"]) == {0: b"0", 1: b"0"}
    for agreement in (early, late):
        with pytest.raises(CollectiveMismatch, match=reason):
            agreement.meet("sum", range(2), [b"1"])


def interrupt(*_: object) -> bool:
    raise KeyboardInterrupt


def test_collective_in_a_child_process_is_refused(pair) -> None:
    pair[0]._owner = os.getppid()
    with pytest.raises(RuntimeError, match="A child process of rank 0 called all_reduce"):
        pair[0].meet("all_reduce", range(2))


@pytest.mark.parametrize(
    ("name", "says"),
    [(b"", None), (b"CollectiveMismatch", "rank 1 raised KeyError during all_gather")],
)
def test_confirm_raises_if_a_rank_failed_during_the_collective(pair, name, says) -> None:
    early, late = pair
    what = "rank 1 raised KeyError during all_gather" if says else "returned"
    late.mesh.streams[0].send(Frame(0, what, "", bytearray(name), farewell=True).pack())
    if says is None:
        early.confirm("all_reduce", [1])
    else:
        with pytest.raises(CollectiveMismatch, match=says):
            early.confirm("all_reduce", [1])


def test_rank_arrives_in_a_new_program_after_all_have_begun_it(pair) -> None:
    board = pair[0]._board
    ahead, behind = (Agreement(each.mesh, each._board, number=1) for each in pair)
    ahead.begin()
    assert board.behind(1) == [1]
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(ahead.meet("sum", range(2))))
    thread.start()
    while not (wait := ahead._waits.current) or wait.missing != (1,):
        thread.join(0.001)
    assert board.missing(ANOTHER) == [0, 1]  # rank 0 has not posted its message
    behind.begin()
    behind.meet("sum", range(2))
    thread.join()
    assert found == [{0: b"", 1: b""}]
