"""Which hosts a launch gets from a cluster and when they are released: with tables of nodes as Ray
describes them, and with a test double of Ray. (test_cluster.py uses a real cluster.)"""

import asyncio
import contextlib
import threading

import pytest

from tests.engines.ray import ray_double
from tests.engines.ray.ray_double import NEVER, Actor, a_group, a_wish, about
from xla_nb.engines.ray import placement
from xla_nb.engines.ray.placement import Cluster, Lacking, Node, Unreachable
from xla_nb.errors import LaunchError, UsageError

CPU = {"CPU": 1.0}


def machine(number, cpus=8.0, free=None):
    free = cpus if free is None else free
    return Node(f"m{number}", f"10.0.0.{number}", f"n{number}", {"CPU": cpus}, {"CPU": free})


def vm(slice_, worker, kind="v4-16", shape="2x2x2", busy=False):
    """A VM of a slice, with the resources and labels that Ray gives it (get_current_node_
    additional_resources and get_current_node_accelerator_labels)."""
    total = {"CPU": 100.0, "TPU": 4.0, slice_: 1.0, f"TPU-{kind.split('-')[0].upper()}": 1.0}
    if worker == 0:
        total[f"TPU-{kind}-head"] = 1.0
    labels = {
        "ray.io/tpu-slice-name": slice_,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-pod-type": kind,
        "ray.io/tpu-topology": shape,
    }
    free = {**total, "TPU": 0.0} if busy else total
    return Node(f"{slice_}-{worker}", "10.1.0.1", f"{slice_}{worker}", total, free, labels)


def slice_of(name, vms=2, kind="v4-16", shape="2x2x2"):
    return [vm(name, worker, kind, shape) for worker in range(vms)]


def big(name):
    return slice_of(name, 4, "v4-32", "2x2x4")


def taken(slice_, worker, kind="v4-16"):
    head = {f"TPU-{kind}-head": 1.0} if worker == 0 else {}
    return {"TPU": 4.0, slice_: 1.0, **head}


def choose(nodes, hosts=None, slices=None, *, tpu=False):
    return placement.choose(nodes, hosts, slices, tpu=tpu)


# ---------------------------------------------------------------- resources


@pytest.mark.parametrize(
    ("nodes", "hosts", "count"),
    [
        ([machine(1), machine(2), machine(3)], 2, 2),
        ([machine(1), machine(2, free=0), machine(3)], None, 2),
        ([machine(1, cpus=0), machine(2)], None, 1),  # a head without CPUs
    ],
)
def test_each_host_takes_one_cpu(nodes, hosts, count):
    assert choose(nodes, hosts) == [CPU] * count


@pytest.mark.parametrize(
    ("nodes", "hosts", "short"),
    [
        ([machine(1)], 2, "Need 2 hosts with a free CPU, but only 1 is available"),
        ([], None, "Need 1 host with a free CPU, but none is available"),
    ],
)
def test_missing_hosts_are_summarized_in_one_line(nodes, hosts, short):
    with pytest.raises(Lacking) as lacking:
        choose(nodes, hosts)
    assert lacking.value.short == short


def test_missing_hosts_error_lists_machines_and_a_fix():
    with pytest.raises(Lacking) as lacking:
        choose([machine(1), machine(2, free=0.5), *map(machine, [3] * 50)], 60)
    lines = str(lacking.value).splitlines()
    assert lines[:3] == [
        "Need 60 hosts with a free CPU, but only 51 are available:",
        "  m1 (10.0.0.1): 8 of 8 CPU free",
        "  m2 (10.0.0.2): 0.5 of 8 CPU free",
    ]
    assert lines[-2] == "  and 12 more nodes"
    assert "--wait 5m" in lines[-1]


def test_slice_takes_all_its_vms_worker_0_first():
    nodes = [machine(1), *reversed(slice_of("a"))]
    assert choose(nodes, tpu=True) == [taken("a", 0), taken("a", 1)]


def test_machine_with_chips_but_no_label_is_its_own_slice():
    nodes = [Node(f"m{n}", "10.0.0.1", "", {"TPU": 4.0}, {"TPU": 4.0}) for n in range(2)]
    assert choose(nodes, 2, 2, tpu=True) == [{"TPU": 4.0}] * 2


def test_slices_in_use_or_incomplete_are_skipped():
    nodes = [*slice_of("a"), *slice_of("b")[:1], *slice_of("c")]
    nodes[1] = vm("a", 1, busy=True)
    assert choose(nodes, tpu=True) == [taken("c", 0), taken("c", 1)]


def test_slice_without_its_first_worker_is_incomplete():
    with pytest.raises(Lacking):
        choose([vm("a", 1, shape=""), vm("a", 2, shape="")], tpu=True)


def test_several_slices_have_the_same_type():
    nodes = [*slice_of("a"), *big("big"), *slice_of("b", kind="v5p-16"), *slice_of("c")]
    assert choose(nodes, slices=2, tpu=True) == [taken(name, n) for name in "ac" for n in range(2)]


def test_biggest_slice_is_chosen_without_a_number_of_hosts():
    nodes = [*slice_of("a"), *big("b")]
    assert len(choose(nodes, tpu=True)) == 4
    assert len(choose(nodes, 2, tpu=True)) == 2


@pytest.mark.parametrize(
    ("nodes", "hosts", "slices", "short"),
    [
        ([machine(1)], None, None, "Need 1 whole TPU slice, but none is free"),
        (slice_of("a"), 4, 2,
         "Need 2 whole TPU slices of 2 hosts of the same type, but only 1 is free"),
    ],
)  # fmt: skip
def test_missing_slices_are_counted(nodes, hosts, slices, short):
    with pytest.raises(Lacking) as lacking:
        choose(nodes, hosts, slices, tpu=True)
    assert lacking.value.short == short


# ---------------------------------------------------------------- the connection


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(placement, "_LOOK", 0.01)
    return ray_double.installed(monkeypatch)


@pytest.fixture
def hosts(ray):
    """hosts(wish, ...) requests hosts for one wish after the other; returns the groups."""

    def hosts(*wishes, between=lambda group: None):
        async def requested():
            cluster, groups = Cluster(""), []
            for wish in wishes:
                groups.append(await cluster.hosts(wish))
                between(groups[-1])
            return groups

        return asyncio.run(requested())

    return hosts


def test_failed_connection_is_rejected_and_not_retried(ray):
    async def twice():
        cluster = Cluster("")
        for _ in range(2):
            with pytest.raises(Unreachable, match="The Ray cluster cannot be used"):
                await cluster.hosts(a_wish())

    ray.refuses = RuntimeError("no route")
    asyncio.run(twice())
    assert ray.connects == 1


def test_next_launch_uses_the_connection_of_an_abandoned_one(ray, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(placement, "_connect", lambda address: waits.wait())

    async def twice():
        cluster = Cluster("")
        first = asyncio.ensure_future(cluster.hosts(a_wish()))
        while cluster._connecting is None:
            await asyncio.sleep(0)
        first.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first
        waits.set()
        return await cluster.hosts(a_wish())

    assert len(asyncio.run(twice()).actors) == 2


def test_cluster_that_stops_answering_is_rejected(ray, hosts, monkeypatch):
    def survey():
        raise TimeoutError

    monkeypatch.setattr(placement, "_survey", survey)
    with pytest.raises(Unreachable, match="The Ray cluster cannot be used"):
        hosts(a_wish())


# ---------------------------------------------------------------- hosts


def test_each_host_is_an_actor_in_its_own_bundle(ray, hosts):
    (group,) = hosts(a_wish(2))
    assert ray.placed == [([CPU, CPU], "STRICT_SPREAD")]
    assert [each["scheduling_strategy"] for each in ray.options] == [(1, 0), (1, 1)]
    assert [(each["num_cpus"], each["resources"]) for each in ray.options] == [(1.0, {})] * 2
    assert group.names == ["m0", "m1"]


def test_launch_like_the_last_one_gets_the_same_hosts(ray, hosts):
    first, second = hosts(a_wish(2), a_wish(2))
    assert first is second
    assert len(ray.placed) == 1


def test_held_hosts_are_kept_if_there_is_room_for_a_second_group(ray, hosts):
    first, second = hosts(a_wish(1), a_wish(2))
    assert first is not second
    assert (ray.removed, ray.killed) == ([], [])


def test_idle_held_hosts_are_released_if_a_launch_needs_their_resources(ray, hosts):
    first, second = hosts(a_wish(2), a_wish(3))
    assert len(second.actors) == 3
    assert ray.removed == [1]
    assert ray.killed == first.actors


def test_idle_held_hosts_are_kept_if_releasing_them_does_not_help(ray, hosts):
    with pytest.raises(LaunchError, match="Need 4 hosts"):
        hosts(a_wish(2), a_wish(4))
    assert ray.removed == []


def test_hosts_with_a_run_are_never_released_for_a_launch(ray, hosts):
    with pytest.raises(LaunchError, match="Need 3 hosts with a free CPU, but only 1 is"):
        hosts(a_wish(2), a_wish(3), between=lambda group: group.runs.add("r0"))
    assert (ray.removed, ray.killed) == ([], [])


def test_broken_hosts_are_not_used_again(ray, hosts):
    def lose(group):
        group.broken = True

    first, second = hosts(a_wish(2), a_wish(2), between=lose)
    assert first is not second
    assert ray.removed == [1]


def test_launch_waits_for_missing_hosts(ray, hosts):
    progress = []

    def tell(what):
        progress.append(what)
        if what.startswith("waiting"):
            ray.taken = 0

    ray.taken = 3
    (group,) = hosts(a_wish(2, wait=60.0, tell=tell))
    assert len(group.actors) == 2
    assert progress[1].startswith("waiting for the cluster, up to 60 s: Need 2 hosts")


def test_placement_that_times_out_is_rejected(ray, hosts):
    ray.fits = False
    with pytest.raises(LaunchError, match="another job may have taken them"):
        hosts(a_wish())
    assert ray.removed == [1]


def test_node_that_was_dead_already_is_why_hosts_are_not_placed(ray, hosts):
    ray.fits, ray.dead = False, 2
    with pytest.raises(LaunchError, match="Need 2 hosts with a free CPU, but only 1 is available"):
        hosts(a_wish(2))
    assert ray.removed == [1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (about(2, python="3.1.0"), r"m2 has Python 3.1.0 with xla_nb \S+, but the notebook has"),
        (about(2, version="0.0.1"), "with xla_nb 0.0.1, but the notebook has"),
        (ImportError("No module named 'xla_nb'"), "The cluster's hosts cannot import xla_nb"),
    ],
)
def test_unsuitable_host_is_rejected_and_all_are_released(ray, hosts, answer, message):
    ray.actors = [Actor(about=about), Actor(about=lambda: answer)]
    with pytest.raises(LaunchError, match=message):
        hosts(a_wish())
    assert ray.removed == [1]
    assert len(ray.killed) == 2


def test_hosts_of_a_cancelled_launch_are_released(ray):
    ray.actors = [Actor(about=lambda: NEVER)]

    async def cancelled():
        asking = asyncio.ensure_future(Cluster("").hosts(a_wish()))
        await ray.asked.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert ray.removed == [1]
    assert len(ray.killed) == 2


def test_unused_hosts_are_released_after_the_idle_time(ray, monkeypatch):
    monkeypatch.setattr(placement, "IDLE", 0.0)
    monkeypatch.setattr(placement, "_ROUND", 0.001)

    async def idle():
        cluster = Cluster("")
        used, _ = [await cluster.hosts(a_wish(hosts)) for hosts in (1, 2)]
        used.runs.add("r1")
        going = asyncio.ensure_future(cluster.release_idle())
        while not ray.removed:
            await asyncio.sleep(0.001)
        going.cancel()
        return cluster._groups == [used]

    assert asyncio.run(idle())
    assert ray.removed == [2]


def test_closing_releases_all_hosts(ray):
    async def closed():
        cluster = Cluster("")
        await cluster.hosts(a_wish(1))
        await cluster.hosts(a_wish(2))
        await cluster.close()

    asyncio.run(closed())
    assert ray.removed == [1, 2]


# ---------------------------------------------------------------- positions in slices


def test_slices_of_unequal_size_are_rejected():
    with pytest.raises(UsageError, match="3 hosts cannot be divided into 2 slices"):
        a_group(Actor(), Actor(), Actor()).seats(2)


def test_simulated_hosts_on_a_pod_ignore_its_worker_numbers():
    preset = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}
    group = a_group(Actor(), abouts=[about(chips=4, environ=preset)], hosts=1)
    assert [seat.worker for seat in group.seats(None)] == [0]


def introduced(abouts, bundle, nodes=()):
    async def introduce():
        actors = [Actor(about=lambda each=each: each) for each in abouts]
        return await placement._introduced(actors, [bundle] * len(abouts), nodes)

    return asyncio.run(introduce())


def test_tpu_vm_without_chips_is_rejected():
    with pytest.raises(LaunchError, match="Ray counts 4 TPU chips on m1, but none is visible"):
        introduced([about(chips=0)], {"TPU": 4.0})


def test_tpu_vm_without_a_worker_number_gets_that_of_its_label():
    abouts = [
        about(0, node="a1", chips=4, environ={"TPU_WORKER_ID": "1"}),
        about(1, node="a0", chips=4),
        about(2, node="elsewhere"),
    ]
    numbered = introduced(abouts, {"CPU": 1.0}, slice_of("a"))
    assert [each.environ.get("TPU_WORKER_ID") for each in numbered] == ["1", "0", None]


def test_hosts_with_the_same_name_are_distinguished_by_address_and_node():
    abouts = [about(n, hostname="vm", node=f"{n}23456789") for n in (1, 2)]
    names = [host.name for host in introduced(abouts, {})]
    assert names == ["vm 10.0.0.1/123456", "vm 10.0.0.2/223456"]
