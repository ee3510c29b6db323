"""Large values go over the streams in chunks, and what a broken swap leaves does no harm."""

from __future__ import annotations

import os
import socket

import pytest

from xla_nb.simulation.agreement import Agreement
from xla_nb.simulation.frames import Frame, next_frame
from xla_nb.simulation.mesh import Mesh, Stream
from xla_nb.simulation.swaps import Swap

LARGE = 3_000_001  # bytes: of several chunks, the last one short, and more than sockets hold


@pytest.fixture
def pair():
    """The meshes of ranks 0 and 1."""
    ends = socket.socketpair()
    yield [Mesh(rank, 2, {1 - rank: Stream(1 - rank, ends[rank])}) for rank in (0, 1)]
    for end in ends:
        end.close()


def both(*swaps: Swap) -> None:
    while any(swap.wanted for swap in swaps):
        assert sum(swap.move() for swap in swaps)


def receives(mesh: Mesh, program: int, size: int = LARGE) -> tuple[Swap, bytearray]:
    data = bytearray(size)
    return Swap(mesh, program, {}, {1 - mesh.rank: memoryview(data)}), data


def test_both_sides_send_and_receive_at_once(pair) -> None:
    sent = [memoryview(os.urandom(LARGE)) for _ in pair]
    into = [bytearray(LARGE) for _ in pair]
    both(
        *(
            Swap(mesh, 0, {1 - mesh.rank: sent[mesh.rank]}, {1 - mesh.rank: memoryview(data)})
            for mesh, data in zip(pair, into, strict=True)
        )
    )
    assert into == sent[::-1]


def test_nothing_is_waited_for_where_nothing_is_sent(pair) -> None:
    assert not Swap(pair[0], 0, {1: memoryview(b"")}, {1: memoryview(b"")}).wanted


@pytest.mark.parametrize("reads", [0, 1, 3], ids=["nothing", "a part", "more"])
def test_what_is_left_of_a_broken_swap_is_skipped_in_the_next_program(pair, reads: int) -> None:
    first, second = pair
    sending = Swap(first, 1, {1: memoryview(bytes(LARGE))}, {})
    receiving, _ = receives(second, 1)
    sending.move()
    for _ in range(reads):
        receiving.move()
        sending.move()
    frame = Frame(2, "all_reduce", "line\t1")
    first.streams[1].send(frame.pack())
    assert first.streams[1].is_sending or reads  # the rest of a chunk is owed
    for _ in range(1000):
        first.streams[1].flush()
        if found := next_frame(second.streams[0], 2):
            break
    assert found == (frame, len(frame.pack()))
    second.streams[0].drop(found[1])
    mine, theirs = receives(second, 2)
    sent = os.urandom(LARGE)
    both(Swap(first, 2, {1: memoryview(sent)}, {}), mine)
    assert theirs == sent


def test_a_word_of_the_sender_is_found_where_data_were_to_come(pair) -> None:
    first, second = pair
    receiving, _ = receives(second, 1)
    farewell = Frame(1, "raised KeyError", "", farewell=True)
    first.streams[1].send(farewell.pack())
    assert receiving.move() == 0
    assert next_frame(second.streams[0], 1, come=True) == (farewell, len(farewell.pack()))


def test_a_word_of_one_that_only_receives_is_heard(pair) -> None:
    first, second = pair
    sending = Swap(first, 1, {1: memoryview(bytes(LARGE))}, {})
    sending.move()
    farewell = Frame(1, "raised KeyError", "", farewell=True)
    second.streams[0].send(farewell.pack())
    sending.hear(first.poll(sending.wanted, 10))
    assert next_frame(first.streams[1], 1, come=True) == (farewell, len(farewell.pack()))


def test_what_a_later_program_sends_stays_for_it(pair) -> None:
    first, second = pair
    later = Frame(2, "all_reduce", "line\t1")
    first.streams[1].send(later.pack())
    assert next_frame(second.streams[0], 1) is None
    assert next_frame(second.streams[0], 2) == (later, len(later.pack()))


def test_a_rank_that_returns_as_soon_as_it_has_all_is_not_missed(pair, monkeypatch):
    """It does so before this one has read what it sent, let alone noted that it has all."""
    first, second = map(Agreement, pair)
    mine, theirs, push = bytearray(4), bytearray(4), Swap._push

    def push_and_let_the_other_return(swap, rank):
        sent = push(swap, rank)
        if sent and swap._mesh is first.mesh:
            second.swap("all_reduce", {0: memoryview(b"from")}, {0: memoryview(theirs)})
            second.leave("returned")
        return sent

    monkeypatch.setattr(Swap, "_push", push_and_let_the_other_return)
    first.swap("all_reduce", {1: memoryview(b"to B")}, {1: memoryview(mine)})
    assert (mine, theirs) == (b"from", b"to B")
