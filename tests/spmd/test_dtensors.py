"""The lines of programs for CUDA place a model, and their questions about it are answered or
refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.tensor import Replicate, Shard

Devices = Callable[..., Any]


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("mlp", "sgd"),
        pytest.param("sequence", "adamw", marks=pytest.mark.slow),
    ],
)
def test_parallelize_module_trains_as_on_one_device(
    devices: Devices, model: str, optimizer: str
) -> None:
    assert devices("published.trained", model, optimizer) < 1e-5


def test_parts_of_a_mesh_train_as_on_one_device(devices: Devices) -> None:
    assert devices("published.two_dimensions") < 1e-5


@pytest.mark.parametrize(
    ("dimensions", "placements", "by"),
    [
        (1, [Shard(0)], "loop"),
        (1, [Shard(1)], "loop, on the device"),
        (1, [Replicate()], "nothing"),
        (2, [Shard(0), Shard(1)], "module"),
        (2, [Shard(1), Shard(1)], "module"),
    ],
)
def test_distributed_parameters_train_as_on_one_device(
    devices: Devices, dimensions: int, placements: list[Any], by: str
) -> None:
    assert devices("published.distributed", dimensions, placements, by) < 1e-5


def test_functions_for_inputs_and_outputs_run_as_hooks(devices: Devices) -> None:
    assert max(devices("published.hooks")) < 1e-5


def test_a_loss_in_parallel_is_the_loss(devices: Devices) -> None:
    assert max(devices("published.loss_in_parallel")) < 1e-5


def test_tensors_answer_what_a_dtensor_is_asked(devices: Devices) -> None:
    placements = {
        "in_proj.weight": (Shard(0),),
        "in_proj.bias": (Shard(0),),
        "out_proj.weight": (Shard(1),),
        "out_proj.bias": (Replicate(),),
    }
    assert devices("published.answers") == {
        "placements": placements,
        "equal": True,
        "mesh": True,
        "kept": True,
        "copied": True,
        "as it is": (Shard(0),),
        "moved": True,
        "whole is apart": True,
        "gradient": ((Shard(0),), True),
        "both": ((Shard(0), Shard(0)), True, 120.0),
        "parted": ((Shard(1),), True),
        "uneven": [(Shard(0),)] * 3,
        "saved": True,
        "without": [False, False],
    }


def test_a_distributed_tensor_is_a_leaf_of_its_own(devices: Devices) -> None:
    assert devices("published.leaves") == {
        "gradients": ([2.0] * 8, None),
        "values": ([float(i) for i in range(8)], [3.0 * i for i in range(8)]),
        "marked": (Shard(0),),
        "joined": [[6.0] * 4] * 4,
    }


def test_a_mesh_of_torchs_is_one_of_ours(devices: Devices) -> None:
    assert devices("published.meshes") == {
        "sizes": (4, 2, 2, (2, 2), 2),
        "names": (("dp", "tp"), ("tp",), None),
        "of ours": True,
        "sent": ("tp",),
        "alone": 0,
    }


# The words of each error that say what is wrong, and how to fix it.
REFUSED = {
    "cuda": ("UsageError", "'cuda' mesh", "one process owns", "init_device_mesh('xla'"),
    "sent": ("UsageError", "'tp': 8", "the 4 devices"),
    "too many": ("UsageError", "'axis0': 8", "the 4 devices"),
    "local rank": ("UsageError", "mesh.get_local_rank()", "one process", "distribute_tensor"),
    "group": ("UsageError", "mesh.get_group()", "no process groups"),
    "coordinate": ("UsageError", "mesh.get_coordinate()", "one process"),
    "local": ("AttributeError", "to_local"),
    "placements pending": ("AttributeError", "no placements yet", "torch_xla.sync()"),
    "made": ("UsageError", "mesh.get_coordinate()", "distribute_tensor"),
    "partial": ("UsageError", "distribute_tensor", "Partial", "Shard(dim)"),
    "too few": ("UsageError", "distribute_tensor", "'dp', 'tp'", "one placement for each axis"),
    "dimension": ("UsageError", "distribute_tensor", "Shard(dim=2)", "2 dimensions"),
    "not a leaf": ("UsageError", "distribute_tensor", "computed from others"),
    "parts": ("UsageError", "DTensor.from_local", "Shard(dim=0)", "distribute_tensor"),
    "fully_shard": ("UsageError", "FSDP", "no process groups", "placements"),
    "flatten": ("UsageError", "mesh._flatten()", "no process groups"),
    "local_map": ("UsageError", "local_map", "one process has all parts", "whole tensor"),
    "two axes": ("UsageError", "'dp', 'tp'", "mesh['tp']"),
    "no plan": ("UsageError", "a dict or a single style", "list"),
    "no such key": ("UsageError", "'in_prj' matches no module", "in_proj"),
}


def test_what_cannot_be_answered_is_refused_by_name(devices: Devices) -> None:
    refused = devices("published.refused")
    assert refused.keys() == REFUSED.keys()
    for case, (kind, *words) in REFUSED.items():
        assert refused[case][0] == kind, (case, refused[case])
        for word in words:
            assert word in refused[case][1], (case, refused[case])
