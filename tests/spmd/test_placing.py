"""Parameters are placed as the plan says, read back from XLA; impossible plans are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Devices = Callable[..., Any]


def test_parameters_are_placed_as_planned_and_the_rest_is_replicated(devices: Devices) -> None:
    assert devices("placements", "mlp", {"data": 2, "model": 2}, "model") == {
        "in_proj.weight": "Shard(0) over 'model'; 8x8 on each device",
        "in_proj.bias": "Shard(0) over 'model'; 8 on each device",
        "out_proj.weight": "Shard(1) over 'model'; 8x8 on each device",
        "out_proj.bias": "Replicate; 8 on each device",
    }


def test_wildcards_match_every_layer(devices: Devices) -> None:
    placements = devices("placements", "stack", {"model": 4}, None)
    sharded = {name for name, where in placements.items() if where.startswith("Shard")}
    assert sharded == {
        f"layers.{layer}.{name}"
        for layer in (0, 1)
        for name in (
            "attention.qkv.weight",
            "attention.qkv.bias",
            "attention.out.weight",
            "mlp.in_proj.weight",
            "mlp.in_proj.bias",
            "mlp.out_proj.weight",
        )
    }


def test_tied_parameters_are_placed_once(devices: Devices) -> None:
    placements = devices("placements", "tied", {"model": 4}, None)
    where = "Shard(0) over 'model'; 6x8 on each device"
    assert placements["embed.weight"] == placements["head.weight"] == where


def test_more_devices_hold_fewer_bytes_each(devices: Devices) -> None:
    for size, (weights, moments, reported) in devices("bytes_on_each").items():
        share = 2 * 64 * 64 * 4 // size
        assert set(weights.values()) == set(moments.values()) == {share}
        assert len(weights) == 4
        assert reported == share


def test_a_users_style_places_by_its_own_partition_function(devices: Devices) -> None:
    assert devices("styles") == {
        "same": True,
        "kinds": {"Parameter"},
        "placements": {
            "in_proj.weight": "Shard(1) over 'model'; 16x2 on each device",
            "in_proj.bias": "Replicate; 16 on each device",
            "out_proj.weight": "Shard(0) over 'model'; 2x16 on each device",
            "out_proj.bias": "Shard(0) over 'model'; 2 on each device",
        },
        "works": [2, 8],
    }


def test_inputs_and_outputs_are_laid_out(devices: Devices) -> None:
    assert devices("prepared") == {
        "placements": [
            "Shard(0) over 'model'; 1x8 on each device",
            "Shard(1) over 'model'; 4x2 on each device",
            "Shard(1) over 'model'; 4x2 on each device",
        ],
        "equal": [True, True, True],
        "flag": True,
    }


def test_a_second_plan_adds_its_axis(devices: Devices) -> None:
    assert devices("twice") == {
        "in_proj.weight": "Shard(0) over 'data' and 'model'; 4x8 on each device",
        "in_proj.bias": "Shard(0) over 'model'; 8 on each device",
        "out_proj.weight": "Shard(0) over 'data', Shard(1) over 'model'; 4x8 on each device",
        "out_proj.bias": "Shard(0) over 'data'; 4 on each device",
    }


def test_meshes_of_torch_and_torch_xla_are_accepted(devices: Devices) -> None:
    *same, part = devices("own_meshes")
    assert set(same) == {"Shard(0) in 4 parts; 4x8 on each device"}
    assert part == "{'b': 2, 'a': 2} [[0, 2], [1, 3]]"


def test_buffers_and_recurrent_modules_are_placed(devices: Devices) -> None:
    assert devices("recurrent") == [
        "Shard(0) over 'model'; 8x8 on each device",
        "Shard(0) over 'model'; 2 on each device",
        "Replicate; 8 on each device",
    ]


# The words of each error that say what is wrong, where, and how to fix it.
REFUSED = {
    "small mesh": ("UsageError", "8 devices", "has 4", "mesh({'data': 2, 'model': 2})"),
    "odd mesh": ("UsageError", "3 devices", "has 4", "mesh({'model': 4})"),
    "odd rest": ("UsageError", "a multiple of 3 devices", "mesh({'data': 4, 'model': 1})"),
    "no axes": ("UsageError", 'mesh({"data": 2, "model": 2})'),
    "zero": ("UsageError", "'model'", "0"),
    "two rests": ("UsageError", "only one axis can be -1"),
    "no axis": ("UsageError", "'modle'", "'data', 'model'"),
    "cpu mesh": ("UsageError", "not a str", "xla_nb.spmd.mesh"),
    "no match": ("UsageError", "'in_porj' matches nothing", "in_proj"),
    "no match deep": ("UsageError", "'layers.*.attention.qvk'", "layers.0.attention.qkv"),
    "style on parameter": ("UsageError", "'in_proj.weight'", "ColwiseParallel", "Shard(0)"),
    "placement on module": ("UsageError", "'in_proj'", '"in_proj.weight"'),
    "no style": ("UsageError", "'in_proj'", "'column'", "ColwiseParallel()"),
    "no plan": ("UsageError", "not a NoneType"),
    "norm": ("NotExpressible", "norm1 (ColwiseParallel)", "LayerNorm", '"norm1.weight": Shard(0)'),
    "two axes": ("NotExpressible", "'data', 'model'", "mesh['model']"),
    "one of two": ("UsageError", "in_proj.weight", "1 placement", "mesh['model']"),
    "dimension": ("NotExpressible", "in_proj.bias", "Shard(dim=1)", "1 dimension"),
    "partial": ("NotExpressible", "in_proj.weight", "Partial", "Shard(dim)"),
    "partial output": ("NotExpressible", "out_proj (RowwiseParallel)", "Partial", "Replicate()"),
    "partial input": ("NotExpressible", "in_proj (ColwiseParallel)", "Partial"),
    "tied": ("UsageError", "embed.weight (ColwiseParallel)", "head.weight", "Shard(1)", "Shard(0)"),
    "tied names": ("UsageError", "embed.weight", "head.weight", "two ways"),
    "own input": ("NotExpressible", "in_proj (OwnInput)", "input_layouts", "PrepareModuleInput"),
    "zeroed": ("NotExpressible", "in_proj (Zeroed)", "replaces weight"),
    "own hook": ("NotExpressible", "in_proj (OwnHook)", "adds hooks"),
    "ranked": ("NotExpressible", "in_proj (Ranked)", "no process group"),
    "lazy": ("UsageError", "weight has no shape yet", "Run one batch"),
    "meta": ("UsageError", "weight is on the meta device", "to_empty"),
    "no model": ("UsageError", "an nn.Module, not a dict"),
    "on the cpu": ("UsageError", "in_proj (ColwiseParallel)", "shard_batch"),
    "wrong rank": ("NotExpressible", "PrepareModuleOutput", "Shard(dim=3)", "2 dimensions"),
    "counts": ("UsageError", "number of outputs is 1", "lays out 2"),
    "batch axis": ("UsageError", "'data'", "axis='model'"),
    "not placed": ("UsageError", "cpu", "parallelize"),
    "not a model": ("UsageError", "a model or a tensor, not a list"),
    "loose optimizer": ("UsageError", "strict=False", "SGD", "Remove strict=False"),
}


@pytest.fixture(scope="module")
def refused() -> dict[str, tuple[str, str]]:
    return {}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_say_what_is_wrong_and_how_to_fix_it(
    devices: Devices, refused: dict[str, tuple[str, str]], case: str
) -> None:
    refused.update({} if refused else devices("refused"))
    assert refused.keys() == REFUSED.keys()
    kind, *words = REFUSED[case]
    assert refused[case][0] == kind, refused[case]
    for word in words:
        assert word in refused[case][1]


def test_a_refused_plan_leaves_the_model_alone(devices: Devices) -> None:
    assert devices("refused_plan_moves_nothing")
