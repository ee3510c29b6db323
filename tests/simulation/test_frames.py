"""What is left in a stream of a meeting that was broken does no harm to later ones."""

from __future__ import annotations

import os
import socket

import pytest

from xla_nb.simulation.frames import Frame, next_frame
from xla_nb.simulation.mesh import Mesh, Stream

LARGE = 3_000_001  # bytes: more than sockets hold


@pytest.fixture
def pair():
    """The meshes of ranks 0 and 1."""
    ends = socket.socketpair()
    yield [Mesh(rank, 2, {1 - rank: Stream(1 - rank, ends[rank])}) for rank in (0, 1)]
    for end in ends:
        end.close()


@pytest.mark.parametrize("reads", [0, 3], ids=["nothing", "a part"])
def test_what_is_left_of_a_broken_meeting_is_skipped_in_the_next_program(pair, reads: int) -> None:
    first, second = pair
    first.streams[1].send(Frame(1, "all_reduce", "line\t1", os.urandom(LARGE)).pack())
    for _ in range(reads):
        second.streams[0].fill()
    frame = Frame(2, "all_reduce", "line\t1")
    first.streams[1].send(frame.pack())
    assert first.streams[1].is_sending  # the rest of the first is owed
    for _ in range(1000):
        first.streams[1].flush()
        if found := next_frame(second.streams[0], 2):
            break
    assert found == (frame, len(frame.pack()))


def test_what_a_later_program_sends_stays_for_it(pair) -> None:
    first, second = pair
    later = Frame(2, "all_reduce", "line\t1")
    first.streams[1].send(later.pack())
    assert next_frame(second.streams[0], 1) is None
    assert next_frame(second.streams[0], 2) == (later, len(later.pack()))
