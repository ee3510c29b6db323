"""Programs sent to live ranks over their sockets, and followed until all their ranks have left."""

import os
import signal
import socket
from types import SimpleNamespace

import pytest

from xla_nb.engines.local import LiveFeed, LiveRanks
from xla_nb.errors import LaunchError
from xla_nb.messages import channel, events
from xla_nb.messages.channel import Sender
from xla_nb.messages.orders import Turn
from xla_nb.rank.process import connect


class Job:
    """Live ranks in this process: `sender` is the job's, `lines` are the ranks' ends."""

    def __init__(self, ranks):
        self.pidfd = os.pidfd_open(os.getpid())
        self.child = SimpleNamespace(pidfd=self.pidfd)
        ours, self.theirs = channel.pair()
        self.feed = LiveFeed(ours, self.child, lambda: "it was ended")
        control, self.control = channel.pair()
        self.live = LiveRanks(control, self.child, None, self.feed)
        self.sender = Sender(self.theirs)
        self.tell(events.JobStarted(host="h", ranks=ranks, simulated=True))
        self.lines = [connect(self.control, rank) for rank in range(ranks)]
        for rank in range(ranks):
            self.tell(events.RankStarted(rank=rank, pid=os.getpid(), device="xla:0"))

    def tell(self, event):
        self.sender.send(event)
        return list(self.feed.wait(0))

    def hand(self, turn):
        file = os.open(os.devnull, os.O_RDONLY)
        try:
            return self.live.hand(turn, file, file)
        finally:
            os.close(file)

    def end(self):
        live, self.live = self.live, None
        live.close()

    def close(self):
        if self.live:
            self.end()
        self.feed.close()
        for one in (self.theirs, self.control, *self.lines):
            one.close()
        os.close(self.pidfd)


@pytest.fixture
def job():
    made = []

    def start(ranks):
        made.append(Job(ranks))
        return made[-1]

    yield start
    for each in made:
        each.close()


def taken(line):
    """The events' socket of the next program, as a rank gets it."""
    message, fds = channel.take(line, 16, 3)
    assert message
    for file in fds[1:]:
        os.close(file)
    return Sender(socket.socket(fileno=fds[0]))


def kinds(feed):
    return [type(event).__name__ for event in feed.wait(0)]


def test_program_is_over_once_all_its_ranks_have_left(job):
    started = job(3)
    program = started.hand(Turn("group", 1, (0, 2)))
    ranks = [taken(line) for line in started.lines]
    (began,) = program.wait(0)
    assert ([one.rank for one in began.live], began.simulated) == ([0, 2], True)
    ranks[0].send(events.RankLeft(rank=0))
    assert kinds(program) == []
    ranks[2].send(events.RankFinished(rank=2, preview="", nbytes=0))
    ranks[2].send(events.RankLeft(rank=2))
    assert kinds(program) == ["RankFinished", "JobEnded"]
    program.close()
    for rank in ranks:
        rank.sock.close()


def test_program_receives_only_deaths_of_its_own_ranks(job):
    started = job(1)
    program = started.hand(Turn("group", 1))
    assert kinds(program) == ["JobStarted"]
    started.tell(events.ProcessDied(pid=os.getpid() + 1, status=-9))
    assert kinds(program) == []
    started.tell(events.ProcessDied(pid=os.getpid(), status=-9))
    assert kinds(program) == ["ProcessDied", "JobEnded"]
    program.close()


def test_program_for_a_dead_rank_receives_the_death(job):
    started = job(1)
    started.tell(events.ProcessDied(pid=os.getpid(), status=-signal.SIGKILL))
    program = started.hand(Turn("group", 1))
    _, death, end = program.wait(0)
    assert death.status == -signal.SIGKILL
    assert isinstance(end, events.JobEnded)
    program.close()


def test_program_ends_with_the_job_of_its_ranks(job):
    started = job(1)
    program = started.hand(Turn("group", 1))
    taken(started.lines[0]).sock.close()
    started.tell(events.JobEnded(status=-9))
    assert kinds(program) == ["JobStarted", "NoneType"]
    assert "SIGKILL" in program.why_ended()
    program.close()
    with pytest.raises(LaunchError, match="have ended"):
        started.hand(Turn("group", 2))


def test_ranks_that_have_just_connected_receive_the_end(job):
    started = job(2)
    started.end()
    assert [channel.take(line, 16) for line in started.lines] == [(b"", [])] * 2


def test_rank_that_connects_after_the_end_receives_it(job):
    started = job(0)
    started.end()
    started.lines.append(connect(started.control, 0))
    assert channel.take(started.lines[0], 16) == (b"", [])


def test_program_is_rejected_if_a_busy_rank_has_too_many_unread(job):
    started = job(2)
    with pytest.raises(LaunchError, match="Rank 1 is busy and has not yet read"):
        for number in range(100_000):
            started.hand(Turn("group", number, (0,))).close()
            taken(started.lines[0]).sock.close()
