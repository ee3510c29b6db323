"""The cluster's client, where Ray is a stand-in: which hosts it takes, and that it gives them back.

What Ray itself does with it is in test_cluster.py.
"""

import asyncio
import contextlib
import json
import os
import pickle
import platform
import socket
import sys
import types
from dataclasses import dataclass, replace

import pytest

from xla_nb import events, wire
from xla_nb.engines.helper import Helper
from xla_nb.engines.ray import driver, engine
from xla_nb.engines.ray.driver import Cluster, Driver, Group, Launch, Relay
from xla_nb.engines.ray.host import About, News, version
from xla_nb.engines.ray.outbox import Piece
from xla_nb.errors import LaunchError
from xla_nb.inheritance import Inheritance
from xla_nb.order import Order, World

PATIENCE = 10  # seconds for what must come
NEVER = object()  # what a host says that does not answer


@pytest.mark.parametrize(
    ("seconds", "most", "shown"),
    [
        (300.0, 300.0, "5:00 min"),
        (299.4, 300.0, "5:00 min"),
        (270.0, 300.0, "4:30 min"),
        (89.0, 300.0, "1:30 min"),
        (31.0, 300.0, "1:00 min"),
        (30.0, 300.0, "30 s"),
        (0.4, 300.0, "30 s"),
        (9.0, 10.0, "10 s"),
        (0.0, 10.0, "0 s"),
    ],
)
def test_what_is_left_of_a_wait_is_told_in_steps(seconds, most, shown):
    assert driver._clock(seconds, most) == shown


# ---------------------------------------------------------------- hosts


class Actor:
    """On a host of which it says `about`; never, if that is None; raises it, if it is an error."""

    def __init__(self, about):
        self.about = types.SimpleNamespace(remote=lambda: self._answer(about))

    def _answer(self, about):
        answer = asyncio.get_running_loop().create_future()
        if isinstance(about, Exception):
            answer.set_exception(about)
        elif about is not None:
            answer.set_result(about)
        return answer


def about(number=1, **changes):
    fields = {
        "hostname": f"m{number}",
        "address": f"10.0.0.{number}",
        "node": f"n{number}",
        "python": platform.python_version(),
        "version": version(),
        "chips": 0,
        "environ": {},
        **changes,
    }
    return About(**fields)


class Ray:
    """The cluster has so many nodes with 8 CPUs each. `placed` and `killed` is what it did."""

    def __init__(self, nodes=3):
        self.count, self.placed, self.removed, self.killed = nodes, [], [], []
        self.options, self.abouts, self.fits = [], [], True
        self.asked = asyncio.Event()

    def nodes(self):
        return [
            {
                "NodeManagerHostname": f"m{n}",
                "NodeManagerAddress": f"10.0.0.{n}",
                "Alive": True,
                "Resources": {"CPU": 8.0},
                "NodeID": f"n{n}",
            }
            for n in range(self.count)
        ]

    def available(self):
        return {f"n{n}": {"CPU": 8.0} for n in range(self.count)}

    def placement_group(self, bundles, strategy):
        self.placed.append((bundles, strategy))
        return types.SimpleNamespace(number=len(self.placed), wait=lambda seconds: self.fits)

    def remove_placement_group(self, placement):
        self.removed.append(placement.number)

    def kill(self, actor):
        self.killed.append(actor)

    def remote(self, cls):
        return self

    def options_of(self, **options):
        self.options.append(options)
        self.asked.set()
        number = len(self.options)
        made = Actor(self.abouts[number - 1] if number <= len(self.abouts) else about(number))
        return types.SimpleNamespace(remote=lambda: made)


@pytest.fixture
def ray(monkeypatch):
    made = Ray()
    client = types.SimpleNamespace(ray=types.SimpleNamespace(is_connected=lambda: False))
    modules = {
        "ray": types.SimpleNamespace(
            kill=made.kill,
            exceptions=types.SimpleNamespace(ActorUnavailableError=ConnectionError),
            nodes=made.nodes,
            remote=lambda cls: types.SimpleNamespace(options=made.options_of),
        ),
        "ray.util": types.SimpleNamespace(
            placement_group=made.placement_group,
            remove_placement_group=made.remove_placement_group,
            client=client,
        ),
        "ray.util.scheduling_strategies": types.SimpleNamespace(
            PlacementGroupSchedulingStrategy=lambda placement, placement_group_bundle_index: (
                placement.number,
                placement_group_bundle_index,
            )
        ),
        "ray._private": types.SimpleNamespace(),
        "ray._private.state": types.SimpleNamespace(available_resources_per_node=made.available),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def cluster():
    return Cluster("")


def a_launch(hosts=2, wait=0.0, **asked):
    order = Order("r1", "xla", "/p", "/r", "f", False, frozenset(), None, asked, None, "", {}, "/",
                  (), b"", Inheritance())  # fmt: skip
    told = []
    return Launch(1, order, {}, hosts, None, wait, None, -1, told.append)


def test_each_host_is_an_actor_in_a_bundle_of_its_own(ray, cluster):
    group = asyncio.run(cluster.hosts(a_launch()))
    assert ray.placed == [([{"CPU": 1.0}, {"CPU": 1.0}], "STRICT_SPREAD")]
    assert [each["scheduling_strategy"] for each in ray.options] == [(1, 0), (1, 1)]
    assert [(each["num_cpus"], each["resources"]) for each in ray.options] == [(1.0, {})] * 2
    assert group.names == ["m1", "m2"]


def test_a_launch_like_the_last_one_has_the_same_hosts(ray, cluster):
    async def twice():
        return [await cluster.hosts(a_launch()) for _ in range(2)]

    first, second = asyncio.run(twice())
    assert first is second
    assert len(ray.placed) == 1


def test_other_hosts_are_given_back_before_different_ones_are_asked_for(ray, cluster):
    async def twice():
        return [await cluster.hosts(a_launch(hosts)) for hosts in (2, 3)]

    first, second = asyncio.run(twice())
    assert (len(first.actors), len(second.actors)) == (2, 3)
    assert ray.removed == [1]
    assert ray.killed == first.actors


def test_hosts_with_a_run_are_kept_whatever_the_next_launch_wants(ray, cluster):
    async def twice():
        first = await cluster.hosts(a_launch(1))
        first.runs.add("r0")
        await cluster.hosts(a_launch(2))

    asyncio.run(twice())
    assert (ray.removed, ray.killed) == ([], [])


def test_hosts_of_which_one_is_lost_are_not_used_again(ray, cluster):
    async def twice():
        first = await cluster.hosts(a_launch())
        first.broken = True
        return first, await cluster.hosts(a_launch())

    first, second = asyncio.run(twice())
    assert first is not second
    assert ray.removed == [1]


def test_what_the_cluster_lacks_is_said_at_once(ray, cluster):
    with pytest.raises(LaunchError, match="4 hosts asked for, each with 1 CPU free, and there are"):
        asyncio.run(cluster.hosts(a_launch(4)))
    assert ray.placed == []


def test_hosts_that_others_were_faster_to_take_are_a_refusal(ray, cluster):
    ray.fits = False
    with pytest.raises(LaunchError, match="others may have been faster"):
        asyncio.run(cluster.hosts(a_launch()))
    assert ray.removed == [1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (about(2, python="3.1.0"), "m2 has Python 3.1.0, and the notebook has"),
        (about(2, version="0.0.1"), "m2 has xla_nb 0.0.1, and the notebook has"),
        (ImportError("No module named 'xla_nb'"), "the cluster's hosts cannot import xla_nb"),
    ],
)
def test_a_host_that_will_not_do_is_a_refusal_and_all_are_given_back(ray, cluster, answer, said):
    ray.abouts = [about(1), answer]
    with pytest.raises(LaunchError, match=said):
        asyncio.run(cluster.hosts(a_launch()))
    assert ray.removed == [1]
    assert len(ray.killed) == 2


def test_hosts_of_a_launch_that_is_given_up_meanwhile_are_given_back(ray, cluster):
    ray.abouts = [None]  # it does not answer

    async def given_up():
        asking = asyncio.ensure_future(cluster.hosts(a_launch()))
        await ray.asked.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    asyncio.run(given_up())
    assert ray.removed == [1]
    assert len(ray.killed) == 2


# ---------------------------------------------------------------- a run


class Host:
    """An actor that answers as `says` says, and a call for news with what is put into `answers`."""

    def __init__(self):
        self.answers, self.told = asyncio.Queue(), []
        self.says = {}  # by the name of a call

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *given: self._call(name, given))

    def _call(self, name, given):
        self.told.append((name, *given))
        if name in self.says:
            answer = asyncio.get_running_loop().create_future()
            said = self.says[name](*given)
            if said is not NEVER:
                (answer.set_exception if isinstance(said, Exception) else answer.set_result)(said)
            return answer
        if name == "news":
            return asyncio.ensure_future(self._answer())
        return asyncio.ensure_future(asyncio.sleep(0))

    async def _answer(self):
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def has(self, number, *happened, files=(), over=False):
        self.answers.put_nowait(News(number, list(map(events.encode, happened)), files, over))


@dataclass
class Followed:
    """A run that has been started on hosts, and the socket at which its events arrive."""

    relay: Relay
    group: Group
    hosts: list[Host]
    sock: socket.socket

    def arrived(self):
        return list(wire.receive(self.sock))


@pytest.fixture
def follow(ray, tmp_path):
    """follow(count, work) runs `work(followed)` while a run on so many hosts is followed."""

    def follow(count, work):
        async def followed():
            ours, theirs = wire.pair()
            with ours, theirs:
                theirs.setblocking(False)
                launch = replace(a_launch(), events=theirs)
                launch.order = replace(launch.order, record=str(tmp_path))
                hosts = [Host() for _ in range(count)]
                names = [f"m{number}" for number in range(count)]
                group = Group(None, None, hosts, [], names)
                run = Followed(Relay(launch, group), group, hosts, ours)
                run.relay._seats = list(range(count))
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(run.relay.follow(), work(run))
                return run, run.arrived()

        return asyncio.run(followed())

    return follow


def printed(text):
    return [Piece("rank-0.out", "append", text)]


def test_a_run_is_followed_until_every_host_has_told_all(follow, tmp_path):
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
    assert [told for told in run.hosts[0].told if told[0] == "news"] == [
        ("news", "r1", 0),
        ("news", "r1", 1),
    ]


def test_the_first_host_is_told_when_it_is_alone(follow):
    async def work(run):
        for host in run.hosts[1:]:
            host.has(1, over=True)
        while ("alone", "r1") not in run.hosts[0].told:
            await asyncio.sleep(0)
        run.hosts[0].has(1, over=True)

    run, _ = follow(3, work)
    assert not any(("alone", "r1") in host.told for host in run.hosts[1:])


def test_a_host_that_is_gone_is_told_to_be_lost_and_the_others_go_on(follow):
    async def work(run):
        run.hosts[0].answers.put_nowait(RuntimeError("The actor died because its node has died."))
        run.hosts[1].has(1, events.Notice(text="still here"), over=True)

    run, arrived = follow(2, work)
    (lost,) = [event for event in arrived if isinstance(event, events.HostLost)]
    assert (lost.host, lost.why) == ("m0", "its node died")
    assert [event.text for event in arrived if isinstance(event, events.Notice)] == ["still here"]
    assert run.group.broken


def test_a_host_that_is_out_of_reach_for_a_moment_is_asked_again(follow):
    async def work(run):
        run.hosts[0].answers.put_nowait(ConnectionError("unavailable"))
        run.hosts[0].has(1, events.Notice(text="back"), over=True)

    run, arrived = follow(1, work)
    assert [event.text for event in arrived[1:]] == ["back"]
    assert not run.group.broken


def test_a_host_that_stays_out_of_reach_is_lost(follow, monkeypatch):
    monkeypatch.setattr(driver, "_LOST", 0.0)

    async def work(run):
        for _ in range(2):
            run.hosts[0].answers.put_nowait(ConnectionError("it is unavailable"))

    _, arrived = follow(1, work)
    assert [event.why for event in arrived[1:]] == ["it cannot be reached any more"]


def test_no_event_is_lost_when_the_notebook_is_slow_to_take_them(follow):
    """All hosts wait then for the same socket."""
    many = [events.Notice(text="x" * 1000) for _ in range(300)]

    async def work(run):
        for host in run.hosts:
            host.has(1, *many, over=True)
        while wire.ready(run.sock, 0) and not all(host.answers.empty() for host in run.hosts):
            await asyncio.sleep(0)
        heard = 0
        while heard < 900:
            for event in run.arrived():
                heard += isinstance(event, events.Notice)
            await asyncio.sleep(0)

    follow(3, work)


# ---------------------------------------------------------------- its start, and its files


@pytest.fixture
def start(ray, tmp_path):
    """start(host, ...) starts a run on these hosts; gives its relay and group."""

    def start(*hosts):
        async def started():
            abouts = [about(number) for number in range(len(hosts))]
            names = [each.hostname for each in abouts]
            group = Group(None, None, list(hosts), abouts, names)
            fd = os.memfd_create("parcel")
            os.write(fd, b"values")
            launch = replace(a_launch(), parcel=fd)
            launch.order = replace(launch.order, record=str(tmp_path))
            relay = Relay(launch, group)
            try:
                await relay.start(launch)
            finally:
                os.close(fd)
                start.group = group
            return relay

        return asyncio.run(started())

    return start


def ready(**says):
    host = Host()
    host.says = {"hold_port": lambda: ("10.0.0.0", 1234), "start": lambda part, parcel: "", **says}
    return host


def test_each_host_has_its_part_of_a_run(start):
    left, right = ready(), ready()
    start(left, right)
    parts = [(part, parcel) for host in (left, right) for _, part, parcel in host.told[-1:]]
    assert [parcel for _, parcel in parts] == [b"values", b"values"]
    assert [part.name for part, _ in parts] == ["m0", "m1"]
    assert [part.order.world for part, _ in parts] == [
        World(2, number, ("10.0.0.0", 1234)) for number in range(2)
    ]


def test_the_only_host_has_no_others_to_meet(start):
    host = ready()
    start(host)
    assert [name for name, *_ in host.told] == ["start"]
    assert host.told[0][1].order.world == World()


def test_what_one_host_refuses_is_refused_in_its_name_and_ended_on_all(start):
    left, right = ready(), ready(start=lambda part, parcel: "no torch_xla")
    with pytest.raises(LaunchError, match="m1: no torch_xla"):
        start(left, right)
    assert left.told[-1] == right.told[-1] == ("kill", "r1")
    assert not start.group.broken


@pytest.mark.parametrize("when", ["hold_port", "start"])
def test_a_host_that_died_since_the_last_run_is_a_refusal(start, when):
    gone = ready(**{when: lambda *given: RuntimeError("The actor died because its node has died.")})
    with pytest.raises(LaunchError, match="could not be started: The actor died"):
        start(gone, ready())
    assert start.group.broken


@pytest.mark.parametrize(
    ("content", "found"), [(b"0123456789", b"0123456789"), (b"", b""), (None, None)]
)
def test_a_file_comes_home_whole_or_not_at_all(start, monkeypatch, content, found):
    monkeypatch.setattr(driver, "_BLOCK", 4)

    def read(run, file, offset, count):
        if content is None and offset:
            return RuntimeError("The actor died because its node has died.")
        return (b"half a file" if content is None else content)[offset : offset + count]

    relay = start(ready(read=read))
    reader, writer = os.pipe()
    with contextlib.suppress(RuntimeError):
        asyncio.run(relay.fetch("m0", "rank-0.out", writer))
    with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
        assert engine._whole(pipe.read()) == found


def test_of_a_host_that_is_none_of_the_runs_nothing_comes(start):
    relay = start(ready())
    reader, writer = os.pipe()
    asyncio.run(relay.fetch("m9", "rank-0.out", writer))
    with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
        assert engine._whole(pipe.read()) is None


# ---------------------------------------------------------------- launches


@pytest.fixture
def serve(ray, tmp_path):
    """serve(hosts, work) runs `work(said, task)` beside the task of a launch on `hosts`."""

    def serve(hosts, work):
        async def served():
            control, ours = wire.pair()
            events_ours, theirs = wire.pair()
            with control, ours, events_ours, theirs:
                theirs.setblocking(False)
                served = Driver(control, "")
                served._cluster = types.SimpleNamespace(connect=connected, hosts=hosts)
                launch = replace(a_launch(), events=theirs, parcel=os.memfd_create("parcel"))
                launch.order = replace(launch.order, record=str(tmp_path))
                task = asyncio.ensure_future(served._launch(launch))

                async def said():
                    while not wire.ready(ours, 0):
                        await asyncio.sleep(0)
                    return json.loads(ours.recv(1 << 16))

                async with asyncio.timeout(PATIENCE):
                    await work(said, task)

        asyncio.run(served())

    async def connected():
        pass

    return serve


def test_whatever_goes_wrong_a_launch_is_answered(serve):
    async def hosts(launch):
        raise ValueError("something odd")

    async def work(said, task):
        await task
        refused = (await said())["refused"]
        assert refused.startswith("a host's process could not be started: something odd")

    serve(hosts, work)


@pytest.mark.parametrize(("started", "last"), [(NEVER, "start"), ("", "news")])
def test_a_run_that_nobody_wants_any_more_is_ended_and_its_hosts_are_free(serve, started, last):
    host = ready(start=lambda part, parcel: started)
    group = Group(None, None, [host], [about(1)], ["m1"])

    async def hosts(launch):
        return group

    async def work(said, task):
        while last not in [call for call, *_ in host.told]:
            await asyncio.sleep(0)
        assert group.runs == {"r1"}
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert host.told[-1] == ("kill", "r1")
        assert group.runs == set()

    serve(hosts, work)


# ---------------------------------------------------------------- the process

HANGS = """
import signal, sys
def init(*_, **__):
    print("connecting", file=sys.stderr, flush=True)
    signal.sigwait([])
"""


def test_the_process_ends_with_its_socket_though_the_cluster_does_not_answer(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = Helper("xla_nb.engines.ray.driver", [""], os.environ)
    ours, theirs = wire.pair()
    with ours, theirs, (tmp_path / "told").open("w+b") as told:
        pickle.dump((a_launch().order, {}), told, protocol=5)
        told.flush()
        fds = theirs.fileno(), told.fileno(), told.fileno()
        helper.send({"do": "launch", "id": 1, "hosts": 2, "slices": None, "wait": 0}, *fds)
        assert helper.receive() == {"id": 1, "waiting": "connecting to the Ray cluster …"}
        while "connecting" not in helper.last_words():
            assert helper.alive
        helper.close()
    assert helper.process.returncode == 0
