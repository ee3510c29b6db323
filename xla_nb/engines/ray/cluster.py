"""A connection to a Ray cluster, and the hosts that are held there.

Blocking calls of Ray run in threads, with a time limit, because the driver has one event loop.
Hosts are held for later launches; idle and broken ones are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from xla_nb.engines.ray import demand, faults
from xla_nb.engines.ray.actor import Actor
from xla_nb.engines.ray.demand import Bundle, Lacking, Node
from xla_nb.engines.ray.host import About, version
from xla_nb.errors import LaunchError
from xla_nb.topology.slices import WORKER as _WORKER
from xla_nb.topology.slices import Host, Seat, seats
from xla_nb.wording import several

#: How long unused hosts are held, in seconds.
IDLE = 600.0
_FREED = 5.0  # seconds until released resources count as free
_ROUND = 10.0  # seconds between two checks for unused hosts
_LOOK = 0.5  # seconds between two checks for free resources
_READY = 60.0  # seconds for a placement that is known to be possible
_CALLS = 16  # concurrent calls to one host

T = TypeVar("T")


class Unreachable(LaunchError):
    """The cluster does not answer, and Ray cannot connect again in this process."""


@dataclass
class Wish:
    """The hosts that a launch needs; None for all. `tell` receives what it waits for; `cpu`: no
    TPU is wanted."""

    id: int
    hosts: int | None
    slices: int | None
    wait: float
    tell: Callable[[str], None]
    cpu: bool

    def choose(self, nodes: Sequence[Node]) -> list[Bundle] | Lacking:
        """The resources of each host on these nodes."""
        tpu = not self.cpu and demand.has_tpus(nodes)
        return demand.choose(nodes, self.hosts, self.slices, tpu=tpu)


@dataclass
class ActorGroup:
    """Placed hosts with an actor on each, held for launch after launch. `hosts` and `slices` are
    those of the wish; `among_tpus`: the cluster has TPUs."""

    hosts: int | None
    slices: int | None
    placement: Any
    bundles: Sequence[Bundle]
    actors: list[Any]
    abouts: list[About]
    names: list[str]
    among_tpus: bool = False
    runs: set[str] = field(default_factory=set)
    fresh: bool = True  # no run has been started there yet
    broken: bool = False
    used: float = field(default_factory=time.monotonic)

    def serves(self, wish: Wish) -> bool:
        """Whether these hosts fit the wish; simulated ones fit any number of slices."""
        if self.broken or self.hosts != wish.hosts or (self.tpu and wish.cpu):
            return False
        return self.slices == wish.slices if self.tpu else wish.cpu or not self.among_tpus

    @property
    def tpu(self) -> bool:
        """Whether these are TPU VMs whose chips the run gets."""
        return any("TPU" in bundle for bundle in self.bundles)

    def hosts_in_order(self) -> list[Host]:
        return [
            Host(about.address, name, about.environ)
            for name, about in zip(self.names, self.abouts, strict=True)
        ]

    def seats(self, count: int | None) -> list[Seat]:
        """Seat the hosts in so many slices. Raises UsageError."""
        return seats(self.hosts_in_order(), count, pod=self.tpu)


class Cluster:
    """A connection to a Ray cluster, and the groups of hosts that are held there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connecting: asyncio.Future[None] | None = None
        self._groups: list[ActorGroup] = []
        self._released = 0.0

    # ------------------------------------------------------------ the connection

    async def connect(self) -> None:
        """Connect once per process. Raises Unreachable."""
        if self._connecting is None:  # shielded: an abandoned launch leaves it to the next one
            call = asyncio.to_thread(_connect, self.address)
            self._connecting = asyncio.ensure_future(call)
        try:
            await asyncio.wait_for(asyncio.shield(self._connecting), faults.PATIENCE)
        except Exception as problem:
            raise self._unreachable(problem) from problem

    def _unreachable(self, problem: Exception) -> Unreachable:
        kind = type(problem).__name__
        return Unreachable(faults.unreachable(self.address, kind, str(problem)))

    @property
    def _connected(self) -> bool:
        future = self._connecting
        return future is not None and future.done() and future.exception() is None

    async def close(self) -> None:
        """Release everything and disconnect."""
        if not self._connected:
            return
        import ray

        for group in list(self._groups):
            await self.release(group)
        with contextlib.suppress(Exception):
            await within(5.0, ray.shutdown)

    # ------------------------------------------------------------ hosts

    async def hosts(self, wish: Wish) -> ActorGroup:
        """Hosts for a launch: held ones if they fit, else new ones. Raises LaunchError."""
        wish.tell("connecting to the Ray cluster …")
        await self.connect()
        for group in self._groups:
            if group.serves(wish):
                group.used = time.monotonic()
                return group
        nodes, bundles = await self._bundles(wish)
        wish.tell(f"starting xla_nb on {several(len(bundles), 'host')} of the cluster …")
        group = await self._place(wish, nodes, bundles)
        self._groups.append(group)
        return group

    async def _bundles(self, wish: Wish) -> tuple[list[Node], list[Bundle]]:
        """The cluster's nodes and the resources of each host on them, once enough are free.

        Idle held hosts are released if that helps. Raises LaunchError after the wish's wait."""
        deadline = time.monotonic() + wish.wait
        while True:
            nodes = await self._survey()
            if not isinstance(choice := wish.choose(nodes), Lacking):
                return nodes, choice
            idle = [group for group in self._groups if not group.runs]
            choice = wish.choose(_with_held(nodes, idle))
            now = time.monotonic()
            if not isinstance(choice, Lacking):
                for group in idle:
                    await self.release(group)
            elif now >= max(deadline, self._released + _FREED):
                raise LaunchError(choice.text)
            elif wish.wait:
                left = _clock(deadline - now, wish.wait)
                wish.tell(f"waiting for the cluster, up to {left}: {choice.short}")
            await asyncio.sleep(_LOOK)

    async def _survey(self) -> list[Node]:
        try:
            return await within(faults.PATIENCE, _survey)
        except Exception as problem:
            raise self._unreachable(problem) from problem

    async def _place(
        self, wish: Wish, nodes: Sequence[Node], bundles: Sequence[Bundle]
    ) -> ActorGroup:
        placement = await within(faults.PATIENCE, _placement, bundles)
        actors: list[Any] = []
        try:
            patience = wish.wait + _READY
            if not await within(patience + 5, placement.wait, patience):
                raise LaunchError(
                    f"The cluster did not place {several(len(bundles), 'host')} within "
                    f"{patience:g} s although it reported enough free resources: another job may "
                    "have taken them. Run the cell again, or wait longer (`--wait 5m`)."
                )
            await within(faults.PATIENCE, _make_actors, placement, bundles, actors)
            abouts, names = await asyncio.wait_for(_introduced(actors, bundles), _READY)
        except BaseException as problem:  # including an interrupted launch
            await self._give_back(placement, actors)
            if isinstance(problem, LaunchError) or not isinstance(problem, Exception):
                raise
            raise LaunchError(faults.unplaced(str(problem))) from problem
        return ActorGroup(
            wish.hosts,
            wish.slices,
            placement,
            bundles,
            actors,
            _numbered(abouts, nodes),
            names,
            demand.has_tpus(nodes),
        )

    def holds(self, group: ActorGroup) -> bool:
        return group in self._groups

    async def release(self, group: ActorGroup) -> None:
        """End everything that runs on these hosts, and give them back."""
        if group in self._groups:
            self._groups.remove(group)
        await self._give_back(group.placement, group.actors)

    async def _give_back(self, placement: Any, actors: Sequence[Any]) -> None:
        with contextlib.suppress(TimeoutError):  # the cluster does not answer
            await within(_FREED, self._remove, placement, actors)

    def _remove(self, placement: Any, actors: Sequence[Any]) -> None:
        import ray
        from ray.util import remove_placement_group

        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)  # its fork servers and their jobs end with it
        with contextlib.suppress(Exception):
            remove_placement_group(placement)
        self._released = time.monotonic()

    async def release_idle(self) -> None:
        """Release unused hosts after IDLE seconds; runs until cancelled."""
        while True:
            await asyncio.sleep(_ROUND)
            for group in list(self._groups):
                if not group.runs and time.monotonic() - group.used > IDLE:
                    await self.release(group)


# ---------------------------------------------------------------- calls of Ray


def _connect(address: str) -> None:
    """Connect to an address; without one to this machine's cluster, started if there is none."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address:
        ray.init(address, **({} if address.startswith("ray://") else options))
        return
    try:
        ray.init("auto", **options)
    except ConnectionError:
        ray.init(include_dashboard=False, **options)


def _survey() -> list[Node]:
    """The cluster's nodes. Through Ray's client, only a task can read what is free."""
    import ray
    from ray.util import client

    def free() -> dict[str, dict[str, float]]:
        from ray._private.state import available_resources_per_node

        resources: dict[str, dict[str, float]] = available_resources_per_node()
        return resources

    connected = client.ray.is_connected()
    per_node = ray.get(ray.remote(num_cpus=0)(free).remote()) if connected else free()
    return [
        Node(
            id=node["NodeID"],
            name=node["NodeManagerHostname"],
            address=node["NodeManagerAddress"],
            alive=node["Alive"],
            total=node["Resources"],
            free=per_node.get(node["NodeID"], {}),
            labels=node.get("Labels") or {},
        )
        for node in ray.nodes()
    ]


def _numbered(abouts: Sequence[About], nodes: Sequence[Node]) -> list[About]:
    """The hosts with the worker numbers of their nodes' labels, if their environments lack them:
    on such a VM only the metadata server knows its number."""
    numbers = demand.workers(nodes, [about.node for about in abouts])
    return [
        replace(about, environ={_WORKER: str(numbers[about.node]), **about.environ})
        if about.chips and about.node in numbers
        else about
        for about in abouts
    ]


def _with_held(nodes: Sequence[Node], idle: Sequence[ActorGroup]) -> list[Node]:
    """The nodes with the resources of idle held hosts counted as free."""
    for group in idle:
        held = {about.node: b for about, b in zip(group.abouts, group.bundles, strict=True)}
        nodes = [node.with_free(held.get(node.id, {})) for node in nodes]
    return list(nodes)


def _placement(bundles: Sequence[Bundle]) -> Any:
    from ray.util import placement_group

    return placement_group(list(bundles), strategy="STRICT_SPREAD")


def _make_actors(placement: Any, bundles: Sequence[Bundle], actors: list[Any]) -> None:
    """Append the actors to a list, so that an abandoned launch can release those made so far."""
    for index, bundle in enumerate(bundles):
        actors.append(_actor(placement, index, bundle))


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


async def _introduced(
    actors: list[Any], bundles: Sequence[Bundle]
) -> tuple[list[About], list[str]]:
    """The hosts' descriptions and names. Raises LaunchError if a host will not do."""
    calls = [actor.about.remote() for actor in actors]
    abouts: list[About] = [await call for call in calls]
    names = demand.names((about.hostname, about.address, about.node) for about in abouts)
    for name, about, bundle in zip(names, abouts, bundles, strict=True):
        _check_versions(name, about)
        if "TPU" in bundle and not about.chips:
            raise LaunchError(faults.no_chips(name, bundle["TPU"]))
    return abouts, names


def _check_versions(name: str, about: About) -> None:
    """A program and its values need the same Python and xla_nb there. Raises LaunchError."""
    here = platform.python_version()
    if about.python.split(".")[:2] != here.split(".")[:2]:
        raise LaunchError(faults.differing(name, "Python", about.python, here))
    if about.version != version():
        raise LaunchError(faults.differing(name, "xla_nb", about.version, version()))


async def within(seconds: float, call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread. Raises TimeoutError."""
    return await asyncio.wait_for(asyncio.to_thread(call, *arguments), seconds)


def _clock(seconds: float, most: float) -> str:
    """Minutes and seconds, in steps of 30 s, so that the text rarely changes."""
    rounded = int(min(most, -(-seconds // 30) * 30))
    return f"{rounded // 60}:{rounded % 60:02d} min" if rounded >= 60 else f"{rounded} s"
