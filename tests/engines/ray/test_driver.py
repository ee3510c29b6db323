"""The driver as the kernel sees it: through its control socket, on Ray's double."""

import asyncio
import contextlib
import json
import os
import pickle
import socket

import pytest

from tests.engines.ray import ray_double
from tests.engines.ray.ray_double import NEVER, a_launch, about, ready
from xla_nb.engines.child import Child, in_memory
from xla_nb.engines.ray import cluster as cluster_module
from xla_nb.engines.ray.cluster import Cluster
from xla_nb.engines.ray.driver import Driver
from xla_nb.protocol import channel, events

PATIENCE = 60  # seconds for what must come
DIED = RuntimeError("The actor died because its node has died.")


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(cluster_module, "_LOOK", 0.01)
    return ray_double.installed(monkeypatch)


class Kernel:
    """The other end of the control socket."""

    def __init__(self, driver, control, stack, record):
        self.driver, self.asked = driver, 0
        self._control, self._stack, self._record = control, stack, record

    def asks(self, do, *fds, hosts=1, slices=None, **more):
        self.asked += 1
        request = {"do": do, "id": self.asked, "hosts": hosts, "slices": slices, "wait": 0}
        request |= {"cpu": False} if do == "look" else {}
        socket.send_fds(self._control, [json.dumps(request | more).encode()], fds)

    def launches(self, run="r1", order_file=None, **options):
        """Launch a run; returns the socket of its events."""
        ours, theirs = channel.pair()
        self._stack.enter_context(ours)
        order = pickle.dumps((a_launch(self._record, run=run).request, {}, {}))
        with theirs, in_memory(order_file or order) as file, in_memory(b"values") as parcel:
            self.asks("launch", theirs.fileno(), parcel, file, **options)
        return ours

    def abandons(self, number):
        self._control.send(json.dumps({"do": "abandon", "id": number}).encode())

    async def hears(self):
        return json.loads(await asyncio.get_running_loop().sock_recv(self._control, 1 << 16))

    async def answer(self):
        """The reply after all that say what is waited for."""
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

    async def fetched(self, run):
        """The bytes that a fetch of a file of the run gives."""
        reader, writer = os.pipe()
        with open(reader, "rb") as pipe:  # noqa: PTH123 # a descriptor, not a path
            self.asks("fetch", writer, run=run, host="m1", file="rank-0.out")
            os.close(writer)
            return await asyncio.to_thread(pipe.read)


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


def test_a_launch_is_answered_and_its_events_are_sent(serve, ray):
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


def test_the_progress_of_a_launch_is_reported(serve):
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


def test_a_launch_that_the_cluster_cannot_serve_is_refused(serve):
    async def work(kernel):
        kernel.launches(hosts=4)
        assert (await kernel.answer())["refused"].startswith("Need 4 hosts")

    serve(work)


@pytest.mark.parametrize("do", ["launch", "look"])
def test_any_error_is_answered_with_a_refusal(serve, monkeypatch, do):
    async def hosts(self, wish):
        raise ValueError("something odd")

    async def work(kernel):
        with in_memory(b"") as into:
            kernel.launches() if do == "launch" else kernel.asks("look", into)
        refused = (await kernel.answer())["refused"]
        assert refused.startswith("Could not start xla_nb on a host: something odd")

    monkeypatch.setattr(Cluster, "hosts", hosts)
    serve(work)


def test_an_unreadable_order_is_refused(serve):
    async def work(kernel):
        sock = kernel.launches(order_file=b"no pickle")
        assert "Could not start" in (await kernel.answer())["refused"]
        assert list(channel.receive(sock)) == [None]

    serve(work)


def test_replies_are_queued_for_a_slow_kernel(serve):
    async def work(kernel):
        for number in range(2000):
            kernel.driver._reply(id=number, waiting="x" * 1000)
        assert [(await kernel.hears())["id"] for _ in range(2000)] == list(range(2000))

    serve(work)


# ---------------------------------------------------------------- the connection


def test_a_driver_that_cannot_connect_is_spent(serve, ray):
    ray.refuses = RuntimeError("no route")

    async def work(kernel):
        kernel.launches()
        answer = await kernel.answer()
        assert "The Ray cluster cannot be reached (no route)" in answer["refused"]
        assert answer["spent"]

    serve(work)


def test_a_driver_with_another_run_in_progress_is_not_spent(serve, monkeypatch):
    def survey():
        raise TimeoutError

    async def work(kernel):
        kernel.launches("r1")
        await kernel.answer()
        monkeypatch.setattr(cluster_module, "_survey", survey)
        kernel.launches("r2", hosts=2)
        answer = await kernel.answer()
        assert "does not answer" in answer["refused"]
        assert not answer["spent"]

    serve(work)


def test_a_driver_whose_cluster_lacks_resources_is_not_spent(serve):
    async def work(kernel):
        kernel.launches(hosts=4)
        assert not (await kernel.answer())["spent"]

    serve(work)


# ---------------------------------------------------------------- held hosts


def test_a_launch_on_dead_held_hosts_is_repeated_on_fresh_ones(serve, ray):
    held, fresh = ready(about=about), ready(about=about)
    ray.actors = [held, fresh]

    async def work(kernel):
        await kernel.completes("r1", held)
        held.says["start"] = lambda part, parcel: DIED
        kernel.launches("r2")
        assert "done" in await kernel.answer()
        assert (len(ray.placed), ray.removed) == (2, [1])
        assert [args[0].request.run for call, *args in fresh.told if call == "start"] == ["r2"]

    serve(work)


def test_a_launch_on_dead_fresh_hosts_is_refused(serve, ray):
    ray.actors = [ready(about=about, start=lambda part, parcel: DIED) for _ in range(2)]

    async def work(kernel):
        kernel.launches()
        assert "start xla_nb on a host: The actor died" in (await kernel.answer())["refused"]
        assert (len(ray.placed), ray.removed) == (1, [1])

    serve(work)


def test_fresh_hosts_are_tried_once(serve, ray):
    held = ready(about=about)
    ray.actors = [held, ready(about=about, start=lambda part, parcel: DIED)]

    async def work(kernel):
        await kernel.completes("r1", held)
        held.says["start"] = lambda part, parcel: DIED
        kernel.launches("r2")
        assert "start xla_nb on a host: The actor died" in (await kernel.answer())["refused"]
        assert len(ray.placed) == 2

    serve(work)


@pytest.mark.parametrize(("started", "last"), [(NEVER, "start"), ("", "news")])
def test_an_abandoned_run_is_forgotten_and_its_hosts_stay_held(serve, ray, started, last):
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
        assert kernel.driver._relays == {}

    serve(work)


def test_hosts_are_released_when_the_kernel_is_gone(serve, ray):
    async def work(kernel):
        kernel.launches()
        await kernel.answer()

    serve(work)
    assert ray.removed == [1]


# ---------------------------------------------------------------- a look


@pytest.fixture
def look():
    fd = os.memfd_create("seats")
    with open(fd, "rb") as file:  # noqa: PTH123 # a descriptor, not a path
        yield file


def test_a_look_writes_the_seats(serve, look):
    async def work(kernel):
        kernel.asks("look", look.fileno(), hosts=2, slices=2)
        assert await kernel.answer() == {"id": 1, "done": True}
        look.seek(0)
        seats = pickle.load(look)
        assert [(seat.host.name, seat.slice, seat.worker) for seat in seats] == [
            ("m0", 0, 0),
            ("m1", 1, 0),
        ]

    serve(work)


def test_the_hosts_of_a_look_are_held_for_the_launch(serve, ray, look):
    async def work(kernel):
        kernel.asks("look", look.fileno(), hosts=2, slices=2)
        await kernel.answer()
        kernel.launches(hosts=2)
        assert "done" in await kernel.answer()
        assert len(ray.placed) == 1

    serve(work)


def test_a_look_with_unequal_slices_is_refused(serve, look):
    async def work(kernel):
        kernel.asks("look", look.fileno(), hosts=3, slices=2)
        assert (await kernel.answer())["refused"].startswith(
            "3 hosts cannot be divided into 2 slices"
        )

    serve(work)


# ---------------------------------------------------------------- a run in progress


def test_signal_kill_and_ask_go_to_the_runs_hosts(serve, ray):
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


# ---------------------------------------------------------------- a finished run


def test_a_file_of_an_unknown_run_is_empty(serve):
    async def work(kernel):
        assert await kernel.fetched("r9") == b""

    serve(work)


def test_files_of_a_finished_run_can_be_fetched_while_its_hosts_are_held(serve, ray):
    host = ready(about=about, read=lambda run, file, offset, count: b"printed"[offset:])
    ray.actors = [host]

    async def work(kernel):
        await kernel.completes("r1", host)
        assert b"printed" in await kernel.fetched("r1")

    serve(work)


def test_a_finished_run_is_forgotten_once_its_hosts_are_released(serve, ray):
    first, second = ready(about=about), ready(about=lambda: about(2))
    ray.actors = [first, second]

    async def work(kernel):
        await kernel.completes("r1", first)
        (group,) = kernel.driver._cluster._groups
        await kernel.driver._cluster.release(group)
        await kernel.completes("r2", second)
        assert list(kernel.driver._relays) == ["r2"]

    serve(work)


def test_a_refused_run_is_forgotten(serve, ray):
    ray.actors = [ready(about=about, start=lambda part, parcel: "no torch_xla")]

    async def work(kernel):
        kernel.launches()
        assert "no torch_xla" in (await kernel.answer())["refused"]
        await kernel.idle()
        assert kernel.driver._relays == {}

    serve(work)


# ---------------------------------------------------------------- the process

HANGS = """
import signal, sys
def init(*_, **__):
    print("connecting", file=sys.stderr, flush=True)
    signal.sigwait([])
"""


def test_the_process_ends_with_its_socket_even_if_the_cluster_hangs(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    child = Child("xla_nb.engines.ray.driver", [""], os.environ)
    ours, theirs = channel.pair()
    with ours, theirs, in_memory(pickle.dumps((a_launch().request, {}, {}))) as told:
        fds = theirs.fileno(), told, told
        child.send({"do": "launch", "id": 1, "hosts": 2, "slices": None, "wait": 0}, *fds)
        assert child.receive() == {"id": 1, "waiting": "connecting to the Ray cluster …"}
        while "connecting" not in child.last_output():
            assert child.alive
        child.close()
    assert child.process.returncode == 0
