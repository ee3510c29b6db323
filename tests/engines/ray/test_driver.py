"""The driver as the kernel sees it: through its control socket, with a test double of Ray."""

import asyncio
import contextlib
import json
import os
import pickle
import socket
from dataclasses import dataclass, replace

import pytest

from tests.engines.ray import ray_double
from tests.engines.ray.ray_double import NEVER, Actor, a_group, a_launch, a_wish, about, ready
from xla_nb.engines.child import Child, in_memory
from xla_nb.engines.local import NO_GROUP
from xla_nb.engines.ray import driver as driver_module
from xla_nb.engines.ray import placement
from xla_nb.engines.ray.driver import Driver, FollowedRun
from xla_nb.engines.ray.files import FileChunk
from xla_nb.engines.ray.placement import ActorGroup, Cluster
from xla_nb.errors import LaunchError
from xla_nb.messages import channel, events
from xla_nb.messages.orders import HostGroup, Turn

PATIENCE = 60  # seconds to wait for expected events
DIED = RuntimeError("The actor died because its node has died.")


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(placement, "_LOOK", 0.01)
    return ray_double.installed(monkeypatch)


class Kernel:
    """The other end of the control socket."""

    def __init__(self, driver, control, stack, record):
        self.driver, self.asked = driver, 0
        self._control, self._stack, self._record = control, stack, record

    def asks(self, do, *fds, **more):
        self.asked += 1
        request = {"do": do, "id": self.asked}
        socket.send_fds(self._control, [json.dumps(request | more).encode()], fds)

    def launches(self, run="r1", order_file=None, hosts=1, slices=None):
        """Launch a run; return the socket of its events."""
        ours, theirs = channel.pair()
        self._stack.enter_context(ours)
        request = a_launch(self._record, run=run, hosts=hosts, slices=slices).request
        order = pickle.dumps((request, {}, {}))
        with theirs, in_memory(order_file or order) as file, in_memory(b"values") as parcel:
            self.asks("launch", theirs.fileno(), parcel, file)
        return ours

    def abandons(self, number):
        self._control.send(json.dumps({"do": "abandon", "id": number}).encode())

    async def hears(self):
        return json.loads(await asyncio.get_running_loop().sock_recv(self._control, 1 << 16))

    async def answer(self):
        """The first reply that is not a progress report."""
        while "waiting" in (reply := await self.hears()):
            pass
        return reply

    async def idle(self):
        await until(lambda: not self.driver._tasks)

    async def completes(self, run, host):
        """Launch a run on this host and let it end."""
        host.has(1, over=True)
        self.launches(run)
        assert "done" in await self.answer()
        await self.idle()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture
def serve(ray, tmp_path):
    """serve(work) runs `work(kernel)` beside the driver, then closes the control socket."""

    def serve(work):
        async def served():
            with contextlib.ExitStack() as stack:
                control, ours = map(stack.enter_context, channel.pair())
                control.setblocking(False)
                ours.setblocking(False)
                kernel_lives, writer = os.pipe()
                stack.callback(os.close, kernel_lives)
                stack.callback(os.close, writer)
                driver = Driver(control, kernel_lives, "")
                serving = asyncio.ensure_future(driver.serve())
                async with asyncio.timeout(PATIENCE):
                    await work(Kernel(driver, ours, stack, tmp_path))
                    ours.shutdown(socket.SHUT_RDWR)
                    await serving

        asyncio.run(served())

    return serve


# ---------------------------------------------------------------- every request gets a reply


def test_launch_is_answered_and_its_events_are_sent(serve, ray):
    host = ready(about=about)
    ray.actors = [host]

    async def work(kernel):
        sock = kernel.launches()
        host.has(1, events.Notice(text="here"), over=True)
        assert await kernel.answer() == {"id": 1, "done": True}
        await kernel.idle()
        placed, notice, end = channel.receive(sock)
        assert (placed.names, notice.text, end) == (("m1",), "here", None)

    serve(work)


def test_launch_reports_its_progress(serve):
    async def work(kernel):
        kernel.launches()
        progress = [(await kernel.hears()).get("waiting") for _ in range(4)]
        assert progress == [
            "connecting to the Ray cluster …",
            "starting xla_nb on 1 host of the cluster …",
            "importing the ranks' packages on 1 host, once per session …",
            None,
        ]

    serve(work)


def test_launch_that_the_cluster_cannot_serve_is_rejected(serve):
    async def work(kernel):
        kernel.launches(hosts=4)
        assert (await kernel.answer())["refused"].startswith("Need 4 hosts")

    serve(work)


def test_any_error_is_answered_with_a_rejection(serve, monkeypatch):
    async def hosts(self, wish):
        raise ValueError("something odd")

    async def work(kernel):
        kernel.launches()
        refused = (await kernel.answer())["refused"]
        assert refused.startswith("Could not start xla_nb on a host: something odd")

    monkeypatch.setattr(Cluster, "hosts", hosts)
    serve(work)


def test_unreadable_order_is_rejected(serve):
    async def work(kernel):
        sock = kernel.launches(order_file=b"no pickle")
        assert "Could not start" in (await kernel.answer())["refused"]
        assert list(channel.receive(sock)) == [None]

    serve(work)


# ---------------------------------------------------------------- the connection


def test_driver_that_cannot_connect_is_spent(serve, ray):
    ray.refuses = RuntimeError("no route")

    async def work(kernel):
        kernel.launches()
        answer = await kernel.answer()
        assert "The Ray cluster cannot be used (RuntimeError: no route)" in answer["refused"]
        assert answer["spent"]

    serve(work)


def test_driver_with_another_run_in_progress_is_not_spent(serve, monkeypatch):
    def survey():
        raise TimeoutError

    async def work(kernel):
        kernel.launches("r1")
        await kernel.answer()
        monkeypatch.setattr(placement, "_survey", survey)
        kernel.launches("r2", hosts=2)
        answer = await kernel.answer()
        assert "no answer in 60 s" in answer["refused"]
        assert not answer["spent"]

    serve(work)


def test_driver_whose_cluster_lacks_resources_is_not_spent(serve):
    async def work(kernel):
        kernel.launches(hosts=4)
        assert not (await kernel.answer())["spent"]

    serve(work)


# ---------------------------------------------------------------- held hosts


def test_launch_on_dead_held_hosts_is_rejected_and_the_next_gets_new_hosts(serve, ray):
    held, fresh = ready(about=about), ready(about=about)
    ray.actors = [held, fresh]

    async def work(kernel):
        await kernel.completes("r1", held)
        held.says["start"] = lambda part, parcel: DIED
        kernel.launches("r2")
        assert "start xla_nb on a host: The actor died" in (await kernel.answer())["refused"]
        kernel.launches("r3")
        assert "done" in await kernel.answer()
        assert (len(ray.placed), ray.removed) == (2, [1])
        assert [args[0].request.run for call, *args in fresh.told if call == "start"] == ["r3"]

    serve(work)


@pytest.mark.parametrize(("started", "last"), [(NEVER, "start"), ("", "news")])
def test_abandoned_run_is_forgotten_and_its_hosts_stay_held(serve, ray, started, last):
    host = ready(about=about, start=lambda part, parcel: started)
    ray.actors = [host]

    async def work(kernel):
        kernel.launches()
        await until(lambda: last in host.calls)
        (group,) = kernel.driver._cluster._groups
        assert group.runs == {"r1"}
        kernel.abandons(1)
        await kernel.idle()
        assert host.told[-1] == ("forget", "r1")
        assert group.runs == set()
        assert ray.removed == []
        assert kernel.driver._runs == {}

    serve(work)


def test_hosts_are_released_when_the_kernel_is_gone(serve, ray):
    async def work(kernel):
        kernel.launches()
        await kernel.answer()

    serve(work)
    assert ray.removed == [1]


def test_hosts_that_cannot_be_divided_into_slices_are_rejected(serve):
    async def work(kernel):
        kernel.launches(hosts=3, slices=2)
        assert (await kernel.answer())["refused"].startswith(
            "3 hosts cannot be divided into 2 slices"
        )

    serve(work)


# ---------------------------------------------------------------- a run in progress


def test_signal_kill_and_ask_reach_the_runs_hosts(serve, ray):
    host = ready(about=about)
    ray.actors = [host]

    async def work(kernel):
        kernel.launches()
        await kernel.answer()
        kernel.asks("signal", run="r1", pids={"m1": [7]}, number=15)
        kernel.asks("kill", run="r1")
        kernel.asks("ask", run="elsewhere")
        kernel.asks("ask", run="r1")
        await until(lambda: "ask" in host.calls)
        calls = [call for call in host.told if call[0] in ("signal", "kill", "ask")]
        assert calls == [("signal", "r1", [7], 15), ("kill", "r1"), ("ask", "r1")]

    serve(work)


def test_rejected_run_is_forgotten(serve, ray):
    ray.actors = [ready(about=about, start=lambda part, parcel: "no torch_xla")]

    async def work(kernel):
        kernel.launches()
        assert "no torch_xla" in (await kernel.answer())["refused"]
        await kernel.idle()
        assert kernel.driver._runs == {}

    serve(work)


# ---------------------------------------------------------------- the process

HANGS = """
import signal, sys
def init(*_, **__):
    print("connecting", file=sys.stderr, flush=True)
    signal.sigwait([])
"""


def test_process_ends_with_its_socket_even_if_the_cluster_hangs(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    child = Child("xla_nb.engines.ray.driver", [""], os.environ)
    ours, theirs = channel.pair()
    with ours, theirs, in_memory(pickle.dumps((a_launch(hosts=2).request, {}, {}))) as told:
        fds = theirs.fileno(), told, told
        child.send({"do": "launch", "id": 1}, *fds)
        assert child.receive() == {"id": 1, "waiting": "connecting to the Ray cluster …"}
        while "connecting" not in child.last_output():
            assert child.alive
        child.close()
    assert child.process.returncode == 0


# ---------------------------------------------------------------- following runs


@dataclass
class Followed:
    """A run started on hosts, and the socket at which its events arrive."""

    followed: FollowedRun
    group: ActorGroup
    hosts: list[Actor]
    sock: socket.socket

    def arrived(self):
        return list(channel.receive(self.sock))


@pytest.fixture
def follow(ray, tmp_path):
    """follow(count, work) runs `work(followed)` while a run on `count` hosts is followed."""

    def follow(count, work):
        async def followed():
            ours, theirs = channel.pair()
            with ours, theirs:
                theirs.setblocking(False)
                hosts = [Actor() for _ in range(count)]
                group = a_group(*hosts)
                run = Followed(FollowedRun(a_launch(tmp_path, theirs), group), group, hosts, ours)
                run.followed._seats = list(range(count))
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(run.followed.follow(), work(run))
                return run, run.arrived()

        return asyncio.run(followed())

    return follow


def printed(text):
    return [FileChunk("rank-0.out", text)]


def test_run_is_followed_until_every_hosts_last_answer(follow, tmp_path):
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


def test_first_host_is_notified_when_the_others_have_ended(follow):
    async def work(run):
        for host in run.hosts[1:]:
            host.has(1, over=True)
        while ("alone", "r1") not in run.hosts[0].told:
            await asyncio.sleep(0)
        run.hosts[0].has(1, over=True)

    run, _ = follow(3, work)
    assert not any(("alone", "r1") in host.told for host in run.hosts[1:])


def began(rank):
    return events.RankStarted(rank=rank, pid=1, device="", host=f"m{rank}")


async def program(run, members):
    """Send a program to the run's live ranks."""
    parcel = os.memfd_create("parcel")
    launch = a_launch("/r", run.sock, parcel, run="cell")
    launch.request = replace(launch.request, turn=Turn("r1", 1, members))
    try:
        await FollowedRun(launch, run.group, run.followed).start(launch)
    finally:
        os.close(parcel)


def test_program_reaches_live_ranks_of_other_hosts_when_a_host_has_none_left(follow):
    async def work(run):
        run.hosts[0].has(1, began(0))
        run.hosts[1].has(1, began(1), over=True)
        while not run.followed._over:
            await asyncio.sleep(0)
        await program(run, (0,))
        run.hosts[0].says = {"start": lambda *args: NO_GROUP}
        with pytest.raises(LaunchError, match="have ended"):
            await program(run, (0,))
        run.hosts[0].has(2, over=True)

    run, _ = follow(2, work)
    asked = [[call[0] for call in host.told].count("start") for host in run.hosts]
    assert asked == [2, 0]


def test_dead_host_is_reported_lost_and_the_others_continue(follow):
    async def work(run):
        run.hosts[0].fails(RuntimeError("The actor died because its node has died."))
        run.hosts[1].has(1, events.Notice(text="still here"), over=True)

    run, arrived = follow(2, work)
    (lost,) = [event for event in arrived if isinstance(event, events.HostLost)]
    assert (lost.host, lost.why) == ("m0", "The actor died because its node has died")
    assert [event.text for event in arrived if isinstance(event, events.Notice)] == ["still here"]
    assert run.group.broken


def test_briefly_unreachable_host_is_asked_again(follow):
    async def work(run):
        run.hosts[0].fails(ConnectionError("unavailable"))
        run.hosts[0].has(1, events.Notice(text="back"), over=True)

    run, arrived = follow(1, work)
    assert [event.text for event in arrived[1:]] == ["back"]
    assert not run.group.broken


def test_host_that_stays_unreachable_is_lost(follow, monkeypatch):
    monkeypatch.setattr(driver_module, "_LOST", 0.0)

    async def work(run):
        for _ in range(2):
            run.hosts[0].fails(ConnectionError("it is unavailable"))

    _, arrived = follow(1, work)
    assert [event.why for event in arrived[1:]] == ["it is unavailable"]


def test_host_that_does_not_answer_is_lost(follow, monkeypatch):
    monkeypatch.setattr(driver_module, "_SILENT", 0.01)

    async def work(run):
        return

    run, (_, lost) = follow(1, work)
    assert (lost.host, lost.why) == ("m0", "it did not answer for half a minute")
    assert run.group.broken


def test_run_without_a_listener_is_forgotten(follow):
    async def work(run):
        run.sock.shutdown(socket.SHUT_RDWR)
        run.hosts[0].has(1, events.Notice(text="anybody there?"))

    run, _ = follow(2, work)
    assert all(host.told[-1] == ("forget", "r1") for host in run.hosts)
    assert not run.group.broken


def test_full_disk_on_the_notebooks_machine_ends_the_run_without_losing_hosts(follow, tmp_path):
    (tmp_path / "rank-0.result").symlink_to("/dev/full")

    async def work(run):
        run.hosts[0].has(1, files=[FileChunk("rank-0.result", b"x")])

    run, (_, notice) = follow(2, work)
    assert "on the notebook's machine: [Errno 28] No space left" in notice.text
    assert all(host.told[-1] == ("forget", "r1") for host in run.hosts)
    assert not run.group.broken


def test_output_that_does_not_fit_is_reported_and_the_run_continues(follow, tmp_path):
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
    """All hosts are waiting for the same socket then."""
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
            relay = FollowedRun(launch, start.group)
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


def test_only_host_reserves_no_port(start):
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


def test_rejection_by_one_host_names_it_and_ends_the_run_on_all(start):
    left, right = ready(), ready(start=lambda part, parcel: "no torch_xla")
    with pytest.raises(LaunchError, match="m1: no torch_xla"):
        start(left, right)
    assert left.told[-1] == right.told[-1] == ("forget", "r1")
    assert not start.group.broken


@pytest.mark.parametrize("when", ["hold_port", "start"])
def test_dead_held_host_is_reported_and_the_others_forget_the_run(start, when):
    gone = ready(**{when: lambda *given: RuntimeError("The actor died because its node has died.")})
    other = ready()
    with pytest.raises(LaunchError, match="Could not start xla_nb on a host: The actor died"):
        start(gone, other)
    assert start.group.broken
    assert other.told[-1] == ("forget", "r1")


# ---------------------------------------------------------------- control


async def in_a_loop(call, *args):
    call(*args)


def test_signal_reaches_each_host_with_its_own_pids(start):
    left, right = ready(), ready()
    relay = start(left, right)
    asyncio.run(in_a_loop(relay.signal, {"m1": [7], "elsewhere": [8]}, 15))
    assert right.told[-1] == ("signal", "r1", [7], 15)
    assert "signal" not in left.calls


@pytest.mark.parametrize("what", ["kill", "forget", "ask"])
def test_kill_forget_and_ask_reach_every_host(start, what):
    hosts = ready(), ready()
    relay = start(*hosts)
    asyncio.run(in_a_loop(relay.call, what))
    assert [host.told[-1] for host in hosts] == [(what, "r1")] * 2
