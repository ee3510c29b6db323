"""A connection to a Ray cluster, and the hosts that are held there.

Ray would wait forever for resources that it cannot place, so they are counted first, and missing
ones reported. Blocking calls of Ray run in threads, with a time limit, because the driver has one
event loop. Hosts are held for later launches; idle and broken ones are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from xla_nb.engines.ray import faults
from xla_nb.engines.ray.host import About, HostActor, version
from xla_nb.errors import LaunchError
from xla_nb.topology.slices import WORKER, Host, Seat, seats
from xla_nb.wording import several

#: How long unused hosts are held, in seconds.
IDLE = 600.0
_FREED = 5.0  # seconds until released resources count as free
_ROUND = 10.0  # seconds between two checks for unused hosts
_LOOK = 0.5  # seconds between two checks for free resources
_READY = 60.0  # seconds for a placement that is known to be possible
_CALLS = 16  # concurrent calls to one host
_ROWS = 40  # nodes listed in an error

# Ray's names (ray/_private/accelerators/tpu.py): a TPU VM has `TPU` (its chips) and the name of its
# slice, and worker 0 of a slice of several VMs has `TPU-<type>-head`; labels give the slice, its
# shape and the worker number.
_SLICE, _WORKER = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
_TOPOLOGY, _POD_TYPE = "ray.io/tpu-topology", "ray.io/tpu-pod-type"
_HEAD = re.compile(r"TPU-(.+)-head")

_HELD = "{} xla_nb itself holds {} for launches like the last ones; these count as taken here."

T = TypeVar("T")
#: The resources that one host of a run takes from its node.
Bundle = dict[str, float]


class Unreachable(LaunchError):
    """The cluster does not answer, and Ray cannot connect again in this process."""


# ---------------------------------------------------------------- free resources


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: its total and free resources, and its labels."""

    name: str
    address: str
    id: str = ""
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def slice(self) -> str:
        """The TPU slice to which the node belongs; without a label, a slice of its own."""
        return self.labels.get(_SLICE, "") or f"{self.name} {self.address}"

    @property
    def chips_of_slice(self) -> int:
        """The number of chips of its whole slice, from a label such as 2x2x2; 0 without one."""
        sides = self.labels.get(_TOPOLOGY, "").split("x")
        return math.prod(map(int, sides)) if all(map(str.isdecimal, sides)) else 0

    @property
    def worker(self) -> int:
        """Its number in its slice."""
        label = self.labels.get(_WORKER, "")
        return int(label) if label.isdecimal() else 0

    @property
    def chips(self) -> Bundle:
        """The resources of a TPU VM: its chips, one of the slice's name, and the slice's head."""
        names = [self.labels.get(_SLICE, ""), *filter(_HEAD.fullmatch, self.total)]
        return {"TPU": self.total["TPU"], **{name: 1.0 for name in names if name in self.total}}

    def has(self, bundle: Bundle) -> bool:
        """True if the node has these resources free."""
        return all(self.free.get(name, 0) > count - 1e-6 for name, count in bundle.items())


class Lacking(LaunchError):
    """The cluster lacks resources at the moment; `short` says which in one line."""

    def __init__(self, short: str, nodes: Sequence[Node], resource: str) -> None:
        self.short = short
        rows = [
            f"  {node.name} ({node.address}): {node.free.get(resource, 0):g} of "
            f"{node.total.get(resource, 0):g} {resource} free"
            for node in nodes
        ]
        if len(rows) > _ROWS:
            rows[_ROWS:] = [f"  and {several(len(rows) - _ROWS, 'more node')}"]
        fix = (
            "Use fewer (--hosts), add nodes (`ray start --address=...` on each), or wait for other "
            "jobs to finish (`--wait 5m`)."
        )
        super().__init__("\n".join([f"{short}:", *rows, fix]))


def choose(
    nodes: Sequence[Node], hosts: int | None, slices: int | None, *, tpu: bool
) -> list[Bundle]:
    """The resources of each host of a run, in the order of slices and workers. Raises Lacking.

    hosts: the total number; None for all free ones (on TPUs, those of `slices` slices).
    """
    return _choose_slices(nodes, hosts, slices or 1) if tpu else _choose_nodes(nodes, hosts)


def _choose_nodes(nodes: Sequence[Node], hosts: int | None) -> list[Bundle]:
    bundle: Bundle = {"CPU": 1.0}
    available = sum(node.has(bundle) for node in nodes)
    count = hosts if hosts is not None else max(1, available)
    if available >= count:
        return [bundle] * count
    short = f"Need {several(count, 'host')} with a free CPU, but {_only(available)} available"
    raise Lacking(short, nodes, "CPU")


def _choose_slices(nodes: Sequence[Node], hosts: int | None, slices: int) -> list[Bundle]:
    """The resources of all VMs of so many equal slices, the largest that are free."""
    slice_size = None if hosts is None else hosts // slices  # the options have been checked
    by_name: dict[str, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.worker):
        if node.total.get("TPU"):
            by_name.setdefault(node.slice, []).append(node)
    by_kind: dict[tuple[int, str], list[list[Node]]] = {}
    for members in by_name.values():
        free = all(node.has(node.chips) for node in members)
        if free and _is_whole(members) and slice_size in (None, len(members)):
            kind = len(members), members[0].labels.get(_POD_TYPE, "")
            by_kind.setdefault(kind, []).append(members)
    for _, candidates in sorted(by_kind.items(), key=lambda item: -item[0][0]):
        if len(candidates) >= slices:
            return [node.chips for members in candidates[:slices] for node in members]
    size = "" if slice_size is None else f" of {several(slice_size, 'host')}"
    like = " of the same type" if slices > 1 else ""
    most = max(map(len, by_kind.values()), default=0)
    short = f"Need {several(slices, 'whole TPU slice')}{size}{like}, but {_only(most)} free"
    raise Lacking(short, nodes, "TPU")


def _is_whole(members: Sequence[Node]) -> bool:
    """True if no VM of the slice is missing: all chips and worker 0 are present."""
    if sum(node.total["TPU"] for node in members) < members[0].chips_of_slice:
        return False
    return len(members) == 1 or any(
        _HEAD.fullmatch(name) for node in members for name in node.total
    )


def _only(number: int) -> str:
    return "only 1 is" if number == 1 else f"only {number} are" if number else "none is"


# ---------------------------------------------------------------- hosts


@dataclass
class Wish:
    """The hosts that a launch needs; None for all. `tell` receives what it waits for; `cpu`: it
    wants no TPU. Equal wishes may get the same hosts."""

    hosts: int | None
    slices: int | None
    wait: float = field(compare=False)
    tell: Callable[[str], None] = field(compare=False)
    cpu: bool


@dataclass
class ActorGroup:
    """Placed hosts with an actor on each, held for later launches with the same wish."""

    wish: Wish
    placement: Any
    bundles: Sequence[Bundle]
    actors: list[Any]
    machines: list[Host]
    runs: set[str] = field(default_factory=set)
    broken: bool = False
    used: float = field(default_factory=time.monotonic)

    @property
    def names(self) -> list[str]:
        return [machine.name for machine in self.machines]

    def seats(self, count: int | None) -> list[Seat]:
        """Assign the hosts to seats in so many slices. Raises UsageError."""
        pod = any("TPU" in bundle for bundle in self.bundles)
        return seats(self.machines, count, pod=pod)


class Cluster:
    """A connection to a Ray cluster, and the groups of hosts that are held there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._connecting: asyncio.Future[None] | None = None
        self._groups: list[ActorGroup] = []
        self._released = 0.0

    async def _connect(self) -> None:
        """Connect once per process. Raises Unreachable."""
        if self._connecting is None:  # shielded: an abandoned launch leaves it for the next one
            call = asyncio.to_thread(_connect, self.address)
            self._connecting = asyncio.ensure_future(call)
        await self._await_answer(asyncio.shield(self._connecting))

    async def _await_answer(self, call: asyncio.Future[T]) -> T:
        try:
            return await asyncio.wait_for(call, faults.PATIENCE)
        except Exception as problem:
            kind = type(problem).__name__
            raise Unreachable(faults.unreachable(self.address, kind, str(problem))) from problem

    async def close(self) -> None:
        """Release everything and disconnect."""
        future = self._connecting
        if future is None or not future.done() or future.exception() is not None:
            return
        import ray

        for group in list(self._groups):
            await self.release(group)
        with contextlib.suppress(Exception):
            await within(5.0, ray.shutdown)

    async def hosts(self, wish: Wish) -> ActorGroup:
        """Hosts for a launch: held ones if they fit, otherwise new ones. Raises LaunchError."""
        wish.tell("connecting to the Ray cluster …")
        await self._connect()
        for group in self._groups:
            if group.wish == wish and not group.broken:
                group.used = time.monotonic()
                return group
        nodes, bundles = await self._wait_for_bundles(wish)
        wish.tell(f"starting xla_nb on {several(len(bundles), 'host')} of the cluster …")
        group = await self._place(wish, nodes, bundles)
        self._groups.append(group)
        return group

    async def _wait_for_bundles(self, wish: Wish) -> tuple[list[Node], list[Bundle]]:
        """The cluster's nodes and the resources of each host on them, once enough are free.

        Releases idle held hosts if that may help. Raises Lacking after the wish's wait."""
        deadline = time.monotonic() + wish.wait
        while True:
            nodes, tpu = await self._nodes(wish)
            try:
                return nodes, choose(nodes, wish.hosts, wish.slices, tpu=tpu)
            except Lacking as lacking:
                idle = [group for group in self._groups if not group.runs]
                if idle and _could_fit(nodes, wish, tpu):
                    for group in idle:
                        await self.release(group)
                elif time.monotonic() >= max(deadline, self._released + _FREED):
                    if held := len({machine.name for group in idle for machine in group.machines}):
                        raise LaunchError(_HELD.format(lacking, several(held, "host"))) from None
                    raise
                elif wish.wait:
                    most = f"up to {wish.wait:g} s"
                    wish.tell(f"waiting for the cluster, {most}: {lacking.short}")
            await asyncio.sleep(_LOOK)

    async def _nodes(self, wish: Wish) -> tuple[list[Node], bool]:
        """The cluster's nodes, and whether the launch is for TPUs."""
        nodes = await self._await_answer(asyncio.ensure_future(asyncio.to_thread(_survey)))
        return nodes, not wish.cpu and any(node.total.get("TPU") for node in nodes)

    async def _place(
        self, wish: Wish, nodes: Sequence[Node], bundles: Sequence[Bundle]
    ) -> ActorGroup:
        placement = await within(faults.PATIENCE, _make_placement, bundles)
        group = ActorGroup(wish, placement, bundles, [], [])
        try:
            patience = wish.wait + _READY
            if not await within(patience + 5, placement.wait, patience):
                now, tpu = await self._nodes(wish)
                choose(now, wish.hosts, wish.slices, tpu=tpu)  # a node may have been dead already
                raise LaunchError(
                    f"The cluster did not place {several(len(bundles), 'host')} within "
                    f"{patience:g} s, although it reported enough free resources; another job may "
                    "have taken them. Run the cell again, or wait longer (`--wait 5m`)."
                )
            await within(faults.PATIENCE, _make_actors, group)
            machines = _introduced(group.actors, bundles, nodes)
            group.machines = await asyncio.wait_for(machines, _READY)
        except BaseException as problem:  # including an interrupted launch
            await self.release(group)
            if isinstance(problem, LaunchError) or not isinstance(problem, Exception):
                raise
            raise LaunchError(faults.unplaced(str(problem))) from problem
        return group

    async def release(self, group: ActorGroup) -> None:
        """End everything that runs on these hosts, and release them."""
        self._groups = [other for other in self._groups if other is not group]
        with contextlib.suppress(TimeoutError):  # the cluster does not answer
            await within(_FREED, _remove, group)
        self._released = time.monotonic()

    async def release_idle(self) -> None:
        """Release hosts unused for IDLE seconds; runs until cancelled."""
        while True:
            await asyncio.sleep(_ROUND)
            for group in list(self._groups):
                if not group.runs and time.monotonic() - group.used > IDLE:
                    await self.release(group)


def _could_fit(nodes: Sequence[Node], wish: Wish, tpu: bool) -> bool:
    """True if the nodes would suffice with nothing else running on them."""
    with contextlib.suppress(Lacking):
        idle_nodes = [replace(node, free=node.total) for node in nodes]
        return bool(choose(idle_nodes, wish.hosts, wish.slices, tpu=tpu))
    return False


# ---------------------------------------------------------------- calls of Ray


def _connect(address: str) -> None:
    """Connect to an address; without one to this machine's cluster, started if needed."""
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
    """The cluster's living nodes. With Ray's client, only a task can read free resources."""
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
            total=node["Resources"],
            free=per_node.get(node["NodeID"], {}),
            labels=node.get("Labels") or {},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _make_placement(bundles: Sequence[Bundle]) -> Any:
    from ray.util import placement_group

    return placement_group(list(bundles), strategy="STRICT_SPREAD")


def _make_actors(group: ActorGroup) -> None:
    """Make the actors of a group, one by one: an abandoned launch releases those made so far."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    for index, bundle in enumerate(group.bundles):
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "resources": {name: count for name, count in bundle.items() if name != "CPU"},
            "max_concurrency": _CALLS,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group.placement, placement_group_bundle_index=index
            ),
        }
        group.actors.append(ray.remote(HostActor).options(**options).remote())


def _remove(group: ActorGroup) -> None:
    import ray
    from ray.util import remove_placement_group

    for actor in group.actors:
        with contextlib.suppress(Exception):
            ray.kill(actor)  # its fork servers and their jobs end with it
    with contextlib.suppress(Exception):
        remove_placement_group(group.placement)


async def _introduced(
    actors: list[Any], bundles: Sequence[Bundle], nodes: Sequence[Node]
) -> list[Host]:
    """The hosts of the actors. Raises LaunchError if one is unsuitable.

    A host without a worker number in its environment gets that of its node's label: on such a VM
    only the metadata server knows it, and Ray places the bundles of a slice in any order."""
    calls = [actor.about.remote() for actor in actors]
    abouts: list[About] = [await call for call in calls]
    names = [about.hostname for about in abouts]
    if len(set(names)) < len(names):
        names = [f"{about.hostname} {about.address}/{about.node[:6]}" for about in abouts]
    for name, about, bundle in zip(names, abouts, bundles, strict=True):
        _check_versions(name, about)
        if "TPU" in bundle and not about.chips:
            raise LaunchError(
                f"Ray counts {bundle['TPU']:g} TPU chips on {name}, but none is visible there. "
                "Give the container that runs Ray the host's devices (`docker run --privileged`), "
                "or add `--env PJRT_DEVICE=CPU` to simulate hosts."
            )
    labels = {node.id: node.labels.get(_WORKER, "") for node in nodes}
    return [
        Host(
            about.address,
            name,
            {WORKER: labels[about.node], **about.environ}
            if about.chips and labels.get(about.node)
            else about.environ,
        )
        for name, about in zip(names, abouts, strict=True)
    ]


def _check_versions(name: str, about: About) -> None:
    """Raise LaunchError unless the host has the same Python and xla_nb, as programs and values
    need."""
    here = About("", "", "", platform.python_version(), version(), 0, {})
    remote, local = (f"Python {host.python} with xla_nb {host.version}" for host in (about, here))
    if about.python.split(".")[:2] != here.python.split(".")[:2] or about.version != here.version:
        raise LaunchError(
            f"{name} has {remote}, but the notebook has {local}. Install the same versions on the "
            "cluster's hosts, in the environment that runs `ray start`."
        )


async def within(seconds: float, call: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking call in a thread. Raises TimeoutError."""
    return await asyncio.wait_for(asyncio.to_thread(call, *arguments), seconds)
