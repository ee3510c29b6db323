"""The streams between hosts: ranks that find each other, whoever else calls."""

import contextlib
import socket
import threading

import pytest

from xla_nb.simulation import mesh

HERE = "127.0.0.1"
PATIENCE = 60.0  # seconds for what must come


class Store(dict):
    """Where ranks say their addresses; `get` waits for one."""

    def __init__(self):
        super().__init__()
        self.said = threading.Condition()

    def set(self, key, value):
        with self.said:
            self[key] = value.encode()
            self.said.notify_all()

    def get(self, key):
        with self.said:
            assert self.said.wait_for(lambda: key in self, PATIENCE)
            return self[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def connected(store):
    """connected(strangers) connects ranks 0 and 1 after what strangers say to rank 0; gives the
    stream of each to the other."""
    streams = []

    def connect(rank, remote):
        for stream in mesh.connect_hosts(store, HERE, rank, remote, PATIENCE).values():
            streams.append((rank, stream))

    def connected(*strangers):
        answering = threading.Thread(target=connect, args=(0, [1]))
        answering.start()
        host, port = store.get("mesh/0").decode().split()
        for said in strangers:
            callers.append(socket.create_connection((host, int(port)), PATIENCE))
            callers[-1].sendall(said)
            if said != SILENT:
                with contextlib.suppress(OSError):  # it may have been turned away by now
                    callers[-1].shutdown(socket.SHUT_WR)
        connect(1, [0])
        answering.join()
        assert sorted((rank, stream.rank) for rank, stream in streams) == [(0, 1), (1, 0)]
        return dict(streams)

    callers = []
    yield connected
    for sock in [*callers, *(stream.sock for _, stream in streams)]:
        sock.close()


SILENT = b""
PART = b"\1"
UNEXPECTED = (7).to_bytes(4, "little")


def test_ranks_of_two_hosts_are_connected(connected):
    found = connected()
    found[0].send(b"hello")
    assert found[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


@pytest.mark.parametrize("said", [PART, UNEXPECTED, b"GET / HTTP/1.1"])
def test_who_is_no_rank_that_is_expected_is_not_listened_to(connected, said):
    found = connected(said)
    found[0].send(b"hello")
    assert found[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


def test_who_says_nothing_holds_nobody_up(connected, monkeypatch):
    monkeypatch.setattr(mesh, "_GREETING", 0.01)
    found = connected(SILENT)
    found[0].send(b"hello")
    assert found[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


def test_a_rank_that_does_not_call_is_named(store):
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not call"):
        mesh.connect_hosts(store, HERE, 0, [1], 0.01)
