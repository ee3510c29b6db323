"""Streams between ranks lose no data; hosts connect to each other and reject strangers."""

import contextlib
import signal
import socket
import threading

import pytest

from xla_nb.simulation import mesh

HERE = "127.0.0.1"
PATIENCE = 60.0  # timeout in seconds


class Store(dict):
    """A store of ranks' addresses; `get` waits until a key is set."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            self[key] = value.encode()
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self, PATIENCE)
            return self[key]


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def connected(store):
    """connected(*greetings) connects ranks 0 and 1 after strangers sent rank 0 these greetings;
    returns the stream of each rank to the other."""
    streams = []

    def connect(rank, remote):
        for stream in mesh.connect_hosts(store, HERE, rank, remote, PATIENCE).values():
            streams.append((rank, stream))

    def connected(*greetings):
        answering = threading.Thread(target=connect, args=(0, [1]))
        answering.start()
        host, port = store.get("mesh/0").decode().split()
        for greeting in greetings:
            strangers.append(socket.create_connection((host, int(port)), PATIENCE))
            strangers[-1].sendall(greeting)
            if greeting != SILENT:
                with contextlib.suppress(OSError):  # it may be rejected already
                    strangers[-1].shutdown(socket.SHUT_WR)
        connect(1, [0])
        answering.join()
        assert sorted((rank, stream.rank) for rank, stream in streams) == [(0, 1), (1, 0)]
        return dict(streams)

    strangers = []
    yield connected
    for sock in [*strangers, *(stream.sock for _, stream in streams)]:
        sock.close()


SILENT = b""
PART = b"\1"
UNEXPECTED = (7).to_bytes(4, "little")


def test_ranks_of_two_hosts_connect(connected):
    streams = connected()
    streams[0].send(b"hello")
    assert streams[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


@pytest.mark.parametrize("greeting", [PART, UNEXPECTED, b"GET / HTTP/1.1"])
def test_strangers_are_rejected(connected, greeting):
    streams = connected(greeting)
    streams[0].send(b"hello")
    assert streams[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


def test_silent_stranger_does_not_block_ranks(connected, monkeypatch):
    monkeypatch.setattr(mesh, "_GREETING", 0.01)
    streams = connected(SILENT)
    streams[0].send(b"hello")
    assert streams[1].sock.recv(5, socket.MSG_WAITALL) == b"hello"


def test_error_names_a_rank_that_does_not_connect(store):
    with pytest.raises(TimeoutError, match=r"rank 1 did not connect within 0\.01 s"):
        mesh.connect_hosts(store, HERE, 0, [1], 0.01)


# ---------------------------------------------------------------- streams


@pytest.fixture
def joined():
    """A stream to rank 1, and rank 1's to rank 0."""
    ends = socket.socketpair()
    yield mesh.Stream(1, ends[0]), mesh.Stream(0, ends[1])
    for end in ends:
        end.close()


def test_unsent_bytes_are_sent_before_later_messages(joined):
    here, there = joined
    here.send(bytes(1_000_000) + b"first")
    assert here.is_sending
    here.send(b"second")
    while there.inbox[1_000_000:] != b"firstsecond":
        here.flush()
        there.fill()
    assert not here.is_sending


def test_interrupts_neither_lose_nor_repeat_messages(joined):
    """Each message arrives once and whole, except one interrupted before it began."""
    here, there = joined
    messages = iter([number.to_bytes(4, "big") * 1000 for number in range(5000)])
    with interrupted_often() as interrupts:
        while True:
            try:
                for message in messages:
                    here.send(message)
                    there.fill()
                break
            except KeyboardInterrupt:
                interrupts.append(1)
    here.send(b"end")
    while not there.inbox.endswith(b"end"):
        here.flush()
        there.fill()
    got = there.inbox[:-3]
    numbers = [int.from_bytes(got[start : start + 4], "big") for start in range(0, len(got), 4000)]
    assert got == b"".join(number.to_bytes(4, "big") * 1000 for number in numbers)
    assert len(interrupts) > 10
    assert len(numbers) + len(interrupts) >= 5000
    assert numbers == sorted(set(numbers))


@contextlib.contextmanager
def interrupted_often():
    """Raise KeyboardInterrupt at random points of the stream's code."""

    def interrupt(_, frame):
        if frame.f_code.co_filename == mesh.__file__:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        yield []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
