"""An engine that only records calls, and runs whose events come from a test's own socket."""

import os
import signal
import threading

import pytest

from tests.support.feed import Feed
from xla_nb.messages import channel, events
from xla_nb.pickling import results
from xla_nb.pickling.parcel import Parcel
from xla_nb.record import files
from xla_nb.run.options import Options
from xla_nb.run.run import Run
from xla_nb.runtimes.fit import fit_to_machine

PATIENCE = 60  # seconds to wait for expected events


class Engine:
    """An engine that records requests; `start` returns `sock`, or raises `refuses`."""

    here = False

    def __init__(self):
        self.interrupted, self.terminated, self.killed = [], [], []
        self.asked = threading.Condition()
        self.sock = self.job = self.refuses = self.request = self.fitted = None
        self.values, self.asked_where, self.files = {}, [], {}
        self.lost = ""
        self.by_host = []

    def fit(self, runtime, n, user_env):
        return fit_to_machine(runtime, n, user_env, dict(os.environ))

    def start(self, request, fit, parcel, waiting):
        waiting(0.5, "a server")
        self.values = Parcel(parcel).open()
        self.request, self.fitted = request, fit
        if self.refuses:
            raise self.refuses
        return Feed(self.sock, lambda: self.lost)

    def signal(self, run, pids, number):
        self.by_host.append(pids)
        where = self.interrupted if number == signal.SIGINT else self.terminated
        self._note(where, [pid for host in pids.values() for pid in host])

    def ask(self, run):
        self.asked_where.append(run)

    def kill(self, run):
        self._note(self.killed, run)

    def _note(self, where, what):
        with self.asked:
            where.append(what)
            self.asked.notify_all()

    def until(self, condition):
        with self.asked:
            assert self.asked.wait_for(condition, PATIENCE)


class Heard(Run):
    """A run that counts the events received from its job."""

    heard = 0

    def take(self, event):
        super().take(event)
        with self.changed:
            self.heard += not isinstance(event, events.StopRequested)
            self.changed.notify_all()


class Started:
    """A run whose job is the test: `says` sends events, `hangs_up` closes the socket."""

    def __init__(self, engine, **options):
        ours, self.theirs = channel.pair()
        self.run = a_run(engine, ours, **options)
        self.run.follow()

    def says(self, *happened):
        """Return when the run has received the events."""
        due = self.run.heard + len(happened)
        for event in happened:
            channel.Sender(self.theirs).send(event)
        with self.run.changed:
            assert self.run.changed.wait_for(lambda: self.run.heard == due, PATIENCE)

    def returns(self, rank, value):
        path = self.run.record.result(rank)
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        size = results.pack_home(value).write(fd)
        os.close(fd)
        self.says(events.RankFinished(rank=rank, preview=repr(value), nbytes=size))

    def ends(self, status=0):
        channel.Sender(self.theirs).send(events.JobEnded(status=status))
        assert self.run._ended.wait(PATIENCE)

    def hangs_up(self):
        self.theirs.close()


#: What the notebook sent with each of these runs.
DEFINITIONS = {}


def a_run(engine, sock=None, *, kind=Heard, group="", **options):
    where = files.Record.create("r1")
    feed = Feed(sock, lambda: engine.lost)
    about = "r1", "Cell In[3]", where, engine, feed, Options(**options), DEFINITIONS, group
    return kind(*about)


def recorded(run):
    lines = (run.record.path / "events.jsonl").read_bytes().splitlines()
    return [events.decode(line) for line in lines]


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def start(engine):
    """Start runs that end with the test."""
    made = []

    def start(*happened, **options):
        made.append(Started(engine, **options))
        if happened:
            made[-1].says(*happened)
        return made[-1]

    yield start
    for each in made:
        each.hangs_up()
        assert each.run._ended.wait(PATIENCE)


def ranks(count):
    return [
        events.JobStarted(host="h", ranks=count, simulated=True),
        *(events.RankStarted(rank=r, pid=100 + r, device=f"xla:{r}") for r in range(count)),
    ]


def on_hosts(*names):
    """Hosts with one rank each; process IDs are the same everywhere."""
    jobs = [
        events.JobStarted(host=name, ranks=1, simulated=True, first=number)
        for number, name in enumerate(names)
    ]
    begun = [
        events.RankStarted(rank=number, pid=100, device="xla:0", host=name)
        for number, name in enumerate(names)
    ]
    return [events.HostsPlaced(names=names), *jobs, *begun]


def failed(rank, message="boom"):
    return events.RankFailed(
        rank=rank,
        kind="ValueError",
        message=message,
        text=f"Traceback\nValueError: {message}",
        place="Cell In[3], line 2",
        where="w",
    )


def finished(rank):
    return events.RankFinished(rank=rank, preview="None", nbytes=1)
