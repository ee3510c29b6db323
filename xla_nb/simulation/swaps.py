"""Large values of ranks that have met for it, over the streams: chunks of data, each a message.

So what is left of a swap that was broken is told from what comes after it, and a sender owes less
than a chunk.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Mapping

from xla_nb.simulation.frames import data, enter_data
from xla_nb.simulation.mesh import Mesh

_CHUNK = 1 << 18  # bytes


class Swap:
    """What this rank sends to and receives from several ranks at once.

    Views are flat bytes of sizes that both sides know.
    """

    def __init__(
        self,
        mesh: Mesh,
        program: int,
        outgoing: Mapping[int, memoryview],
        incoming: Mapping[int, memoryview],
    ) -> None:
        self._mesh = mesh
        self._program = program
        self._out = {rank: view for rank, view in outgoing.items() if len(view)}
        self._into = {rank: view for rank, view in incoming.items() if len(view)}
        self._left = dict.fromkeys(self._into, 0)  # bytes of the chunk that is being received

    @property
    def wanted(self) -> dict[int, int]:
        """The ranks that this one waits for, and what `Mesh.poll` is to wait for: words of a rank
        that only receives, too."""
        ready = dict.fromkeys(self._into, select.POLLIN)
        return ready | dict.fromkeys(self._out, select.POLLIN | select.POLLOUT)

    def hear(self, ready: Iterable[int]) -> None:
        """Read what those say of them that only receive."""
        for rank in ready:
            if rank not in self._into:
                self._mesh.streams[rank].fill()

    def move(self) -> int:
        """Send and receive what is possible now; returns the number of bytes. Raises
        StreamClosed."""
        return sum(map(self._push, [*self._out])) + sum(map(self._pull, [*self._into]))

    def _push(self, rank: int) -> int:
        stream, view = self._mesh.streams[rank], self._out[rank]
        if not stream.flush():
            return 0
        if not len(view):
            del self._out[rank]
            return 0
        stream.send(*data(self._program, view[:_CHUNK]))
        self._out[rank] = view[_CHUNK:]
        return len(view) - len(self._out[rank])

    def _pull(self, rank: int) -> int:
        stream, view = self._mesh.streams[rank], self._into[rank]
        if self._left[rank]:
            count = stream.pull(view)
            self._left[rank] -= count
        elif chunk := enter_data(stream, self._program):
            begun, self._left[rank] = chunk
            count = len(begun)
            view[:count] = begun
        else:
            return 0
        self._into[rank] = view[count:]
        if not len(self._into[rank]):
            del self._into[rank]
        return count
