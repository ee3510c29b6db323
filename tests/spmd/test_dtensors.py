"""DTensor code written for CUDA places models; unsupported calls are refused."""

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
def test_parallelize_module_training_matches_one_device(
    devices: Devices, model: str, optimizer: str
) -> None:
    assert devices("published.trained", model, optimizer) < 1e-5


def test_submesh_training_matches_one_device(devices: Devices) -> None:
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
def test_distributed_parameter_training_matches_one_device(
    devices: Devices, dimensions: int, placements: list[Any], by: str
) -> None:
    assert devices("published.distributed", dimensions, placements, by) < 1e-5


def test_input_and_output_functions_run_as_hooks(devices: Devices) -> None:
    assert max(devices("published.hooks")) < 1e-5


def test_loss_parallel_computes_the_same_loss_and_gradients(devices: Devices) -> None:
    assert max(devices("published.loss_in_parallel")) < 1e-5


def test_tensors_support_dtensor_attributes(devices: Devices) -> None:
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


def test_distribute_tensor_returns_a_new_leaf(devices: Devices) -> None:
    assert devices("published.leaves") == {
        "gradients": ([2.0] * 8, None),
        "values": ([float(i) for i in range(8)], [3.0 * i for i in range(8)]),
        "marked": (Shard(0),),
        "joined": [[6.0] * 4] * 4,
    }


def test_torch_device_meshes_are_xla_nb_meshes(devices: Devices) -> None:
    assert devices("published.meshes") == {
        "sizes": (4, 2, 2, (2, 2), 2),
        "names": (("dp", "tp"), ("tp",), None),
        "of ours": True,
        "sent": ("tp",),
        "alone": 0,
    }


# Words of each error that name the problem and the fix.
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


def test_errors_for_unsupported_calls_name_the_problem_and_fix(devices: Devices) -> None:
    refused = devices("published.refused")
    assert refused.keys() == REFUSED.keys()
    for case, (kind, *words) in REFUSED.items():
        assert refused[case][0] == kind, (case, refused[case])
        for word in words:
            assert word in refused[case][1], (case, refused[case])
