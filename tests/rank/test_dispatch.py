"""The job of live ranks hands programs to all ranks that have opened their lines."""

import os
import pickle
import signal
import socket
from types import SimpleNamespace

from xla_nb.engines.child import in_memory
from xla_nb.messages import channel, events
from xla_nb.messages.orders import Turn
from xla_nb.rank.dispatch import Dispatcher

RANKS = 3


def rank(dispatcher, number, connected):
    """Opens the line of a rank, and ends when it is told to."""
    signal.alarm(60)  # where it is never told
    line = dispatcher.connect(number)
    os.write(connected, b".")
    os._exit(0 if line.next() is None else 1)


def job(notebook, control):
    """Has the notebook end ranks that have only just connected; exits with 0 if all end."""
    dispatcher = Dispatcher(control)
    reader, writer = os.pipe()
    pids = [os.fork() or rank(dispatcher, number, writer) for number in range(RANKS)]
    for _ in pids:
        os.read(reader, 1)
    notebook.shutdown(socket.SHUT_WR)
    dispatcher.serve(0, True)
    os._exit(max(os.waitpid(pid, 0)[1] for pid in pids) and 1)


def test_ranks_are_told_to_end_that_have_only_just_opened_their_lines():
    notebook, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with notebook, control:
        pid = os.fork() or job(notebook, control)
        assert os.waitpid(pid, 0)[1] == 0


def bereaved(control):
    """A job whose only rank has died."""
    dispatcher = Dispatcher(control)
    reader, writer = os.pipe()
    pid = os.fork() or rank(dispatcher, 0, writer)
    os.read(reader, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    dispatcher.died(events.ProcessDied(pid=pid, status=-signal.SIGKILL))
    dispatcher.serve(0, True)
    signal.pause()


def test_a_program_for_a_rank_that_has_died_before_it_came_is_told_how():
    order = SimpleNamespace(request=SimpleNamespace(turn=Turn("group", 1)))
    (notebook, control), (ours, theirs) = channel.pair(), channel.pair()
    with notebook, control, ours, theirs, in_memory(pickle.dumps(order)) as file:
        pid = os.fork() or bereaved(control)
        try:
            socket.send_fds(notebook, [b"null"], [theirs.fileno(), file, file])
            told = []
            while not told or not isinstance(told[-1], events.JobEnded):
                assert channel.ready(ours, 60)
                told += channel.receive(ours)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    began, death, _ = told
    assert (began.members, began.pids) == ((0,), (death.pid,))
    assert death.status == -signal.SIGKILL
