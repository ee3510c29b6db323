"""The job of live ranks hands programs to all ranks that have opened their lines."""

import os
import signal
import socket

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
