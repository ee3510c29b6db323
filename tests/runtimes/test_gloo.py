"""Which sockets are shut down to break off what waits in gloo."""

import contextlib
import select
import socket

import pytest

from xla_nb.runtimes.gloo import Connections


@contextlib.contextmanager
def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        theirs.settimeout(30)
        with ours, theirs:
            yield ours, theirs


def test_only_connections_that_gloo_polls_are_shut_down():
    gloo = Connections()
    with connected() as (ours, theirs), connected() as (own, others):
        before, listener = select.epoll(), socket.create_server(("127.0.0.1", 0))
        before.register(own)
        with gloo.opening():
            poller = select.epoll()
        with before, poller, listener:
            poller.register(ours)
            poller.register(listener)
            gloo.cut()
            assert theirs.recv(1) == b""
            with pytest.raises(BrokenPipeError):
                ours.send(b"x")
            own.send(b"x")
            assert others.recv(1) == b"x"
            socket.create_connection(listener.getsockname()).close()
    assert gloo.is_cut


def test_nothing_is_cut_where_gloo_has_no_connection():
    gloo = Connections()
    with gloo.opening():
        poller = select.epoll()
    with poller:
        gloo.cut()
    assert not gloo.is_cut
