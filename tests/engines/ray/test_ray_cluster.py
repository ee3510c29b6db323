"""Which hosts are taken of a cluster, and that they are given back; Ray is its double.

(engines/ray/cluster.py; test_cluster.py is on a real one.)
"""

import asyncio
import contextlib
import threading

import pytest

from tests.engines.ray import ray_double
from tests.engines.ray.ray_double import NEVER, Actor, a_group, a_wish, about
from xla_nb.engines.ray import cluster as cluster_module
from xla_nb.engines.ray.cluster import Cluster, Unreachable
from xla_nb.engines.ray.demand import Node
from xla_nb.errors import LaunchError, UsageError


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setattr(cluster_module, "_LOOK", 0.01)
    return ray_double.installed(monkeypatch)


@pytest.fixture
def hosts(ray):
    """hosts(wish, ...) asks for these, one after the other; gives the groups."""

    def hosts(*wishes, between=lambda group: None):
        async def asked():
            cluster, found = Cluster(""), []
            for wish in wishes:
                found.append(await cluster.hosts(wish))
                between(found[-1])
            return found

        return asyncio.run(asked())

    return hosts


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
    assert cluster_module._clock(seconds, most) == shown


# ---------------------------------------------------------------- the connection


def test_a_cluster_that_cannot_be_reached_is_a_refusal(ray, hosts):
    ray.refuses = RuntimeError("no route")
    with pytest.raises(Unreachable, match="The Ray cluster cannot be reached"):
        hosts(a_wish())


def test_a_cluster_is_connected_to_once_whatever_comes_of_it(ray):
    async def twice():
        cluster = Cluster("")
        for _ in range(2):
            with contextlib.suppress(Unreachable):
                await cluster.hosts(a_wish())

    ray.refuses = RuntimeError("no route")
    asyncio.run(twice())
    assert ray.connects == 1


def test_a_launch_that_is_given_up_while_it_connects_leaves_that_to_the_next(ray, monkeypatch):
    waits = threading.Event()
    monkeypatch.setattr(cluster_module, "_connect", lambda address: waits.wait())

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


def test_a_cluster_that_does_not_answer_any_more_is_a_refusal(ray, hosts, monkeypatch):
    def survey():
        raise TimeoutError

    monkeypatch.setattr(cluster_module, "_survey", survey)
    with pytest.raises(Unreachable, match="The Ray cluster does not answer"):
        hosts(a_wish())


# ---------------------------------------------------------------- hosts


def test_each_host_is_an_actor_in_a_bundle_of_its_own(ray, hosts):
    (group,) = hosts(a_wish(2))
    assert ray.placed == [([{"CPU": 1.0}, {"CPU": 1.0}], "STRICT_SPREAD")]
    assert [each["scheduling_strategy"] for each in ray.options] == [(1, 0), (1, 1)]
    assert [(each["num_cpus"], each["resources"]) for each in ray.options] == [(1.0, {})] * 2
    assert group.names == ["m0", "m1"]


def test_a_launch_like_the_last_one_has_the_same_hosts(ray, hosts):
    first, second = hosts(a_wish(2), a_wish(2))
    assert first is second
    assert len(ray.placed) == 1


def test_hosts_that_others_want_are_kept_where_there_is_room_for_both(ray, hosts):
    first, second = hosts(a_wish(1), a_wish(2))
    assert first is not second
    assert (ray.removed, ray.killed) == ([], [])


def test_hosts_that_are_only_held_are_given_back_for_those_that_are_asked_for(ray, hosts):
    first, second = hosts(a_wish(2), a_wish(3))
    assert len(second.actors) == 3
    assert ray.removed == [1]
    assert ray.killed == first.actors


def test_hosts_that_would_not_help_are_kept(ray, hosts):
    with pytest.raises(LaunchError, match="Need 4 hosts"):
        hosts(a_wish(2), a_wish(4))
    assert ray.removed == []


def test_hosts_with_a_run_are_kept_whatever_the_next_launch_wants(ray, hosts):
    with pytest.raises(LaunchError, match="Need 3 hosts with a free CPU, but only 1 is"):
        hosts(a_wish(2), a_wish(3), between=lambda group: group.runs.add("r0"))
    assert (ray.removed, ray.killed) == ([], [])


def test_hosts_of_which_one_is_lost_are_not_used_again(ray, hosts):
    def lose(group):
        group.broken = True

    first, second = hosts(a_wish(2), a_wish(2), between=lose)
    assert first is not second
    assert ray.removed == [1]


def test_what_the_cluster_lacks_is_said_at_once(ray, hosts):
    with pytest.raises(LaunchError, match="Need 4 hosts with a free CPU, but only 3 are"):
        hosts(a_wish(4))
    assert ray.placed == []


def test_what_the_cluster_lacks_is_waited_for(ray, hosts):
    told = []

    def tell(what):
        told.append(what)
        if what.startswith("waiting"):
            ray.taken = 0

    ray.taken = 3
    (group,) = hosts(a_wish(2, wait=60.0, tell=tell))
    assert len(group.actors) == 2
    assert told[1].startswith("waiting for the cluster, up to 1:00 min: Need 2 hosts")


def test_hosts_that_others_were_faster_to_take_are_a_refusal(ray, hosts):
    ray.fits = False
    with pytest.raises(LaunchError, match="another job may have taken them"):
        hosts(a_wish())
    assert ray.removed == [1]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (about(2, python="3.1.0"), "m2 has Python 3.1.0, but the notebook has"),
        (about(2, version="0.0.1"), "m2 has xla_nb 0.0.1, but the notebook has"),
        (ImportError("No module named 'xla_nb'"), "The cluster's hosts cannot import xla_nb"),
    ],
)
def test_a_host_that_will_not_do_is_a_refusal_and_all_are_given_back(ray, hosts, answer, said):
    ray.actors = [Actor(about=about), Actor(about=lambda: answer)]
    with pytest.raises(LaunchError, match=said):
        hosts(a_wish())
    assert ray.removed == [1]
    assert len(ray.killed) == 2


def test_hosts_of_a_launch_that_is_given_up_meanwhile_are_given_back(ray):
    ray.actors = [Actor(about=lambda: NEVER)]

    async def given_up():
        asking = asyncio.ensure_future(Cluster("").hosts(a_wish()))
        await ray.asked.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    asyncio.run(given_up())
    assert ray.removed == [1]
    assert len(ray.killed) == 2


def test_hosts_that_were_given_back_are_not_used_again(ray):
    async def twice():
        cluster = Cluster("")
        first = await cluster.hosts(a_wish())
        await cluster.release(first)
        return first, await cluster.hosts(a_wish())

    first, second = asyncio.run(twice())
    assert first is not second
    assert ray.removed == [1]


def test_hosts_that_nobody_uses_are_given_back_after_a_while(ray, monkeypatch):
    monkeypatch.setattr(cluster_module, "IDLE", 0.0)
    monkeypatch.setattr(cluster_module, "_ROUND", 0.001)

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


def test_everything_is_given_back_at_the_end(ray):
    async def closed():
        cluster = Cluster("")
        await cluster.hosts(a_wish(1))
        await cluster.hosts(a_wish(2))
        await cluster.close()

    asyncio.run(closed())
    assert ray.removed == [1, 2]


# ---------------------------------------------------------------- what a group serves


def pod(**wish):
    return a_group(
        Actor(), abouts=[about(chips=4)], hosts=1, takes={"TPU": 4.0}, among_tpus=True, **wish
    )


@pytest.mark.parametrize("slices", [None, 1, 2])
def test_simulated_hosts_serve_whatever_number_of_slices(slices):
    assert a_group(Actor(), Actor(), hosts=2).serves(a_wish(2, slices))


def test_simulated_hosts_are_seated_in_as_many_slices_as_are_asked_for():
    group = a_group(Actor(), Actor())
    assert [(seat.slice, seat.worker) for seat in group.seats(None)] == [(0, 0), (0, 1)]
    assert [(seat.slice, seat.worker) for seat in group.seats(2)] == [(0, 0), (1, 0)]


def test_slices_of_unequal_size_are_refused():
    with pytest.raises(UsageError, match="3 hosts cannot be divided into 2 slices"):
        a_group(Actor(), Actor(), Actor()).seats(2)


def test_a_number_of_hosts_is_another_than_all_of_them():
    assert not a_group(Actor(), hosts=1).serves(a_wish(None))


@pytest.mark.parametrize(
    ("wish", "served"),
    [(a_wish(1, 1), True), (a_wish(1, None), False), (a_wish(1, 1, cpu=True), False)],
)
def test_hosts_of_a_pod_serve_what_they_were_asked_for_as(wish, served):
    assert pod(slices=1).serves(wish) is served


def test_simulated_hosts_on_a_pod_serve_those_who_want_no_tpu():
    group = a_group(Actor(), abouts=[about(chips=4)], hosts=1, among_tpus=True)
    assert group.serves(a_wish(1, cpu=True))
    assert not group.serves(a_wish(1))


def test_simulated_hosts_on_a_pod_have_seats_of_their_own():
    told = {"TPU_WORKER_ID": "2", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}
    group = a_group(Actor(), abouts=[about(chips=4, environ=told)], hosts=1, among_tpus=True)
    assert [seat.worker for seat in group.seats(None)] == [0]


def test_a_tpu_vm_without_chips_is_not_used():
    async def introduce():
        await cluster_module._introduced([Actor(about=lambda: about(chips=0))], [{"TPU": 4.0}])

    with pytest.raises(LaunchError, match="Ray counts 4 TPU chips on m1, but none is visible"):
        asyncio.run(introduce())


def test_a_tpu_vm_that_does_not_know_its_number_has_that_of_its_label():
    labels = {
        "ray.io/tpu-slice-name": "a",
        "ray.io/tpu-worker-id": "%d",
        "ray.io/tpu-pod-type": "v4-16",
    }
    nodes = [
        Node(f"m{n}", f"10.0.0.{n}", f"n{n}", total={"TPU": 4},
             labels={name: text.replace("%d", str(1 - n)) for name, text in labels.items()})
        for n in (0, 1)
    ]  # fmt: skip
    told = {"TPU_WORKER_ID": "1"}
    abouts = [about(0, chips=4, environ=told), about(1, chips=4)]
    found = cluster_module._numbered(abouts, nodes)
    assert [each.environ["TPU_WORKER_ID"] for each in found] == ["1", "0"]
    assert cluster_module._numbered([about(1)], nodes) == [about(1)]
