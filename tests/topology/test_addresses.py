"""Addresses and ports, found without a word on the network."""

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


def test_towards_this_machine_the_address_is_its_own():
    assert addresses.own_address(("127.0.0.1", 9)) == "127.0.0.1"


def test_a_port_that_is_held_serves_nothing(held):
    with pytest.raises(ConnectionRefusedError):
        connect(held.getsockname())


def test_a_service_of_ours_can_have_a_port_that_is_held(held):
    with socket.create_server(held.getsockname(), reuse_port=True):
        assert connect(held.getsockname())


def test_others_cannot_have_a_port_that_is_held(held):
    with pytest.raises(OSError) as caught, socket.socket() as other:
        other.bind(held.getsockname())
    assert caught.value.errno == errno.EADDRINUSE


def test_a_port_can_be_named(held):
    with addresses.hold_port(*held.getsockname()) as second:
        assert second.getsockname() == held.getsockname()


def test_a_port_that_cannot_be_had_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as theirs, pytest.raises(OSError) as caught:
        addresses.hold_port(*theirs.getsockname())
    assert caught.value.errno == errno.EADDRINUSE
