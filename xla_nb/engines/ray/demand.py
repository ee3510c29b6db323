"""What a run asks of a cluster, and whether the cluster has it.

The rule: pure. Ray would wait for ever for what it cannot place; here it is counted first, and what
is missing is said. Resources are named as Ray names them: a TPU VM has `TPU` (its chips), the name
of its slice, and worker 0 of a slice of several VMs `TPU-<type>-head` (ray/_private/accelerators/
tpu.py, get_current_node_additional_resources); labels say the slice, its shape and the worker's
number (get_current_node_accelerator_labels).
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
_ONE_CORE = ("v5litepod", "v6e")  # a chip; others have two (SINGLE_CORE_TPU_TYPES)
_HEAD = re.compile(r"TPU-(.+)-head")
_EPSILON = 1e-6
_ROWS = 40  # of the nodes, in what is said of them


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: its resources, in all and free, and its labels."""

    name: str
    address: str
    id: str = ""
    alive: bool = True
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def slice(self) -> str:
        """The TPU slice that it is a part of; a machine is one by itself where it has all of the
        slice's chips, whatever the label, or where there is no label."""
        alone = 0 < self.chips_of_slice <= self.total.get("TPU", 0)
        return ("" if alone else self.labels.get(_SLICE, "")) or f"{self.name} {self.address}"

    @property
    def chips_of_slice(self) -> int:
        """How many its whole slice has (2x2x2, or v4-16); 0 where no label says it."""
        sides = self.labels.get(_TOPOLOGY, "").split("x")
        if all(side.isdecimal() for side in sides):
            return math.prod(map(int, sides))
        kind, _, cores = self.labels.get(_POD_TYPE, "").rpartition("-")
        return int(cores) // (1 if kind in _ONE_CORE else 2) if cores.isdecimal() else 0

    def with_free(self, more: Mapping[str, float]) -> Node:
        """The same with more of it free."""
        free = {name: self.free.get(name, 0) + more.get(name, 0) for name in {*self.free, *more}}
        return replace(self, free=free)

    def has(self, bundle: Mapping[str, float]) -> bool:
        """Whether this much of it is free."""
        wanted = bundle.items()
        return self.alive and all(
            self.free.get(name, 0) + _EPSILON > count for name, count in wanted
        )


#: What one host of a run takes of its node.
Bundle = dict[str, float]


@dataclass(frozen=True)
class Lacking:
    """The cluster cannot give it now. `text` says what is missing, `short` in one line."""

    text: str
    short: str


def has_tpus(nodes: Iterable[Node]) -> bool:
    """Whether the cluster has TPU VMs."""
    return any(node.alive and node.total.get("TPU") for node in nodes)


def choose(
    nodes: Sequence[Node], hosts: int | None, slices: int | None, *, tpu: bool
) -> list[Bundle] | Lacking:
    """What each host of a run takes, in the order of slices and workers.

    hosts: how many in all; None for all that are free (of a TPU, those of `slices` slices).
    """
    return _tpu_vms(nodes, hosts, slices or 1) if tpu else _any_nodes(nodes, hosts)


def _any_nodes(nodes: Sequence[Node], hosts: int | None) -> list[Bundle] | Lacking:
    bundle: Bundle = {"CPU": 1.0}
    able = [node for node in nodes if node.has(bundle)]
    wanted = hosts if hosts is not None else max(1, len(able))
    if len(able) >= wanted:
        return [dict(bundle) for _ in range(wanted)]
    short = (
        f"{several(wanted, 'host')} asked for, each with 1 CPU free, and there {_are(len(able))}"
    )
    return _lacking(short, nodes, "CPU", fewer=f"`--hosts {len(able)}`" if able else "")


def _tpu_vms(nodes: Sequence[Node], hosts: int | None, slices: int) -> list[Bundle] | Lacking:
    if hosts is not None and hosts % slices:
        short = f"{several(hosts, 'host')} cannot be {slices} slices of equal size"
        return Lacking(f"{short}. What to do: choose --hosts as a multiple of --slices", short)
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
    like = " of one kind" if slices > 1 else ""
    most = max(map(len, alike.values()), default=0)
    short = f"{several(slices, 'whole TPU slice')}{size}{like} asked for, and {most} free"
    return _lacking(short, nodes, "TPU", fewer="")


def _slices(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """The TPU VMs of each slice that are there, in the order of their numbers."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        if node.alive and node.total.get("TPU"):
            found.setdefault(node.slice, []).append(node)
    return {name: sorted(members, key=_worker) for name, members in found.items()}


def _bundle(node: Node) -> Bundle:
    """All chips of a TPU VM; with the slice's name, of which each VM has one."""
    taken = {"TPU": node.total["TPU"]}
    name = node.labels.get(_SLICE, "")
    if name in node.total:
        taken[name] = 1.0
    taken.update({name: 1.0 for name in node.total if _HEAD.fullmatch(name)})
    return taken


def _is_whole(members: Sequence[Node]) -> bool:
    """Whether no VM of the slice is missing: worker 0, or so many that there are too few chips."""
    if sum(node.total["TPU"] for node in members) < members[0].chips_of_slice:
        return False
    return len(members) == 1 or any(_HEAD.fullmatch(name) for one in members for name in one.total)


def _worker(node: Node) -> int:
    told = node.labels.get(_WORKER, "")
    return int(told) if told.isdigit() else 0


def workers(nodes: Sequence[Node], ids: Sequence[str]) -> dict[str, int]:
    """The number in its slice of each of these nodes, by its id: Ray places the bundles of a slice
    but the first in any order. Only of slices in which the labels number all of them, from 0."""
    found: dict[str, int] = {}
    for members in _slices([node for node in nodes if node.id in ids]).values():
        told = [node.labels.get(_WORKER, "") for node in members]
        if sorted(told) == sorted(map(str, range(len(members)))):
            found.update(zip([node.id for node in members], map(int, told), strict=True))
    return found


def _lacking(short: str, nodes: Sequence[Node], resource: str, fewer: str) -> Lacking:
    alive = [node for node in nodes if node.alive]
    partial = [one for found in _slices(nodes).values() if not _is_whole(found) for one in found]
    rows = [
        f"  {node.name} ({node.address}): {_free(node, resource)}"
        + f", and other VMs of its slice {node.slice} are missing" * (node in partial)
        for node in alive
    ]
    if len(rows) > _ROWS:
        rows[_ROWS:] = [f"  {several(len(rows) - _ROWS, 'node')} more"]
    gone = len(nodes) - len(alive)  # Ray keeps them all in its list
    if gone:
        rows.append(f"  {several(gone, 'node')} more that {'is' if gone == 1 else 'are'} not alive")
    ask = f"ask for fewer ({fewer}), " if fewer else ""
    what = (
        f"What to do: {ask}add nodes (`ray start --address=...` on each), or wait until others are "
        "done (`--wait 5m`)."
    )
    return Lacking("\n".join([f"{short}:", *(rows or ["  no node at all"]), what]), short)


def _free(node: Node, resource: str) -> str:
    total = node.total.get(resource, 0)
    if not total:
        return f"has no {resource}"
    return f"{node.free.get(resource, 0):g} of {total:g} {resource} free"


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}" if number else "is none"


def names(hosts: Iterable[tuple[str, str, str]]) -> list[str]:
    """What the hosts of a run are called: the name where it is one host's alone, else with its
    address, or what is left to tell them apart. Each is given as (name, address, node's id)."""
    known = list(hosts)
    for told in (
        [name for name, _, _ in known],
        [f"{name} {address}" for name, address, _ in known],
    ):
        if len(set(told)) == len(told):
            return told
    return [f"{name}/{node[:6]}" for name, _, node in known]
