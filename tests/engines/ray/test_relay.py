"""A run on doubles of hosts: started on all of them, followed, and its files fetched."""

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass, replace

import pytest

from tests.engines.ray import ray_double
from tests.engines.ray.ray_double import Actor, a_group, a_launch, a_wish, ready
from xla_nb.engines.local import NO_GROUP
from xla_nb.engines.ray import engine
from xla_nb.engines.ray import relay as relay_module
from xla_nb.engines.ray.cluster import ActorGroup
from xla_nb.engines.ray.outbox import FileChunk
from xla_nb.engines.ray.relay import HostGone, Relay
from xla_nb.errors import LaunchError
from xla_nb.protocol import channel, events
from xla_nb.protocol.order import HostGroup, Turn

PATIENCE = 60  # seconds for what must come


@pytest.fixture
def ray(monkeypatch):
    return ray_double.installed(monkeypatch)


# ---------------------------------------------------------------- followed


@dataclass
class Followed:
    """A run started on hosts, and the socket at which its events arrive."""

    relay: Relay
    group: ActorGroup
    hosts: list[Actor]
    sock: socket.socket

    def arrived(self):
        return list(channel.receive(self.sock))


@pytest.fixture
def follow(ray, tmp_path):
    """follow(count, work) runs `work(followed)` while a run on so many hosts is followed."""

    def follow(count, work):
        async def followed():
            ours, theirs = channel.pair()
            with ours, theirs:
                theirs.setblocking(False)
                hosts = [Actor() for _ in range(count)]
                group = a_group(*hosts)
                run = Followed(Relay(a_launch(tmp_path, theirs), group), group, hosts, ours)
                run.relay._seats = list(range(count))
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(run.relay.follow(), work(run))
                return run, run.arrived()

        return asyncio.run(followed())

    return follow


def printed(text):
    return [FileChunk("rank-0.out", "append", text)]


def test_a_run_is_followed_until_every_hosts_last_answer(follow, tmp_path):
    async def work(run):
        run.hosts[0].has(1, events.Notice(text="a"), files=printed(b"one\n"))
        run.hosts[0].has(2, events.JobEnded(status=0, host="m0"), over=True)
        run.hosts[1].has(1, events.JobEnded(status=0, host="m1"), over=True)

    run, arrived = follow(2, work)
    assert arrived[0].names == ("m0", "m1")
    assert sorted(type(event).__name__ for event in arrived[1:]) == [
        "JobEnded",
        "JobEnded",
        "Notice",
    ]
    assert (tmp_path / "rank-0.out").read_bytes() == b"one\n"
    assert [call for call in run.hosts[0].told if call[0] == "news"] == [
        ("news", "r1", 0),
        ("news", "r1", 1),
    ]


def test_the_first_host_is_told_when_the_others_have_ended(follow):
    async def work(run):
        for host in run.hosts[1:]:
            host.has(1, over=True)
        while ("alone", "r1") not in run.hosts[0].told:
            await asyncio.sleep(0)
        run.hosts[0].has(1, over=True)

    run, _ = follow(3, work)
    assert not any(("alone", "r1") in host.told for host in run.hosts[1:])


def began(rank):
    return events.RankStarted(rank=rank, local_rank=0, pid=1, device="", host=f"m{rank}")


async def program(run, members):
    """Hand a program to the run's live ranks."""
    parcel = os.memfd_create("parcel")
    launch = a_launch("/r", run.sock, parcel, run="cell")
    launch.request = replace(launch.request, turn=Turn("r1", 1, members))
    try:
        await Relay(launch, run.group, run.relay).start(launch)
    finally:
        os.close(parcel)


@pytest.mark.parametrize("over", [True, False], ids=["known", "told by the host"])
def test_a_program_goes_to_live_ranks_of_the_other_hosts_where_all_of_one_have_died(follow, over):
    async def work(run):
        run.hosts[0].has(1, began(0))
        run.hosts[1].has(1, began(1), over=over)
        run.hosts[1].says = {} if over else {"start": lambda *args: NO_GROUP}
        while len(run.relay._ranks) < 2 or len(run.relay._over) < over:
            await asyncio.sleep(0)
        await program(run, (0,))
        with pytest.raises(LaunchError, match="have ended"):
            await program(run, None)
        run.hosts[0].has(2, over=True)
        if not over:
            run.hosts[1].has(2, over=True)

    run, _ = follow(2, work)
    asked = [[call[0] for call in host.told].count("start") for host in run.hosts]
    assert asked == ([1, 0] if over else [2, 2])


def test_a_dead_host_is_reported_lost_and_the_others_continue(follow):
    async def work(run):
        run.hosts[0].fails(RuntimeError("The actor died because its node has died."))
        run.hosts[1].has(1, events.Notice(text="still here"), over=True)

    run, arrived = follow(2, work)
    (lost,) = [event for event in arrived if isinstance(event, events.HostLost)]
    assert (lost.host, lost.why) == ("m0", "its node died")
    assert [event.text for event in arrived if isinstance(event, events.Notice)] == ["still here"]
    assert run.group.broken


def test_a_briefly_unreachable_host_is_asked_again(follow):
    async def work(run):
        run.hosts[0].fails(ConnectionError("unavailable"))
        run.hosts[0].has(1, events.Notice(text="back"), over=True)

    run, arrived = follow(1, work)
    assert [event.text for event in arrived[1:]] == ["back"]
    assert not run.group.broken


def test_a_host_that_stays_unreachable_is_lost(follow, monkeypatch):
    monkeypatch.setattr(relay_module, "_LOST", 0.0)

    async def work(run):
        for _ in range(2):
            run.hosts[0].fails(ConnectionError("it is unavailable"))

    _, arrived = follow(1, work)
    assert [event.why for event in arrived[1:]] == ["it is no longer reachable"]


def test_a_host_that_does_not_answer_is_lost(follow, monkeypatch):
    monkeypatch.setattr(relay_module, "_SILENT", 0.01)

    async def work(run):
        return

    run, (_, lost) = follow(1, work)
    assert (lost.host, lost.why) == ("m0", "it did not answer for half a minute")
    assert run.group.broken


def test_a_run_without_a_listener_is_forgotten(follow):
    async def work(run):
        run.sock.shutdown(socket.SHUT_RDWR)
        run.hosts[0].has(1, events.Notice(text="anybody there?"))

    run, _ = follow(2, work)
    assert all(host.told[-1] == ("forget", "r1") for host in run.hosts)
    assert not run.group.broken


def test_a_full_disk_on_the_notebooks_machine_ends_the_run_without_losing_hosts(follow, tmp_path):
    (tmp_path / "rank-0.result").symlink_to("/dev/full")

    async def work(run):
        run.hosts[0].has(1, files=[FileChunk("rank-0.result", "append", b"x")])

    run, (_, notice) = follow(2, work)
    assert f"on the notebook's machine, in {tmp_path}" in notice.text
    assert all(host.told[-1] == ("forget", "r1") for host in run.hosts)
    assert not run.group.broken


def test_output_that_does_not_fit_on_the_notebooks_machine_is_told_and_the_run_goes_on(
    follow, tmp_path
):
    (tmp_path / "rank-0.out").symlink_to("/dev/full")

    async def work(run):
        for host in run.hosts:
            host.has(1, files=printed(b"one\n"))
            host.has(2, events.Notice(text="still here"), over=True)

    _, arrived = follow(2, work)
    texts = [event.text for event in arrived if isinstance(event, events.Notice)]
    assert texts.count("still here") == 2
    assert len([text for text in texts if "No space left" in text]) == 1


def test_no_event_is_lost_if_the_notebook_reads_slowly(follow):
    """All hosts then wait for the same socket."""
    many = [events.Notice(text="x" * 1000) for _ in range(300)]

    async def work(run):
        for host in run.hosts:
            host.has(1, *many, over=True)
        while channel.ready(run.sock, 0) and not all(host.answers.empty() for host in run.hosts):
            await asyncio.sleep(0)
        received = 0
        while received < 900:
            for event in run.arrived():
                received += isinstance(event, events.Notice)
            await asyncio.sleep(0)

    follow(3, work)


# ---------------------------------------------------------------- start and files


@pytest.fixture
def start(ray, tmp_path):
    """start(host, ...) starts a run on these hosts and returns its relay; start.group is theirs."""

    def start(*hosts, wish=None):
        async def started():
            start.group = a_group(*hosts)
            fd = os.memfd_create("parcel")
            os.write(fd, b"values")
            launch = a_launch(tmp_path, parcel=fd, wish=wish)
            relay = Relay(launch, start.group)
            try:
                await relay.start(launch)
            finally:
                os.close(fd)
            return relay

        return asyncio.run(started())

    return start


def test_each_host_gets_its_part_of_a_run(start):
    left, right = ready(), ready()
    start(left, right)
    parts = [(part, parcel) for host in (left, right) for _, part, parcel in host.told[-1:]]
    assert [parcel for _, parcel in parts] == [b"values", b"values"]
    assert [part.name for part, _ in parts] == ["m0", "m1"]
    assert [part.host_group for part, _ in parts] == [
        HostGroup(2, number, ("10.0.0.0", 1234)) for number in range(2)
    ]


def test_the_only_host_reserves_no_port(start):
    host = ready()
    start(host)
    assert [name for name, *_ in host.told] == ["start"]
    assert host.told[0][1].host_group == HostGroup()


def test_each_host_gets_the_variables_of_its_seat(start):
    hosts = ready(), ready()
    start(*hosts, wish=a_wish(2, slices=2))
    sets = [host.told[-1][1].sets for host in hosts]
    assert [(each["MEGASCALE_SLICE_ID"], each["TPU_WORKER_ID"]) for each in sets] == [
        ("0", "0"),
        ("1", "0"),
    ]


def test_hosts_are_not_fresh_after_a_run_was_started(start):
    start(ready())
    assert not start.group.fresh


def test_one_hosts_refusal_names_it_and_ends_the_run_on_all(start):
    left, right = ready(), ready(start=lambda part, parcel: "no torch_xla")
    with pytest.raises(LaunchError, match="m1: no torch_xla"):
        start(left, right)
    assert left.told[-1] == right.told[-1] == ("forget", "r1")
    assert not start.group.broken


@pytest.mark.parametrize("when", ["hold_port", "start"])
def test_a_dead_held_host_is_reported_gone_and_the_others_forget_the_run(start, when):
    gone = ready(**{when: lambda *given: RuntimeError("The actor died because its node has died.")})
    other = ready()
    with pytest.raises(HostGone, match="Could not start xla_nb on a host: The actor died"):
        start(gone, other)
    assert start.group.broken
    assert other.told[-1] == ("forget", "r1")


@pytest.mark.parametrize(
    ("content", "expected"), [(b"0123456789", b"0123456789"), (b"", b""), (None, None)]
)
def test_a_file_is_fetched_whole_or_not_at_all(start, monkeypatch, content, expected):
    monkeypatch.setattr(relay_module, "_BLOCK", 4)

    def read(run, file, offset, count):
        if content is None and offset:
            return RuntimeError("The actor died because its node has died.")
        return (b"half a file" if content is None else content)[offset : offset + count]

    relay = start(ready(read=read))
    reader, writer = os.pipe()
    with contextlib.suppress(RuntimeError):
        asyncio.run(relay.fetch("m0", "rank-0.out", writer))
    with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
        assert engine._whole(pipe.read()) == expected


def test_fetching_a_growing_file_ends(start, monkeypatch):
    monkeypatch.setattr(relay_module, "_BLOCK", 4)
    log = bytearray(b"012345")

    def read(run, file, offset, count):
        data = bytes(log[offset : offset + count])
        log.extend(b"x")
        assert len(log) < 100, "the fetch does not end"
        return data

    relay = start(ready(read=read))
    reader, writer = os.pipe()
    asyncio.run(relay.fetch("m0", "rank-0.out", writer))
    with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
        assert engine._whole(pipe.read()) == b"012345x"


def test_a_file_of_an_unknown_host_is_not_fetched(start):
    relay = start(ready())
    reader, writer = os.pipe()
    asyncio.run(relay.fetch("m9", "rank-0.out", writer))
    with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
        assert engine._whole(pipe.read()) is None


# ---------------------------------------------------------------- control


async def in_a_loop(call, *args):
    call(*args)


def test_a_signal_goes_to_each_host_with_its_own_pids(start):
    left, right = ready(), ready()
    relay = start(left, right)
    asyncio.run(in_a_loop(relay.signal, {"m1": [7], "elsewhere": [8]}, 15))
    assert right.told[-1] == ("signal", "r1", [7], 15)
    assert "signal" not in left.calls


@pytest.mark.parametrize("what", ["kill", "forget", "ask"])
def test_kill_forget_and_ask_go_to_every_host(start, what):
    hosts = ready(), ready()
    relay = start(*hosts)
    asyncio.run(in_a_loop(getattr(relay, what)))
    assert [host.told[-1] for host in hosts] == [(what, "r1")] * 2
