"""The process that is the cluster's client: it places hosts, starts runs on them, and brings home
what they tell.

The rule: one thread, which waits for nothing but events; what Ray does only while it holds up its
caller is done in another one, and not for ever. When the control socket closes, everything ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pickle
import platform
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from xla_nb import events, slices
from xla_nb.engines.ray import demand, faults
from xla_nb.engines.ray.actor import Actor
from xla_nb.engines.ray.demand import Bundle, Lacking, Node
from xla_nb.engines.ray.host import About, News, Part, version
from xla_nb.engines.ray.mirror import Mirror
from xla_nb.errors import LaunchError, XlaNbError
from xla_nb.order import Order, World
from xla_nb.processes import die_with_parent, name_process

#: Seconds after which hosts that nobody uses are given back.
IDLE = 600.0
_LOST = 5.0  # seconds that a host may be out of reach
_FREED = 5.0  # seconds until what was given back counts as free
_READY = 60.0  # seconds for a placement that is known to be possible
_INLINE = 100_000  # bytes of values that go with the call; more go by the object store
_BLOCK = 8 << 20  # bytes of a log that are fetched at once
_CALLS = 16  # calls at once to one host

T = TypeVar("T")


@dataclass
class Group:
    """Hosts that have been placed, with an actor on each; they serve launch after launch."""

    shape: object
    placement: Any
    actors: list[Any]
    abouts: list[About]
    names: list[str]
    runs: set[str] = field(default_factory=set)
    broken: bool = False
    used: float = field(default_factory=time.monotonic)


@dataclass
class Launch:
    """A launch as the notebook asked for it."""

    id: int
    order: Order
    program: dict[str, bytes]
    hosts: int | None
    slices: int | None
    wait: float
    events: socket.socket
    parcel: int
    tell: Callable[[str], None]


class Cluster:
    """A connection to a Ray cluster, and the groups of hosts that are held there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connected = False
        self._groups: list[Group] = []
        self._released = 0.0

    # ------------------------------------------------------------ the connection

    async def connect(self) -> None:
        """Raises LaunchError."""
        if self._connected:
            return
        try:
            await _within(faults.PATIENCE, _connect, self.address)
        except Exception as problem:
            kind = type(problem).__name__
            said = faults.unreachable(self.address, kind, str(problem))
            raise LaunchError(said) from problem
        self._connected = True

    async def close(self) -> None:
        """Give everything back."""
        if not self._connected:
            return
        import ray

        for group in list(self._groups):
            await self.release(group)
        with contextlib.suppress(Exception):
            await _within(5.0, ray.shutdown)

    # ------------------------------------------------------------ hosts

    async def hosts(self, launch: Launch) -> Group:
        """Hosts for a launch, those of the last one if they fit. Raises LaunchError."""
        shape = launch.hosts, launch.slices, launch.order.asked.get("PJRT_DEVICE")
        for group in self._groups:
            if group.shape == shape and not group.broken:
                return group
        for group in [group for group in self._groups if not group.runs]:
            await self.release(group)
        bundles = await self._bundles(launch)
        launch.tell(f"starting xla_nb on {len(bundles)} hosts of the cluster …")
        group = await self._place(shape, bundles, launch.wait)
        self._groups.append(group)
        return group

    async def _bundles(self, launch: Launch) -> list[Bundle]:
        """What each host takes, as soon as the cluster has it, or the time for that is over."""
        deadline = time.monotonic() + launch.wait
        while True:
            nodes = await self._survey()
            tpu = launch.order.asked.get("PJRT_DEVICE") != "CPU" and any(
                node.alive and node.total.get("TPU") for node in nodes
            )
            found = demand.choose(nodes, launch.hosts, launch.slices, tpu=tpu)
            if not isinstance(found, Lacking):
                return found
            now = time.monotonic()
            if now >= max(deadline, self._released + _FREED):
                raise LaunchError(found.text)
            if launch.wait:
                left = max(0, deadline - now)
                launch.tell(f"waiting for the cluster: {found.short} ({_clock(left)} left)")
            await asyncio.sleep(0.5)

    async def _survey(self) -> list[Node]:
        try:
            return await _within(faults.PATIENCE, _survey)
        except Exception as problem:
            kind = type(problem).__name__
            said = faults.unreachable(self.address, kind, str(problem))
            raise LaunchError(said) from problem

    async def _place(self, shape: object, bundles: Sequence[Bundle], wait: float) -> Group:
        from ray.util import placement_group

        placement = placement_group(list(bundles), strategy="STRICT_SPREAD")
        actors: list[Any] = []
        try:
            if not await _within(wait + _READY + 5, placement.wait, wait + _READY):
                raise LaunchError(
                    f"the cluster did not place {len(bundles)} hosts within {wait + _READY:g} s, "
                    "though it said that they are free: others may have been faster. What to do: "
                    "run the cell again, or wait longer (`--wait 5m`)"
                )
            actors += [_actor(placement, n, bundle) for n, bundle in enumerate(bundles)]
            abouts = [await actor.about.remote() for actor in actors]
        except LaunchError:
            self._remove(placement, actors)
            raise
        except Exception as problem:
            self._remove(placement, actors)
            raise LaunchError(faults.unplaced(str(problem))) from problem
        known = [(about.hostname, about.address, about.node) for about in abouts]
        group = Group(shape, placement, actors, abouts, demand.names(known))
        try:
            for name, about in zip(group.names, abouts, strict=True):
                _check_versions(name, about)
        except LaunchError:
            self._remove(placement, actors)
            raise
        return group

    async def release(self, group: Group) -> None:
        """End all that runs on these hosts, and give them back."""
        if group in self._groups:
            self._groups.remove(group)
        await asyncio.to_thread(self._remove, group.placement, group.actors)

    def _remove(self, placement: Any, actors: Sequence[Any]) -> None:
        import ray
        from ray.util import remove_placement_group

        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)  # its fork servers end with it, and with them all else
        with contextlib.suppress(Exception):
            remove_placement_group(placement)
        self._released = time.monotonic()

    async def release_idle(self) -> None:
        """Every now and then: hosts that are not used are for others."""
        while True:
            await asyncio.sleep(10)
            for group in list(self._groups):
                if not group.runs and time.monotonic() - group.used > IDLE:
                    await self.release(group)


# ---------------------------------------------------------------- what Ray does, one call each


def _connect(address: str) -> None:
    """To an address; without one to a cluster of this machine's, which is started if need be."""
    import ray

    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address:
        ray.init(address, **({} if address.startswith("ray://") else how))
        return
    try:
        ray.init("auto", **how)
    except ConnectionError:
        ray.init(include_dashboard=False, **how)


def _survey() -> list[Node]:
    """The cluster's nodes; a task tells what is free where only Ray's client is here."""
    import ray
    from ray.util import client

    def free() -> dict[str, dict[str, float]]:
        from ray._private.state import available_resources_per_node

        found: dict[str, dict[str, float]] = available_resources_per_node()
        return found

    connected = client.ray.is_connected()
    per_node = ray.get(ray.remote(num_cpus=0)(free).remote()) if connected else free()
    return [
        Node(
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            alive=node["Alive"],
            total=node["Resources"],
            free=per_node.get(node["NodeID"], {}),
            labels=node.get("Labels") or {},
        )
        for node in ray.nodes()
    ]


def _actor(placement: Any, index: int, bundle: Bundle) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    others = {name: count for name, count in bundle.items() if name != "CPU"}
    return (
        ray.remote(Actor)
        .options(
            num_cpus=bundle.get("CPU", 0),
            resources=others,
            max_concurrency=_CALLS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement, placement_group_bundle_index=index
            ),
        )
        .remote()
    )


def _check_versions(name: str, about: About) -> None:
    """What a program and its values must find there as they left it here."""
    here = platform.python_version()
    if about.python.split(".")[:2] != here.split(".")[:2]:
        raise LaunchError(faults.differing(name, "Python", about.python, here))
    if about.version != version():
        raise LaunchError(faults.differing(name, "xla_nb", about.version, version()))


# ---------------------------------------------------------------- a run


class Relay:
    """A run on its hosts, and the way home of what they tell."""

    def __init__(self, launch: Launch, group: Group) -> None:
        self._run = launch.order.run
        self._events = launch.events
        self._group = group
        self._mirror = Mirror(Path(launch.order.record))
        self._seats: list[int] = []  # the actors in the order of the run's hosts
        self._left = 0

    @property
    def _names(self) -> list[str]:
        return [self._group.names[seat] for seat in self._seats]

    async def start(self, launch: Launch) -> None:
        """On all hosts at once, or on none. Raises LaunchError."""
        parts = await self._parts(launch)
        parcel = await asyncio.to_thread(_stored, launch.parcel)
        launch.tell(f"importing what the ranks need on {len(parts)} hosts, once for this session …")
        calls = [
            self._group.actors[seat].start.remote(part, parcel)
            for seat, part in zip(self._seats, parts, strict=True)
        ]
        try:
            answers = await _all(calls)
        except Exception as problem:
            self.kill()
            self._group.broken = True
            raise LaunchError(faults.unplaced(str(problem))) from problem
        refused = [
            f"{name}: {said}" if len(parts) > 1 else said
            for name, said in zip(self._names, answers, strict=True)
            if said
        ]
        if refused:
            self.kill()
            raise LaunchError(refused[0])

    async def _parts(self, launch: Launch) -> list[Part]:
        """What each host is to do, in the order of slices and of hosts in them."""
        group = self._group
        hosts = [
            slices.Host(about.address, name, about.environ)
            for name, about in zip(group.names, group.abouts, strict=True)
        ]
        pod = all(about.chips for about in group.abouts)
        seats = slices.seats(hosts, launch.slices, pod=pod)
        self._seats = [hosts.index(seat.host) for seat in seats]
        address = None
        if len(seats) > 1:
            address = await group.actors[self._seats[0]].hold_port.remote()
        return [
            Part(
                seat.host.name,
                replace(launch.order, world=World(len(seats), index, address)),
                launch.program,
                seat.variables,
            )
            for index, seat in enumerate(seats)
        ]

    async def follow(self) -> None:
        """Until every host has told all, or is lost."""
        self._left = len(self._seats)
        await self._send(events.encode(events.HostsPlaced(names=tuple(self._names))))
        await asyncio.gather(*(self._follow(index) for index in range(len(self._seats))))

    async def _follow(self, index: int) -> None:
        name, actor = self._names[index], self._group.actors[self._seats[index]]
        try:
            await self._take_all(actor)
        except Exception as problem:  # Ray has a dozen kinds for a host that is gone
            self._group.broken = True
            why = faults.why_lost(str(problem))
            await self._send(events.encode(events.HostLost(host=name, why=why)))
        self._left -= 1
        if self._left == 1:
            self._tell_the_first()

    def _tell_the_first(self) -> None:
        """Host 0 may serve the others (jax_world.Coordinator) and go only after them. It is the
        one that is left, or has gone by itself."""
        self._group.actors[self._seats[0]].alone.remote(self._run)

    async def _take_all(self, actor: Any) -> None:
        import ray

        seen, silent = 0, 0.0
        while True:
            try:
                news: News = await actor.news.remote(self._run, seen)
            except ray.exceptions.ActorUnavailableError:
                silent = silent or time.monotonic()
                if time.monotonic() - silent > _LOST:
                    raise
                await asyncio.sleep(0.2)
                continue
            seen, silent = news.number, 0.0
            self._mirror.take(news.files)
            for event in news.events:
                await self._send(event)
            if news.over:
                return

    async def _send(self, event: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody listens any more
            await asyncio.get_running_loop().sock_sendall(self._events, event)

    # ------------------------------------------------------------ from the notebook

    def interrupt(self, pids: dict[str, list[int]]) -> None:
        for name, numbers in pids.items():
            if name in self._group.names:
                self._actor(name).interrupt.remote(self._run, numbers)

    def kill(self) -> None:
        for actor in self._group.actors:
            actor.kill.remote(self._run)

    def ask(self) -> None:
        for actor in self._group.actors:
            actor.ask.remote(self._run)

    async def fetch(self, host: str, file: str, into: int) -> None:
        """Write a file as it lies on its host to `into`, behind a byte that says it is there."""
        with open(into, "wb", buffering=0) as pipe:  # a descriptor, not a path
            if host not in self._group.names or self._group.broken:
                return
            offset = 0
            while True:
                read = self._actor(host).read.remote(self._run, file, offset, _BLOCK)
                block: bytes = await asyncio.wait_for(_awaited(read), faults.PATIENCE)
                await asyncio.to_thread(_write, pipe.fileno(), block if offset else b"1" + block)
                offset += len(block)
                if not block:
                    return

    def _actor(self, name: str) -> Any:
        return self._group.actors[self._group.names.index(name)]


def _stored(parcel: int) -> Any:
    """The values: as they are, or once for all hosts in the object store."""
    import ray

    size = os.fstat(parcel).st_size
    content = os.pread(parcel, size, 0) if size <= _INLINE else _whole(parcel, size)
    return content if size <= _INLINE else ray.put(content)


def _whole(parcel: int, size: int) -> bytes:
    with open(parcel, "rb", closefd=False) as file:  # a descriptor, not a path
        file.seek(0)
        return file.read(size)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


# ---------------------------------------------------------------- the process


class Driver:
    """One control socket in; launches, and what is said to them, out."""

    def __init__(self, control: socket.socket, address: str) -> None:
        self._control = control
        self._cluster = Cluster(address)
        self._relays: dict[str, tuple[Relay, Group]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()  # one launch at a time looks for hosts

    async def serve(self) -> None:
        """Until the notebook's end of the control socket is closed."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        loop.add_reader(self._control, self._hear, over)
        self._go(self._cluster.release_idle())
        await over
        loop.remove_reader(self._control)
        for task in [*self._tasks.values(), *self._others]:
            task.cancel()
        await self._cluster.close()

    def _go(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _hear(self, over: asyncio.Future[None]) -> None:
        message, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 4)
        if not message:
            if not over.done():
                over.set_result(None)
            return
        said = json.loads(message)
        match said["do"]:
            case "launch":
                launch = self._launch_of(said, fds)
                task = asyncio.get_running_loop().create_task(self._launch(launch))
                self._tasks[launch.id] = task
                task.add_done_callback(lambda _: self._tasks.pop(launch.id, None))
            case "abandon":
                if said["id"] in self._tasks:
                    self._tasks[said["id"]].cancel()
            case "fetch":
                self._fetch(said, *fds)
            case "interrupt" | "kill" | "ask":
                self._steer(said)

    def _launch_of(self, said: dict[str, Any], fds: list[int]) -> Launch:
        happened, parcel, told = fds
        with open(told, "rb") as file:  # noqa: PTH123 # a descriptor, not a path
            file.seek(0)
            order, program = pickle.load(file)
        sock = socket.socket(fileno=happened)
        sock.setblocking(False)

        def tell(what: str) -> None:
            self._say(id=said["id"], waiting=what)

        asked = said["hosts"], said["slices"], said["wait"]
        return Launch(said["id"], order, program, *asked, sock, parcel, tell)

    async def _launch(self, launch: Launch) -> None:
        run = launch.order.run
        with launch.events:
            try:
                async with self._order:
                    launch.tell("connecting to the Ray cluster …")
                    await self._cluster.connect()
                    group = await self._cluster.hosts(launch)
                    group.runs.add(run)
                relay = Relay(launch, group)
                self._relays[run] = relay, group
                await relay.start(launch)
            except XlaNbError as problem:
                self._say(id=launch.id, refused=str(problem))
                await self._left(run)
                return
            except asyncio.CancelledError:
                if run in self._relays:
                    self._relays[run][0].kill()
                await self._left(run)
                raise
            finally:
                os.close(launch.parcel)
            self._say(id=launch.id, started=True)
            await relay.follow()
            await self._left(run)
        gc.collect()  # what holds references to Ray's objects

    async def _left(self, run: str) -> None:
        """A run is over; hosts of which one is lost are of no more use."""
        _, group = self._relays.get(run, (None, None))
        if group is None:
            return
        group.runs.discard(run)
        group.used = time.monotonic()
        if group.broken and not group.runs:
            await self._cluster.release(group)

    def _steer(self, said: dict[str, Any]) -> None:
        if said["run"] not in self._relays:
            return
        relay, _ = self._relays[said["run"]]
        match said["do"]:
            case "interrupt":
                relay.interrupt(said["pids"])
            case "kill":
                relay.kill()
            case "ask":
                relay.ask()

    def _fetch(self, said: dict[str, Any], into: int) -> None:
        if said["run"] not in self._relays:
            os.close(into)
            return
        relay, _ = self._relays[said["run"]]

        async def fetch() -> None:
            with contextlib.suppress(Exception):  # the host is gone, or nobody reads any more
                await relay.fetch(said["host"], said["file"], into)

        self._go(fetch())

    def _say(self, **answer: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._control.send(json.dumps(answer).encode())


async def _within(seconds: float, call: Callable[..., T], *arguments: Any) -> T:
    """A call that holds up its caller, in a thread. Raises TimeoutError."""
    return await asyncio.wait_for(asyncio.to_thread(call, *arguments), seconds)


async def _awaited(reference: Awaitable[T]) -> T:
    return await reference


async def _all(references: Sequence[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*map(_awaited, references)))


def _clock(seconds: float) -> str:
    """In steps that do not make a new line of each look."""
    rounded = -(-int(seconds) // 15) * 15
    return f"{rounded // 60}:{rounded % 60:02d}"


def main(fd: int, address: str) -> None:
    """Entry of the process."""
    die_with_parent()
    name_process("xla_nb-ray")
    control = socket.socket(fileno=fd)
    control.setblocking(False)
    asyncio.run(Driver(control, address).serve())
    os._exit(0)  # a thread that waits for a cluster which is gone would hold us up
