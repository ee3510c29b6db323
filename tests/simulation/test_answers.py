"""Values that torch_xla reports in ranks about a simulated host and its devices."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.harness import Job
from tests.support.installed import need
from xla_nb.topology import tpu_types

Simulate = Callable[..., Job]
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "simulated-host.md").read_text()


def variables(wish: str, n: int | None = None) -> dict[str, str]:
    tpu = tpu_types.simulated(wish, n)
    assert tpu is not None
    return tpu.variables()


def test_torch_xla_reports_a_v4_host_by_default(simulate: Simulate) -> None:
    answers = simulate("told", env=variables("")).values()
    for rank, each in enumerate(answers):
        assert each == {
            "device_type": "TPU",
            "PJRT_DEVICE": "TPU",
            "hardware": "TPU",
            "real_devices": [f"TPU:{rank}"],
            "all_devices": [f"TPU:{other}" for other in range(4)],
            "kind": "TPU v4",
            "attributes": {
                "coords": [rank % 2, rank // 2, 0],
                "core_on_chip": 0,
                "name": f"TPU:{rank}",
            },
            "version": 4,
            "type": "v4",
            "chips": 4,
            "devices": 4,
            "expected": 4,
            "processes": 4,
            "task": rank,
            "worker": 0,
            "workers": ["localhost"],
            "master": "localhost",
            "host": 0,
            "simulated": True,
            "sum": 4.0,
        }


def test_torch_xla_reports_the_chosen_tpu_type(simulate: Simulate) -> None:
    answers = simulate("told", ranks=2, env=variables("v5litepod-8", 2)).values()
    assert [each["type"] for each in answers] == ["v5litepod"] * 2
    assert [each["kind"] for each in answers] == ["TPU v5 lite"] * 2
    assert [(each["chips"], each["processes"]) for each in answers] == [(8, 2)] * 2


def test_torch_xla_reports_cpu_devices_on_a_simulated_cpu_host(simulate: Simulate) -> None:
    answers = simulate("told_of_a_cpu", env={"XLA_NB_SIMULATE": "cpu"}).values()
    assert answers == [("CPU", "CPU", [f"CPU:{rank}"], True, str(rank), "4") for rank in range(4)]


@pytest.mark.parametrize(("wish", "ranks", "bounds"), [("v4-8", 4, "2,2,1"), ("v6e-8", 8, "2,4,1")])
def test_ranks_have_the_variables_torch_xla_sets_on_a_tpu(
    simulate: Simulate, wish: str, ranks: int, bounds: str
) -> None:
    """The variables set by configure_topology and initialize_multiprocess."""
    expected = [
        {
            "PJRT_DEVICE": "TPU",
            "TPU_PROCESS_BOUNDS": bounds,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{8476 + n}" for n in range(ranks)),
            "CLOUD_TPU_TASK_ID": str(rank),
            "TPU_VISIBLE_CHIPS": str(rank),
            "TPU_PROCESS_PORT": str(8476 + rank),
            "PJRT_LOCAL_PROCESS_RANK": str(rank),
            "PJRT_LOCAL_PROCESS_COUNT": str(ranks),
        }
        for rank in range(ranks)
    ]
    names = list(expected[0])
    found = simulate("variables", ranks=len(expected), env={**variables(wish), "SHOW": str(names)})
    assert found.values() == expected


def test_child_processes_of_ranks_use_the_cpu(simulate: Simulate) -> None:
    assert simulate("told_a_child", ranks=1, env=variables("")).values() == ["CPU"]


def test_autocast_on_a_simulated_tpu_uses_bfloat16(simulate: Simulate) -> None:
    assert simulate("autocast", ranks=1, env=variables("")).values() == ["torch.bfloat16"]


@pytest.mark.parametrize("env", [variables(""), {"XLA_NB_SIMULATE": "cpu"}], ids=["tpu", "cpu"])
def test_accelerate_detects_each_rank_and_trains(simulate: Simulate, env: dict[str, str]) -> None:
    job = simulate("accelerated", env=env)
    places, sizes, weights = zip(*job.values(), strict=True)
    assert places == (0, 1, 2, 3)
    assert sizes == (4,) * 4
    assert weights == (weights[0],) * 4
    assert (job.folder / "out").read_text().count("printed by one rank") == 1


def test_unknown_metadata_attribute_raises_404(simulate: Simulate) -> None:
    answers = simulate("unknown_metadata", ranks=1, env=variables("")).values()
    assert answers == ["404 Not Found: a simulated host has no attribute 'agent-worker-number'."]


def test_values_in_the_guide_match_those_in_ranks(simulate: Simulate) -> None:
    table = GUIDE.partition("| what rank 1 of 4 asks |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(.*)` \| `(.*)` \|$", table, re.MULTILINE))
    assert len(rows) > 10
    found = simulate("evaluated", env={**variables(""), "SHOW": str(list(rows))}).values()
    assert found[1] == [ast.literal_eval(answer) for answer in rows.values()]


def test_guide_lists_every_reason_for_refusal(simulate: Simulate) -> None:
    (reasons,) = simulate("reasons_for_refusals", ranks=1).values()
    table = GUIDE.partition("| refused | because |")[2].partition("\n\n")[0]
    assert {row.rpartition(" | ")[2].strip(" |") for row in table.splitlines()[2:]} >= set(reasons)


@pytest.mark.parametrize("what", ["memory", "kernel"])
def test_tpu_only_features_are_refused(simulate: Simulate, what: str) -> None:
    if what == "kernel":
        need("jax")
    ended = simulate(f"asks_for_{what}", ranks=1, env=variables("")).ranks[0]
    assert ended.how == "NotCarried"
    assert "The simulated TPU host does not support" in ended.value
