"""The channel of events between a run's processes and the notebook."""

import os
import resource
import socket

import pytest

from xla_nb.messages import channel, events


def test_events_arrive_in_order_before_the_end():
    ours, theirs = channel.pair()
    with ours, theirs:
        sender = channel.Sender(theirs)
        sender.send(events.Notice(text="one"))
        sender.send(events.Notice(text="two"))
        assert [event.text for event in channel.receive(ours)] == ["one", "two"]
        theirs.close()
        assert list(channel.receive(ours)) == [None]


def test_reading_an_empty_channel_does_not_block():
    ours, theirs = channel.pair()
    with ours, theirs:
        assert list(channel.receive(ours)) == []


def test_the_largest_event_arrives_whole():
    ours, theirs = channel.pair()
    with ours, theirs:
        text = "\U0001f600" * events.TEXT_LIMIT
        failure = events.RankFailed(rank=0, kind="E", message=text, text=text, place="p", where="w")
        channel.Sender(theirs).send(failure)
        assert next(channel.receive(ours)).text == text


def test_events_without_a_reader_are_dropped():
    ours, theirs = channel.pair()
    with theirs:
        ours.close()
        channel.Sender(theirs).send(events.Notice(text="anybody?"))


def test_the_last_message_of_one_that_has_died_with_something_unread_is_read():
    ours, theirs = channel.pair()
    with ours:
        theirs.send(b"done")
        ours.send(b"more to do")
        theirs.close()
        assert [channel.take(ours, 64)[0] for _ in range(3)] == [b"done", b"", b""]


@pytest.mark.parametrize(
    "data", [b"hello\n", b"\xff", b"7", b'{"event": "RankReady"}', b'{"event": 1}']
)
def test_what_is_not_an_event_is_named_and_the_next_one_arrives(data):
    ours, theirs = channel.pair()
    with ours, theirs:
        theirs.send(data)
        channel.Sender(theirs).send(events.Notice(text="next"))
        notice, event = channel.receive(ours)
        assert notice.text.startswith("A rank wrote ") and event.text == "next"


def test_events_of_several_processes_arrive_whole():
    ours, theirs = channel.pair()
    with ours, theirs:
        children = []
        for number in range(4):
            pid = os.fork()
            if pid == 0:
                sender = channel.Sender(theirs)
                for _ in range(50):
                    sender.send(events.Notice(text=str(number) * 1000, rank=number))
                os._exit(0)
            children.append(pid)
        theirs.close()
        received = []
        while None not in received:
            received.extend(channel.receive(ours))
        for pid in children:
            os.waitpid(pid, 0)
    texts = [event.text for event in received[:-1]]
    assert len(texts) == 200
    assert all(text == text[0] * 1000 for text in texts)


def test_ready_accepts_descriptors_beyond_selects_limit():
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
        pytest.skip("this machine allows fewer open files")
    one, other = socket.socketpair()
    high = os.dup2(one.fileno(), 1999)
    try:
        assert not channel.ready(high, 0)
        other.send(b"x")
        assert channel.ready(high, 10)
    finally:
        os.close(high)
        one.close()
        other.close()
