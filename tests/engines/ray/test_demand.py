"""What a run takes of a cluster, in tables of clusters as Ray describes them."""

from dataclasses import replace

import pytest

from xla_nb.engines.ray import demand
from xla_nb.engines.ray.demand import Lacking, Node

CPU = {"CPU": 1.0}


def machine(number, cpus=8.0, free=None, alive=True):
    free = cpus if free is None else free
    where = f"10.0.0.{number}"
    return Node(f"m{number}", where, f"n{number}", alive, {"CPU": cpus}, {"CPU": free})


def vm(slice_, worker, kind="v4-16", chips=4.0, busy=False, **more):
    """A VM of a slice, with the resources and labels that Ray gives it (get_current_node_
    additional_resources and get_current_node_accelerator_labels)."""
    total = {"CPU": 100.0, "TPU": chips, slice_: 1.0, f"TPU-{kind.split('-')[0].upper()}": 1.0}
    if worker == 0:
        total[f"TPU-{kind}-head"] = 1.0
    free = {**total, "TPU": 0.0} if busy else total
    labels = {
        "ray.io/tpu-slice-name": slice_,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-pod-type": kind,
        **more.pop("labels", {}),
    }
    return Node(f"{slice_}-{worker}", "10.1.0.1", total=total, free=free, labels=labels, **more)


def slice_of(name, vms=2, kind="v4-16", **more):
    return [vm(name, worker, kind, **more) for worker in range(vms)]


def taken(slice_, worker, kind="v4-16", chips=4.0):
    head = {f"TPU-{kind}-head": 1.0} if worker == 0 else {}
    return {"TPU": chips, slice_: 1.0, **head}


def choose(nodes, hosts=None, slices=None, *, tpu=False):
    return demand.choose(nodes, hosts, slices, tpu=tpu)


# ---------------------------------------------------------------- machines without a TPU


@pytest.mark.parametrize(
    ("nodes", "hosts", "count"),
    [
        ([machine(1), machine(2), machine(3)], 2, 2),
        ([machine(1), machine(2), machine(3)], None, 3),
        ([machine(1), machine(2, free=0), machine(3)], 2, 2),
        ([machine(1, free=1)], 1, 1),
        ([machine(1), machine(2, alive=False)], None, 1),
        ([machine(1), machine(2, free=0)], None, 1),
        ([machine(1, cpus=0), machine(2), machine(3)], None, 2),  # a head for no work
    ],
)
def test_each_host_takes_a_cpu_where_there_is_enough(nodes, hosts, count):
    assert choose(nodes, hosts) == [CPU] * count


@pytest.mark.parametrize(
    ("nodes", "hosts", "short"),
    [
        ([machine(1)], 2, "Need 2 hosts with a free CPU, but only 1 is available"),
        ([machine(1), machine(2), machine(3, free=0.5)], 3, "Need 3 hosts with a free CPU, but "
         "only 2 are available"),
        ([machine(1, alive=False)], None, "Need 1 host with a free CPU, but none is "
         "available"),
        ([], None, "Need 1 host with a free CPU, but none is available"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_in_a_line(nodes, hosts, short):
    assert choose(nodes, hosts).short == short


def test_what_is_missing_is_said_for_each_machine_with_what_to_do():
    nodes = [machine(1), machine(2, free=0.5), machine(3, cpus=0), machine(4, alive=False)]
    assert choose(nodes, 2).text.splitlines() == [
        "Need 2 hosts with a free CPU, but only 1 is available:",
        "  m1 (10.0.0.1): 8 of 8 CPU free",
        "  m2 (10.0.0.2): 0.5 of 8 CPU free",
        "  m3 (10.0.0.3): has no CPU",
        "  and 1 dead node",
        "Use `--hosts 1`, add nodes (`ray start --address=...` on each), or wait for other jobs to "
        "finish (`--wait 5m`).",
    ]


def test_of_a_large_cluster_not_every_machine_is_told():
    lines = choose([machine(n, free=0) for n in range(1000)]).text.splitlines()
    assert lines[40:42] == ["  m39 (10.0.0.39): 0 of 8 CPU free", "  and 960 nodes more"]
    assert len(lines) == 43


def test_what_is_as_good_as_free_adds_to_what_is_free():
    node = machine(1, free=0.5).with_free({"CPU": 0.5, "TPU": 4.0})
    assert node.free == {"CPU": 1.0, "TPU": 4.0}
    assert choose([node]) == [CPU]


def test_an_empty_cluster_is_said_to_be_one():
    assert choose([]).text.splitlines()[1:] == [
        "  the cluster has no nodes",
        "Add nodes (`ray start --address=...` on each), or wait for other jobs to finish "
        "(`--wait 5m`).",
    ]


# ---------------------------------------------------------------- TPU slices


def test_a_vm_of_a_slice_takes_all_its_chips_its_slices_name_and_the_head():
    nodes = [machine(1), *reversed(slice_of("a"))]
    assert choose(nodes, tpu=True) == [taken("a", 0), taken("a", 1)]


def test_the_first_worker_comes_first_whatever_it_is_called():
    nodes = [replace(node, name=f"m{9 - n}") for n, node in enumerate(slice_of("a", 4, "v4-32"))]
    found = choose(list(reversed(nodes)), tpu=True)
    assert ["TPU-v4-32-head" in bundle for bundle in found] == [True, False, False, False]


@pytest.mark.parametrize("name", [{}, {"ray.io/tpu-slice-name": "the-same"}])
def test_a_vm_with_all_chips_of_its_slice_is_a_slice_by_itself(name):
    nodes = [
        Node(f"m{n}", f"10.0.0.{n}", total={"TPU": 8.0}, free={"TPU": 8.0},
             labels={"ray.io/tpu-topology": "2x4", **name})
        for n in range(2)
    ]  # fmt: skip
    assert choose(nodes, tpu=True) == [{"TPU": 8.0}]
    assert choose(nodes, slices=2, tpu=True) == [{"TPU": 8.0}] * 2


def test_a_machine_with_chips_and_no_label_is_a_slice_by_itself():
    nodes = [Node(f"m{n}", "10.0.0.1", total={"TPU": 4.0}, free={"TPU": 4.0}) for n in range(2)]
    assert choose(nodes, 2, 2, tpu=True) == [{"TPU": 4.0}] * 2


def test_a_slice_that_others_use_is_passed_over():
    nodes = [*slice_of("a"), *slice_of("b")]
    nodes[1] = vm("a", 1, busy=True)
    assert choose(nodes, tpu=True) == [taken("b", 0), taken("b", 1)]


@pytest.mark.parametrize(
    ("kind", "chips", "vms"),
    [
        ("v4-16", 4.0, 2),
        ("v5litepod-16", 4.0, 4),
        ("v6e-8", 8.0, 1),
        ("v5p-32", 4.0, 4),
        ("v3-8", 4.0, 1),
    ],
)
def test_a_slice_is_whole_when_it_has_the_chips_of_its_type(kind, chips, vms):
    whole = slice_of("a", vms, kind, chips=chips)
    assert len(choose(whole, tpu=True)) == vms
    if vms > 1:
        found = choose(whole[:-1], tpu=True)
        assert found.short == "Need 1 whole TPU slice, but none is free"


def test_the_topology_says_more_than_the_type():
    nodes = slice_of("a", 2, "v6e-8", labels={"ray.io/tpu-topology": "4x4"})
    assert isinstance(choose(nodes, tpu=True), Lacking)


def test_a_slice_without_its_first_worker_is_not_whole():
    nodes = [vm("a", 1, kind="odd"), vm("a", 2, kind="odd")]  # a type that says no number
    assert isinstance(choose(nodes, tpu=True), Lacking)


def test_of_a_slice_that_is_not_whole_it_is_said():
    assert choose(slice_of("a")[:1], tpu=True).text.splitlines() == [
        "Need 1 whole TPU slice, but none is free:",
        "  a-0 (10.1.0.1): 4 of 4 TPU free, and other VMs of its slice a are missing",
        "Add nodes (`ray start --address=...` on each), or wait for other jobs to finish "
        "(`--wait 5m`).",
    ]


def test_several_slices_are_as_big_as_each_other():
    nodes = [*slice_of("a"), *slice_of("big", 4, "v4-32"), *slice_of("b")]
    assert choose(nodes, slices=2, tpu=True) == [taken(name, n) for name in "ab" for n in range(2)]


def test_several_slices_are_of_the_same_type():
    nodes = [*slice_of("a"), *slice_of("b", 2, "v5p-16"), *slice_of("c")]
    chosen = choose(nodes, 4, 2, tpu=True)
    assert chosen == [taken(name, n) for name in "ac" for n in range(2)]


def test_without_a_number_of_hosts_the_biggest_slice_is_taken():
    nodes = [*slice_of("a"), *slice_of("big", 4, "v4-32")]
    assert len(choose(nodes, tpu=True)) == 4
    assert len(choose(nodes, 2, tpu=True)) == 2


@pytest.mark.parametrize(
    ("nodes", "hosts", "slices", "short"),
    [
        ([machine(1)], None, None, "Need 1 whole TPU slice, but none is free"),
        (slice_of("a"), 4, None, "Need 1 whole TPU slice of 4 hosts, but none is free"),
        (slice_of("a"), 4, 2,
         "Need 2 whole TPU slices of 2 hosts of the same type, but only 1 is free"),
        ([*slice_of("a"), *slice_of("b", 4, "v4-32")], None, 2,
         "Need 2 whole TPU slices of the same type, but only 1 is free"),
        (slice_of("a"), 3, 2, "3 hosts cannot be divided into 2 slices of equal size"),
    ],
)  # fmt: skip
def test_slices_that_are_missing_are_counted(nodes, hosts, slices, short):
    assert choose(nodes, hosts, slices, tpu=True).short == short


def test_hosts_that_are_no_multiple_of_the_slices_are_refused_with_what_to_do():
    assert choose(slice_of("a"), 3, 2, tpu=True).text == (
        "3 hosts cannot be divided into 2 slices of equal size. Use a --hosts that is a multiple "
        "of --slices."
    )


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([("a", "1", "n1"), ("b", "2", "n2")], ["a", "b"]),
        ([("a", "1", "n1"), ("a", "2", "n2")], ["a 1", "a 2"]),
        ([("a", "1", "0123456789"), ("a", "1", "9876543210")], ["a/012345", "a/987654"]),
        ([], []),
    ],
)
def test_hosts_are_called_by_as_much_as_tells_them_apart(hosts, expected):
    assert demand.names(hosts) == expected


# ---------------------------------------------------------------- which worker is which


def test_the_workers_of_a_slice_are_numbered_by_their_labels():
    nodes = [vm("a", 2, id="x"), vm("a", 0, id="y"), vm("a", 1, id="z"), machine(1)]
    assert demand.workers(nodes, ["x", "y", "z"]) == {"x": 2, "y": 0, "z": 1}


def test_each_slice_has_its_own_numbers_and_others_machines_none():
    nodes = [vm(name, worker, id=f"{name}{worker}") for name in "abc" for worker in (1, 0)]
    found = demand.workers(nodes, ["a0", "a1", "c0", "c1"])
    assert found == {"a0": 0, "a1": 1, "c0": 0, "c1": 1}


@pytest.mark.parametrize("labels", [("0", ""), ("0", "0"), ("0", "2"), ("1", "2"), ("0", "one")])
def test_labels_that_do_not_number_a_whole_slice_number_none_of_it(labels):
    nodes = [
        vm("a", 0, id=str(place), labels={"ray.io/tpu-worker-id": label})
        for place, label in enumerate(labels)
    ]
    assert demand.workers(nodes, ["0", "1"]) == {}
