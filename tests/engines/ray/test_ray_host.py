"""A host without Ray: a test double of the engine, and the test plays the job.

(engines/ray/host.py; the simulation has a test_host.py already.)
"""

import os
import platform
import socket
import sys
import threading
from pathlib import Path

import pytest

from tests.support.feed import Feed
from xla_nb.engines.ray import host as host_module
from xla_nb.engines.ray.host import HostActor, Part
from xla_nb.errors import LaunchError
from xla_nb.messages import channel, events
from xla_nb.messages.orders import HostGroup, Order, Request
from xla_nb.process_state.random_state import Inheritance
from xla_nb.record import files as record_files

PATIENCE = 60  # seconds to wait for expected events


class Engine:
    """Record calls; `start` returns the reading end of a job's events."""

    def __init__(self):
        self.order = self.parcel = self.job = self.refuses = None
        self.signalled, self.killed = [], []
        self.during = lambda: None

    def start(self, request, fit, parcel, waiting, host_group):
        self.order = Order(request, fit.device, fit.ranks, fit.env, host_group)
        self.parcel = os.pread(parcel, 1 << 20, 0)
        self.during()
        if self.refuses:
            raise self.refuses
        ours, self.job = channel.pair()
        self.feed = Feed(ours)
        return self.feed

    def signal(self, run, pids, number):
        self.signalled.append((run, pids, number))

    def kill(self, run):
        self.killed.append(run)


class Job:
    """A run on a host as its client sees it; the test plays the job."""

    def __init__(self, host, engine):
        self.host, self.engine, self.seen = host, engine, 0

    @property
    def path(self):
        return Path(self.engine.order.request.record)

    def says(self, *happened):
        for event in happened:
            channel.Sender(self.engine.job).send(event)

    def writes(self, name, data=b"x"):
        with (self.path / name).open("ab") as file:
            file.write(data)

    def news(self, run="r1"):
        news = self.host.news(run, self.seen)
        self.seen = news.number
        return news

    def events(self):
        """The events of the next answer."""
        return [events.decode(event) for event in self.news().events]


def a_part(name="right", program=None, env=None, sets=None, group=None, **changes):
    fields = {
        "run": "r1",
        "runtime": "xla",
        "program": "/notebook/runs/r1/program/cell.py",
        "record": "/notebook/runs/r1",
        "entry": "f",
        "takes_lock": False,
        "n": 2,
        "user_env": {},
        "cwd": "/",
        "sys_path": (),
        "authkey": b"",
        "inheritance": Inheritance(),
        **changes,
    }
    group = group or HostGroup(2, 1, ("10.0.0.1", 1234))
    program = program or {"cell.py": b"x = 1"}
    return Part(name, Request(**fields), group, program, env or {}, sets or {})


@pytest.fixture(autouse=True)
def without_delays(monkeypatch):
    """Answer at once without news, and hide any TPU of the machine."""
    monkeypatch.setattr(host_module, "_LONGEST", 0.0)
    monkeypatch.setattr(host_module, "_PAUSE", 0.001)
    monkeypatch.setattr("xla_nb.engines.ray.host.count_chips", lambda: 0)
    monkeypatch.setattr("xla_nb.runtimes.fit.count_chips", lambda: 0)
    for name in ("PJRT_DEVICE", "XLA_USE_SPMD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engine():
    made = Engine()
    yield made
    if made.job is not None:
        made.job.close()


class Host(HostActor):
    """A host without Ray."""

    def __init__(self, engine, address="10.0.0.2"):
        self.address, self.node, self.environ, self.path = address, "abcdef", os.environ, sys.path
        self.begin(engine)


a_host = Host


@pytest.fixture
def host(engine):
    made = a_host(engine)
    yield made
    made.forget("r1")


@pytest.fixture
def start(host, engine):
    def start(*args, **changes):
        assert host.start(a_part(*args, **changes), b"values") == ""
        return Job(host, engine)

    return start


def finished(rank, **more):
    return events.RankFinished(rank=rank, preview="1", nbytes=1, **more)


def started(rank, pid):
    return events.RankStarted(rank=rank, pid=pid, device="xla:0")


# ---------------------------------------------------------------- description


def test_host_describes_itself(host, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "1")
    about = host.about()
    assert (about.address, about.node, about.chips) == ("10.0.0.2", "abcdef", 0)
    assert (about.python, about.version) == (platform.python_version(), host_module.version())
    assert about.environ["TPU_WORKER_ID"] == "3"
    assert about.environ["MEGASCALE_SLICE_ID"] == "1"
    assert "PATH" not in about.environ


def is_held(where):
    """Whether others cannot bind the port."""
    with socket.socket() as other:
        try:
            other.bind(where)
        except OSError:
            return True
    return False


@pytest.fixture
def here(engine):
    """A host with this machine's address."""
    made = a_host(engine, "127.0.0.1")
    yield made
    for run in ("r1", "r2"):
        made.forget(run)


def test_each_run_reserves_its_own_port(here):
    first, second = here.hold_port("r1"), here.hold_port("r2")
    assert first[0] == "127.0.0.1"
    assert first != second
    assert is_held(first)
    assert is_held(second)


def test_port_of_a_run_is_reserved_until_its_end(here, engine):
    first, second = here.hold_port("r1"), here.hold_port("r2")
    here.start(a_part(), b"")
    assert not here.news("r1", 0).over
    assert is_held(first)
    channel.Sender(engine.job).send(events.JobEnded(status=0))
    assert here.news("r1", 1).over
    assert not is_held(first)
    assert is_held(second)


# ---------------------------------------------------------------- starting


def test_program_is_written_to_a_record_on_the_host(start, engine):
    start(program={"cell.py": b"x = 1", "cell.json": b"{}"})
    path = Path(engine.order.request.record)
    assert path.parent == record_files.home() / "parts"
    assert path.name.startswith("r1-1-")
    assert engine.order.request.program == str(path / "program" / "cell.py")
    assert (path / "program" / "cell.py").read_bytes() == b"x = 1"
    assert (path / "program" / "cell.json").read_bytes() == b"{}"


def test_hosts_that_share_a_home_can_start_the_same_part(start, engine):
    first, second = start(), Job(a_host(other := Engine()), other)
    assert second.host.start(a_part(), b"") == ""
    assert first.path != second.path
    second.host.forget("r1")
    other.job.close()


def test_engine_gets_the_values_and_the_order(start, engine):
    start()
    assert engine.parcel == b"values"
    assert engine.order.host_group == HostGroup(2, 1, ("10.0.0.1", 1234))


def test_launch_is_fitted_to_the_host(start, engine):
    start(n=None, user_env={"MINE": "1"}, sets={"TPU_WORKER_ID": "1"})
    assert (engine.order.device, engine.order.ranks) == ("CPU", 4)
    assert engine.order.env["MINE"] == "1"
    assert engine.order.env["TPU_WORKER_ID"] == "1"


@pytest.mark.parametrize("cwd", ["/not/there", "/" + "x" * 300])
def test_ranks_start_in_the_home_folder_if_the_notebooks_folder_is_missing(start, engine, cwd):
    start(cwd=cwd)
    assert engine.order.request.cwd == str(Path.home())


def test_ranks_start_in_the_notebooks_folder_if_it_exists(start, engine, tmp_path):
    start(cwd=str(tmp_path))
    assert engine.order.request.cwd == str(tmp_path)


def test_launch_that_does_not_fit_is_rejected_with_the_reason(host):
    refused = host.start(a_part(user_env={"PJRT_DEVICE": "CUDA"}), b"")
    assert refused.startswith("PJRT_DEVICE=CUDA is not supported")
    assert not (record_files.home() / "parts").exists()


def test_launch_rejected_by_the_engine_leaves_a_closed_record(host, engine):
    engine.refuses = LaunchError("no torch_xla")
    assert host.start(a_part(), b"") == "no torch_xla"
    assert may_be_tidied(engine)


def may_be_tidied(engine):
    """Whether the record is of an ended run without an owner."""
    files = record_files.Record(Path(engine.order.request.record))
    return (files.path / "run.json").exists() and not files.is_owned


def test_launch_forgotten_while_starting_is_killed(host, engine):
    forgetting = threading.Thread(target=host.forget, args=("r1",))
    engine.during = forgetting.start
    assert host.start(a_part(), b"") == ""
    forgetting.join()
    assert engine.killed == ["r1"]
    assert is_closed(engine)


def is_closed(engine):
    """Whether the run's socket is closed and its record may be tidied away."""
    with pytest.raises(BrokenPipeError):
        engine.job.send(b"anybody there?")
    return may_be_tidied(engine)


def test_forgotten_run_is_killed_and_closed(start, engine):
    job = start()
    job.host.forget("r1")
    assert engine.killed == ["r1"]
    assert is_closed(engine)


def test_unknown_run_can_be_forgotten(host, engine):
    host.forget("r9")
    assert engine.killed == ["r9"]


# ---------------------------------------------------------------- order of news


def test_notices_come_before_the_ranks_events(start, monkeypatch):
    monkeypatch.setenv("XLA_USE_SPMD", "1")
    job = start()
    job.says(started(2, 100))
    (notice,), (rank,) = job.events(), job.events()
    assert "XLA_USE_SPMD" in notice.text
    assert rank.rank == 2


def test_events_name_their_host(start):
    job = start(name="right")
    begun = events.JobStarted(host="its-hostname", ranks=1, simulated=True, first=2)
    job.says(begun, started(2, 100), finished(7))
    job.writes("rank-7.result")
    assert [getattr(event, "host", None) for event in job.events()] == ["right", "right", None]


def test_output_is_sent_no_later_than_the_event_after_it(start):
    job = start()
    job.writes("rank-2.out", b"last words")
    job.says(events.RankStopped(rank=2))
    news = job.news()
    assert [piece.data for piece in news.files] == [b"last words"]
    assert len(news.events) == 1


@pytest.fixture
def in_two_parts(monkeypatch):
    """Make a result of more than 10 bytes need two answers."""
    monkeypatch.setattr(host_module, "LARGEST", 10)
    monkeypatch.setattr("xla_nb.engines.ray.files.LARGEST", 10)


def test_return_of_a_rank_is_sent_after_its_value(start, in_two_parts):
    job = start()
    job.writes("rank-2.result", b"0123456789abcdef")
    job.says(finished(2))
    first, second = job.news(), job.news()
    assert (first.events, first.files[0].data) == ([], b"0123456789")
    assert [events.decode(event).rank for event in second.events] == [2]
    assert second.files[0].data == b"abcdef"


def test_end_of_the_job_is_sent_last_after_all_output(start, in_two_parts):
    job = start()
    job.writes("rank-2.out", b"0123456789abcdef")
    job.says(events.RankStopped(rank=2), events.JobEnded(status=0))
    answers = [job.news()]
    while not answers[-1].over:
        answers.append(job.news())
    sent = [events.decode(event) for answer in answers for event in answer.events]
    assert [type(event).__name__ for event in sent] == ["RankStopped", "JobEnded"]
    assert (sent[-1].status, sent[-1].host) == (0, "right")
    assert b"".join(piece.data for answer in answers for piece in answer.files) == (
        b"0123456789abcdef"
    )


def test_job_that_closes_its_socket_has_ended(start, engine):
    job = start()
    engine.job.close()
    news = job.news()
    (ended,) = map(events.decode, news.events)
    assert (ended.status, ended.host, news.over) == (None, "right", True)


def test_unfinished_last_line_of_a_job_is_sent(start):
    job = start()
    job.writes("job.err", b"Segmentation fault")
    job.says(events.JobEnded(status=-11))
    assert [piece.data for piece in job.news().files] == [b"Segmentation fault"]


def test_ended_run_has_a_closed_record_and_no_socket(start, engine):
    job = start()
    job.says(events.JobEnded(status=0))
    assert job.news().over
    assert is_closed(engine)


# ---------------------------------------------------------------- lost answers


def test_lost_answer_is_sent_again(start):
    job = start()
    job.writes("rank-2.out", b"printed")
    job.says(started(2, 100))
    lost = job.host.news("r1", 0)
    assert job.host.news("r1", 0) == lost
    assert job.news() == lost
    assert job.news().events == []


def test_lost_last_answer_is_sent_again(start):
    job = start()
    job.says(events.JobEnded(status=0))
    lost = job.host.news("r1", 0)
    assert lost.over
    assert job.news() == lost


def test_answer_waits_for_news(start, monkeypatch):
    monkeypatch.setattr(host_module, "_LONGEST", PATIENCE)
    job = start()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(job.news()))
    asking.start()
    job.says(started(2, 100))
    asking.join()
    assert [events.decode(event).rank for event in answers[0].events] == [2]


def test_empty_answer_is_sent_without_news(start):
    job = start()
    news = job.news()
    assert (news.number, news.events, news.files, news.over) == (1, [], [], False)


# ---------------------------------------------------------------- control


def test_signals_and_kill_go_to_the_engine(start, engine):
    job = start()
    job.host.signal("r1", [100, 101], 15)
    job.host.kill("r1")
    assert engine.signalled == [("r1", {"": [100, 101]}, 15)]
    assert engine.killed == ["r1"]


def test_stacks_are_requested_through_the_record(start):
    job = start()
    job.host.ask("r1")
    assert (job.path / "stacks").read_bytes() == b""  # one write: two would be two requests


def test_first_host_learns_through_its_record_that_it_is_alone(start):
    job = start()
    job.host.alone("r1")
    assert (job.path / "alone").exists()


# ---------------------------------------------------------------- reading files


# ---------------------------------------------------------------- environment and path


def test_env_passes_any_variable_to_ranks(start, engine):
    start(user_env={"LD_LIBRARY_PATH": "/mine"})
    assert engine.order.env["LD_LIBRARY_PATH"] == "/mine"


def test_existing_folders_of_the_notebook_come_first_on_the_path(tmp_path):
    notebooks = ["", "/not/there", "/" + "x" * 300, str(tmp_path)]
    path = host_module._path(notebooks, ["/own", str(tmp_path)])
    assert path == ("", str(tmp_path), "/own")
