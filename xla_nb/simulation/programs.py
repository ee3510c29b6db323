"""Track the programs that a rank runs, one after another, and the threads of each."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import WeakSet

from xla_nb.simulation.agreement import Agreement, CollectiveMismatch
from xla_nb.simulation.board import Board
from xla_nb.simulation.mesh import Mesh
from xla_nb.simulation.waits import Waits


class Programs:
    """The programs of one rank. The first, number 0, has begun; each ends with `leave` or when the
    next one begins.

    A thread in the middle of a collective keeps the agreement with which it began, and fails at its
    next step.
    """

    def __init__(self, mesh: Mesh, board: Board | None = None) -> None:
        self.rank = mesh.rank
        self.size = mesh.size
        #: Held while meeting and moving data: one collective at a time.
        self.lock = threading.RLock()
        self.waits = Waits()
        self._mesh = mesh
        self._board = board
        self._agreement = Agreement(mesh, board, self.waits)
        self._old_threads: WeakSet[threading.Thread] = WeakSet()  # threads of earlier programs

    @property
    def agreement(self) -> Agreement:
        """The running program's agreement. Raises CollectiveMismatch in a thread of an earlier
        program."""
        thread = threading.current_thread()
        if thread in self._old_threads:
            raise CollectiveMismatch(
                f"Thread {thread.name!r} of rank {self.rank}, started in an earlier cell, "
                "called a collective. Join threads that call collectives before their cell ends."
            )
        return self._agreement

    def begin(self, number: int, members: Iterable[int] | None = None) -> None:
        """Begin program `number`, higher than the last one's and the same on all ranks that run it,
        which are `members` (default: all). Called in the thread that runs the program."""
        previous = self._agreement
        previous.leave("ended")
        current = threading.current_thread()
        # Threads not started by Python, such as autograd's, work for any program.
        threads = (thread for thread in threading.enumerate() if thread is not current)
        self._old_threads = WeakSet(t for t in threads if not isinstance(t, threading._DummyThread))
        self._agreement = Agreement(self._mesh, self._board, self.waits, number, members)
        self._agreement.begin()

    def leave(self, reason: str) -> None:
        """End the running program; see `Agreement.leave`."""
        self._agreement.leave(reason)
