"""What a run asks of a cluster, and whether the cluster has it.

The rule: pure. Ray would wait for ever for what it cannot place; here it is counted first, and what
is missing is said. Resources are named as Ray names them: a TPU VM has `TPU` (its chips), the name
of its slice, and worker 0 of a slice of several VMs `TPU-<type>-head` (ray/_private/accelerators/
tpu.py, get_current_node_additional_resources); labels say the slice and the worker's number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_SLICE = "ray.io/tpu-slice-name"
_WORKER = "ray.io/tpu-worker-id"
_HEAD = re.compile(r"TPU-(.+)-head")
_EPSILON = 1e-6


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: its resources, in all and free, and its labels."""

    name: str
    address: str
    alive: bool = True
    total: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def slice(self) -> str:
        """The TPU slice that it is a part of; a machine without such a label is one by itself."""
        return self.labels.get(_SLICE) or f"{self.name} {self.address}"

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


def choose(
    nodes: Sequence[Node], hosts: int | None, slices: int | None, *, tpu: bool
) -> list[Bundle] | Lacking:
    """What each host of a run takes, in the order of slices and workers.

    hosts: how many in all; None for all that the cluster has (of a TPU, those of `slices` slices).
    """
    return _tpu_vms(nodes, hosts, slices or 1) if tpu else _any_nodes(nodes, hosts)


def _any_nodes(nodes: Sequence[Node], hosts: int | None) -> list[Bundle] | Lacking:
    bundle: Bundle = {"CPU": 1.0}
    able = [node for node in nodes if node.has(bundle)]
    wanted = hosts if hosts is not None else max(1, sum(node.alive for node in nodes))
    if len(able) >= wanted:
        return [dict(bundle) for _ in range(wanted)]
    short = f"{_hosts(wanted)} asked for, each with 1 CPU free, and there {_are(len(able))}"
    return _lacking(short, nodes, "CPU", fewer=f"`--hosts {len(able)}`" if able else "")


def _tpu_vms(nodes: Sequence[Node], hosts: int | None, slices: int) -> list[Bundle] | Lacking:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        if node.alive and node.total.get("TPU"):
            found.setdefault(node.slice, []).append(node)
    whole = {
        name: sorted(members, key=_worker)
        for name, members in found.items()
        if all(node.has(_bundle(node)) for node in members) and _has_head(members)
    }
    each = None if hosts is None else hosts // slices
    fitting = [members for members in whole.values() if each in (None, len(members))]
    if hosts is not None and hosts % slices:
        short = f"{_hosts(hosts)} cannot be {slices} slices of equal size"
        return Lacking(f"{short}. What to do: choose --hosts as a multiple of --slices", short)
    if len(fitting) >= slices:
        chosen = fitting[:slices]
        if len({len(members) for members in chosen}) == 1:
            return [_bundle(node) for members in chosen for node in members]
    size = "" if each is None else f" of {_hosts(each)}"
    short = f"{_count(slices, 'whole TPU slice')}{size} asked for, and {len(fitting)} free"
    return _lacking(short, nodes, "TPU", fewer="")


def _bundle(node: Node) -> Bundle:
    """All chips of a TPU VM; with the slice's name, of which each VM has one."""
    taken = {"TPU": node.total["TPU"]}
    name = node.labels.get(_SLICE, "")
    if name in node.total:
        taken[name] = 1.0
    taken.update({name: 1.0 for name in node.total if _HEAD.fullmatch(name)})
    return taken


def _has_head(members: Sequence[Node]) -> bool:
    """A slice of several VMs of which worker 0 is missing is not whole."""
    return len(members) == 1 or any(_HEAD.fullmatch(name) for one in members for name in one.total)


def _worker(node: Node) -> int:
    told = node.labels.get(_WORKER, "")
    return int(told) if told.isdigit() else 0


def _lacking(short: str, nodes: Sequence[Node], resource: str, fewer: str) -> Lacking:
    rows = [f"  {node.name} ({node.address}): {_free(node, resource)}" for node in nodes]
    ask = f"ask for fewer ({fewer}), " if fewer else ""
    what = (
        f"What to do: {ask}add nodes (`ray start --address=...` on each), or wait until others are "
        "done (`--wait 5m`)."
    )
    return Lacking("\n".join([f"{short}:", *(rows or ["  no node at all"]), what]), short)


def _free(node: Node, resource: str) -> str:
    if not node.alive:
        return "not alive"
    total = node.total.get(resource, 0)
    if not total:
        return f"has no {resource}"
    return f"{node.free.get(resource, 0):g} of {total:g} {resource} free"


def _hosts(number: int) -> str:
    return _count(number, "host")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
