"""The local address used to reach a peer, and reserved ports."""

import errno
import socket

import pytest

from xla_nb.topology import addresses


@pytest.fixture
def held():
    with addresses.hold_port("127.0.0.1") as made:
        yield made


def connect(address):
    with socket.create_connection(address):
        return True


def test_own_address_for_a_local_peer_is_the_loopback_address():
    assert addresses.own_address(("127.0.0.1", 9)) == "127.0.0.1"


def test_reserved_port_does_not_listen(held):
    with pytest.raises(ConnectionRefusedError):
        connect(held.getsockname())


def test_service_with_reuse_port_can_bind_a_reserved_port(held):
    with socket.create_server(held.getsockname(), reuse_port=True):
        assert connect(held.getsockname())


def test_reserved_port_cannot_be_bound_without_reuse_port(held):
    with pytest.raises(OSError) as caught, socket.socket() as other:
        other.bind(held.getsockname())
    assert caught.value.errno == errno.EADDRINUSE


def test_chosen_port_can_be_reserved(held):
    with addresses.hold_port(*held.getsockname()) as second:
        assert second.getsockname() == held.getsockname()


def test_reserving_a_port_in_use_raises():
    with socket.create_server(("127.0.0.1", 0)) as theirs, pytest.raises(OSError) as caught:
        addresses.hold_port(*theirs.getsockname())
    assert caught.value.errno == errno.EADDRINUSE
