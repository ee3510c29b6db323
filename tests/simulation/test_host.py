"""Simulated hosts: the identity of ranks, open files and unsupported functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.harness import Job, Launcher, job

Simulate = Callable[..., Job]
COMMUNICATES = re.compile(
    "all_reduce|all_gather|reduce_scatter|all_to_all|permute|broadcast|send|recv"
    "|spmd|shard|coordinator|preemption"
)
ONLY_READS = {  # these only read the process's own state
    "XlaShardingSpec",
    "OpSharding",
    "_deactivate_preemption_sync_manager",
    "_get_local_shard_replica_and_indices",
    "_get_xla_op_sharding",
    "_get_xla_sharding_spec",
    "_get_xla_sharding_specs",
    "_get_xla_sharding_type",
    "_xla_clear_sharding",
    "_xla_get_auto_sharding",
    "_xla_get_spmd_config_is_locked",
}


@pytest.mark.parametrize("ranks", [1, 4])
def test_torch_xla_reports_each_ranks_identity(simulate: Simulate, ranks: int) -> None:
    identities = simulate("identity", ranks=ranks).values()
    assert len({each.pop("pid") for each in identities}) == ranks
    for rank, each in enumerate(identities):
        assert each == {
            "argument": rank,
            "world_size": ranks,
            "global_ordinal": rank,
            "local_ordinal": rank,
            "process_count": ranks,
            "process_index": rank,
            "global_device_count": ranks,
            "global_runtime_device_count": ranks,
            "local_device_count": ranks,
            "addressable_device_count": 1,
            "local_process_count": ranks,
            "host_index": 0,
            "device": "xla:0",
            "real_devices": [f"CPU:{rank}"],
            "hardware": "CPU",
            "is_master": rank == 0,
        }


def test_each_rank_gets_its_own_process_even_when_short(launcher: Launcher) -> None:
    for ended in launcher.run(*(job("process_id", ranks=8) for _ in range(3))):
        assert len(set(ended.values())) == 8


def test_conflicting_variables_are_dropped(simulate: Simulate) -> None:
    env = {"CPU_NUM_DEVICES": "2", "XLA_USE_SPMD": "1", "PJRT_LOCAL_PROCESS_RANK": "7"}
    identities = simulate("identity", ranks=2, env=env).values()
    assert [each["local_ordinal"] for each in identities] == [0, 1]
    assert [each["addressable_device_count"] for each in identities] == [1, 1]


def test_launch_without_collectives_opens_only_socket_pairs(simulate: Simulate) -> None:
    assert simulate("nothing").values() == [4] * 4  # to three ranks, and the run's listener


@pytest.mark.slow
def test_open_files_do_not_grow_quadratically_with_ranks(simulate: Simulate) -> None:
    assert simulate("sum_of_ones", ranks=48, files=600).values() == [48.0] * 48


def test_many_collectives_leave_no_files_open(simulate: Simulate) -> None:
    assert all(before == after for before, after in simulate("many").values())


def test_concurrent_runs_do_not_interfere(launcher: Launcher) -> None:
    runs = launcher.run(job("processes_and_ports"), job("processes_and_ports", ranks=3))
    assert runs[0].values() == [[6.0, 6.0]] * 4
    assert runs[1].values() == [[3.0, 3.0]] * 3


def test_two_hosts_form_one_world(launcher: Launcher) -> None:
    hosts = launcher.run_hosts("two_hosts", 2)
    values = [value for each in hosts for value in each.values()]
    assert values == [
        {
            "rank": rank,
            "local": rank % 2,
            "host": rank // 2,
            "world": 4,
            "sum": [6.0, 6.0],
            "large": 6.0,
            "gathered": [0.0, 1.0, 2.0, 3.0],
        }
        for rank in range(4)
    ]


@pytest.mark.parametrize("ranks", [3, 2], ids=["two hosts", "three hosts"])
def test_reductions_across_hosts_match_a_single_process(launcher: Launcher, ranks: int) -> None:
    hosts = launcher.run_hosts("between_hosts", 6 // ranks, ranks)
    assert [each.values() for each in hosts] == [[None] * ranks] * len(hosts)


def test_calls_torch_xlas_process_group_lacks_fail_as_documented(simulate: Simulate) -> None:
    for ends in simulate("calls_that_torch_xla_lacks").values():
        assert ends == {
            "AVG": "ValueError",
            "BXOR": "NotImplementedError",
            "all_gather_object": "RuntimeError",
            "gather_object": "RuntimeError",
            "broadcast_object_list": "RuntimeError",
            "scatter_object_list": "RuntimeError",
            "barrier": "None",
            "monitored_barrier": "ValueError",
            "recv from any": "NotImplementedError",
            "all_reduce_coalesced": "NotImplementedError",
        }


def test_a_rank_can_fork_children(simulate: Simulate) -> None:
    assert simulate("forked_children").values() == [112.0] * 4  # 4 times the sum of 0..7


def test_collective_in_a_child_process_is_refused(simulate: Simulate) -> None:
    found = simulate("collective_in_a_child", ranks=2).values()
    said = "A child process of rank 1 called rendezvous i64[1] dim 0. Call it in the rank itself: "
    assert found == [
        ("", [b"\x00", b"\x01"]),
        (f"{said}child processes are not ranks.", [b"\x00", b"\x01"]),
    ]


def test_errors_name_the_unsupported_function(simulate: Simulate) -> None:
    for messages in simulate("refused", ranks=2).values():
        for name, message in messages.items():
            module = "torch_xla._XLAC" if name[0] == "_" else "torch_xla.runtime"
            assert f"does not support {module}.{name}: " in message


def test_every_communicating_function_is_simulated_or_refused(simulate: Simulate) -> None:
    names, replaced = simulate("names_of_xlac", ranks=1).values()[0]
    communicating = {name for name in names if COMMUNICATES.search(name)} - ONLY_READS
    assert len(communicating) > 25
    # this includes functions for tokens, which order collectives inside a graph
    assert communicating <= set(replaced)


def test_functional_collectives_work_unless_torch_refuses_them(simulate: Simulate) -> None:
    without, messages = simulate("functional_names", ranks=1).values()[0]
    assert set(without) == set(messages)  # in-place ones, which torch refuses for XLA
    assert all("alias annotations" in message for message in messages.values())


def test_each_rank_saves_graphs_to_its_own_file(simulate: Simulate, tmp_path: Path) -> None:
    name = str(tmp_path / "graphs")
    simulate("saves_graphs", ranks=2, env={"XLA_SAVE_TENSORS_FILE": name}).values()
    saved = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {name.partition(".")[2].partition(".")[0] for name in saved} == {"0", "1"}
    assert all("aten::add" in text for text in saved.values())
