"""The channel of events between a run's processes and the notebook."""

import os
import resource

import pytest

from xla_nb.messages import channel, events


@pytest.fixture
def ends():
    ours, theirs = channel.pair()
    with ours, theirs:
        yield ours, theirs


def test_events_arrive_in_order_before_the_end_without_blocking_the_reader(ends):
    ours, theirs = ends
    assert list(channel.receive(ours)) == []
    sender = channel.Sender(theirs)
    sender.send(events.Notice(text="one"))
    sender.send(events.Notice(text="two"))
    assert [event.text for event in channel.receive(ours)] == ["one", "two"]
    theirs.close()
    assert list(channel.receive(ours)) == [None]


def test_largest_event_arrives_complete_and_events_without_a_reader_are_dropped(ends):
    ours, theirs = ends
    text = ("\U0001f600" * 999 + "\n") * (events.TEXT_LIMIT // 1000)
    failure = events.RankFailed(rank=0, kind="E", message=text, text=text, place="p", where="w")
    channel.Sender(theirs).send(failure)
    assert next(channel.receive(ours)).text == text
    ours.close()
    channel.Sender(theirs).send(events.Notice(text="anybody?"))


def test_last_message_of_a_dead_sender_with_unread_data_is_received(ends):
    ours, theirs = ends
    theirs.send(b"done")
    ours.send(b"more to do")
    theirs.close()
    assert [channel.take(ours, 64)[0] for _ in range(3)] == [b"done", b"", b""]


@pytest.mark.parametrize(
    "data", [b"hello\n", b"\xff", b"7", b'{"event": "RankReady"}', b'{"event": 1}']
)
def test_invalid_event_is_reported_and_the_next_one_arrives(ends, data):
    ours, theirs = ends
    theirs.send(data)
    channel.Sender(theirs).send(events.Notice(text="next"))
    notice, event = channel.receive(ours)
    assert notice.text.startswith("A rank wrote ") and event.text == "next"


def test_events_of_several_processes_arrive_complete(ends):
    ours, theirs = ends
    children = []
    for number in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            sender = channel.Sender(theirs)
            for _ in range(50):
                sender.send(events.Notice(text=str(number) * 1000, rank=number))
            os._exit(0)
    theirs.close()
    received = []
    while None not in received:
        received.extend(channel.receive(ours))
    for pid in children:
        os.waitpid(pid, 0)
    texts = [event.text for event in received[:-1]]
    assert len(texts) == 200
    assert all(text == text[0] * 1000 for text in texts)


def test_ready_accepts_descriptors_beyond_the_limit_of_select(ends):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
        pytest.skip("this machine allows fewer open files")
    high = os.dup2(ends[0].fileno(), 1999)
    try:
        assert not channel.ready(high, 0)
        ends[1].send(b"x")
        assert channel.ready(high, 10)
    finally:
        os.close(high)
