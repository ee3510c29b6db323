"""What a run needs from a cluster, and whether the cluster has it.

Pure functions of the nodes. Ray would wait forever for what it cannot place, so resources are
counted first and missing ones reported. They have Ray's names: a TPU VM has `TPU` (its chips) and
the name of its slice, and worker 0 of a slice of several VMs has `TPU-<type>-head` (ray/_private/
accelerators/tpu.py, get_current_node_additional_resources); labels give the slice, its shape and
the worker number (get_current_node_accelerator_labels).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xla_nb.wording import several

_SLICE = "ray.io/tpu-slice-name"
_WORKER = "ray.io/tpu-worker-id"
_TOPOLOGY = "ray.io/tpu-topology"
_POD_TYPE = "ray.io/tpu-pod-type"
_ONE_CORE = ("v5litepod", "v6e")  # per chip; others have two (SINGLE_CORE_TPU_TYPES)
_HEAD = re.compile(r"TPU-(.+)-head")
_EPSILON = 1e-6
_ROWS = 40  # nodes listed in an error


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: its total and free resources, and its labels."""

    name: str
    address: str
    id: str = ""
    alive: bool = True
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def slice(self) -> str:
        """The TPU slice that the node belongs to. A node with all chips of its slice, or without a
        label, is a slice of its own."""
        alone = 0 < self.chips_of_slice <= self.total.get("TPU", 0)
        return ("" if alone else self.labels.get(_SLICE, "")) or f"{self.name} {self.address}"

    @property
    def chips_of_slice(self) -> int:
        """The chips of its whole slice, from a label such as 2x2x2 or v4-16; 0 without one."""
        sides = self.labels.get(_TOPOLOGY, "").split("x")
        if all(side.isdecimal() for side in sides):
            return math.prod(map(int, sides))
        kind, _, cores = self.labels.get(_POD_TYPE, "").rpartition("-")
        return int(cores) // (1 if kind in _ONE_CORE else 2) if cores.isdecimal() else 0

    def with_free(self, more: Mapping[str, float]) -> Node:
        """The same node with more resources free."""
        free = {name: self.free.get(name, 0) + more.get(name, 0) for name in {*self.free, *more}}
        return replace(self, free=free)

    def has(self, bundle: Mapping[str, float]) -> bool:
        """Whether the node is alive and has these resources free."""
        return self.alive and all(
            self.free.get(name, 0) + _EPSILON > count for name, count in bundle.items()
        )


#: The resources that one host of a run takes from its node.
Bundle = dict[str, float]


@dataclass(frozen=True)
class Lacking:
    """What the cluster lacks at the moment: `text` as a paragraph, `short` in one line."""

    text: str
    short: str


def has_tpus(nodes: Iterable[Node]) -> bool:
    """Whether the cluster has TPU VMs."""
    return any(node.alive and node.total.get("TPU") for node in nodes)


def choose(
    nodes: Sequence[Node], hosts: int | None, slices: int | None, *, tpu: bool
) -> list[Bundle] | Lacking:
    """The resources of each host of a run, in the order of slices and workers.

    hosts: the total number; None for all free ones (on TPUs, those of `slices` slices).
    """
    return _tpu_vms(nodes, hosts, slices or 1) if tpu else _any_nodes(nodes, hosts)


def _any_nodes(nodes: Sequence[Node], hosts: int | None) -> list[Bundle] | Lacking:
    bundle: Bundle = {"CPU": 1.0}
    able = [node for node in nodes if node.has(bundle)]
    wanted = hosts if hosts is not None else max(1, len(able))
    if len(able) >= wanted:
        return [dict(bundle) for _ in range(wanted)]
    short = f"Need {several(wanted, 'host')} with a free CPU, but {_are(len(able))} available"
    return _lacking(short, nodes, "CPU", fewer=f"`--hosts {len(able)}`" if able else "")


def _tpu_vms(nodes: Sequence[Node], hosts: int | None, slices: int) -> list[Bundle] | Lacking:
    if hosts is not None and hosts % slices:
        short = f"{several(hosts, 'host')} cannot be divided into {slices} slices of equal size"
        return Lacking(f"{short}. Use a --hosts that is a multiple of --slices.", short)
    each = None if hosts is None else hosts // slices
    alike: dict[tuple[int, str], list[list[Node]]] = {}
    for members in _slices(nodes).values():
        free = all(node.has(_bundle(node)) for node in members)
        if free and _is_whole(members) and each in (None, len(members)):
            kind = len(members), members[0].labels.get(_POD_TYPE, "")
            alike.setdefault(kind, []).append(members)
    for _, fitting in sorted(alike.items(), key=lambda item: -item[0][0]):
        if len(fitting) >= slices:
            return [_bundle(node) for members in fitting[:slices] for node in members]
    size = "" if each is None else f" of {several(each, 'host')}"
    like = " of the same type" if slices > 1 else ""
    most = max(map(len, alike.values()), default=0)
    short = f"Need {several(slices, 'whole TPU slice')}{size}{like}, but {_are(most)} free"
    return _lacking(short, nodes, "TPU", fewer="")


def _slices(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """The live TPU VMs by slice, in the order of their worker numbers."""
    slices: dict[str, list[Node]] = {}
    for node in nodes:
        if node.alive and node.total.get("TPU"):
            slices.setdefault(node.slice, []).append(node)
    return {name: sorted(members, key=_worker) for name, members in slices.items()}


def _bundle(node: Node) -> Bundle:
    """All chips of a TPU VM, its one resource of the slice's name, and the slice's head."""
    bundle = {"TPU": node.total["TPU"]}
    name = node.labels.get(_SLICE, "")
    if name in node.total:
        bundle[name] = 1.0
    bundle.update({name: 1.0 for name in node.total if _HEAD.fullmatch(name)})
    return bundle


def _is_whole(members: Sequence[Node]) -> bool:
    """Whether no VM of the slice is missing: all chips and worker 0 are there."""
    if sum(node.total["TPU"] for node in members) < members[0].chips_of_slice:
        return False
    return len(members) == 1 or any(_HEAD.fullmatch(name) for one in members for name in one.total)


def _worker(node: Node) -> int:
    label = node.labels.get(_WORKER, "")
    return int(label) if label.isdigit() else 0


def workers(nodes: Sequence[Node], ids: Sequence[str]) -> dict[str, int]:
    """The worker number of each of these nodes, by node id, for slices whose labels number all
    members from 0. Needed because Ray places all bundles of a slice but the first in any order."""
    numbers: dict[str, int] = {}
    for members in _slices([node for node in nodes if node.id in ids]).values():
        labels = [node.labels.get(_WORKER, "") for node in members]
        if sorted(labels) == sorted(map(str, range(len(members)))):
            numbers.update(zip([node.id for node in members], map(int, labels), strict=True))
    return numbers


def _lacking(short: str, nodes: Sequence[Node], resource: str, fewer: str) -> Lacking:
    alive = [node for node in nodes if node.alive]
    partial = [
        node for members in _slices(nodes).values() if not _is_whole(members) for node in members
    ]
    rows = [
        f"  {node.name} ({node.address}): {_free(node, resource)}"
        + f", and other VMs of its slice {node.slice} are missing" * (node in partial)
        for node in alive
    ]
    if len(rows) > _ROWS:
        rows[_ROWS:] = [f"  and {several(len(rows) - _ROWS, 'node')} more"]
    dead = len(nodes) - len(alive)  # Ray keeps them in its list
    if dead:
        rows.append(f"  and {several(dead, 'dead node')}")
    fix = (
        f"{f'Use {fewer}, add' if fewer else 'Add'} nodes (`ray start --address=...` on each), or "
        "wait for other jobs to finish (`--wait 5m`)."
    )
    return Lacking("\n".join([f"{short}:", *(rows or ["  the cluster has no nodes"]), fix]), short)


def _free(node: Node, resource: str) -> str:
    total = node.total.get(resource, 0)
    if not total:
        return f"has no {resource}"
    return f"{node.free.get(resource, 0):g} of {total:g} {resource} free"


def _are(number: int) -> str:
    return "only 1 is" if number == 1 else f"only {number} are" if number else "none is"


def names(hosts: Iterable[tuple[str, str, str]]) -> list[str]:
    """Unique names for hosts, each given as (name, address, node id): the names alone, else with
    the addresses, else with the start of the node ids."""
    entries = list(hosts)
    for candidates in (
        [name for name, _, _ in entries],
        [f"{name} {address}" for name, address, _ in entries],
    ):
        if len(set(candidates)) == len(candidates):
            return candidates
    return [f"{name}/{node[:6]}" for name, _, node in entries]
