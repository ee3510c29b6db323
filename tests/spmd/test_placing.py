"""Parameters are placed according to the plan; impossible plans are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Devices = Callable[..., Any]


def test_planned_parameters_are_sharded_and_the_rest_replicated(devices: Devices) -> None:
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


def test_custom_styles_are_applied(devices: Devices) -> None:
    result = devices("styles")
    assert result["placements"] == [
        "Shard(0) over 'model'; 4x8 on each device",
        "Shard(0) over 'model'; 4 on each device",
    ]
    assert result["far"] < 1e-5


def test_prepare_styles_lay_out_inputs_and_outputs(devices: Devices) -> None:
    assert devices("prepared") == {
        "placements": [
            "Shard(0) over 'model'; 1x8 on each device",
            "Shard(1) over 'model'; 4x2 on each device",
            "Shard(1) over 'model'; 4x2 on each device",
        ],
        "equal": [True, True, True],
        "flag": True,
    }


def test_second_plan_adds_its_axis(devices: Devices) -> None:
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


# Words of each error that name the problem, its place and the fix.
REFUSED = {
    "small mesh": ("'data': 2, 'model': 4", "the 4 devices", "whose product is 4"),
    "odd mesh": ("'model': 3", "the 4 devices", '{"model": 4}'),
    "no axes": ("The mesh {}", "Give each axis a size"),
    "two rests": ("'data': -1, 'model': -1", "one may be -1"),
    "no axis": ("'modle'", "'data', 'model'"),
    "cpu mesh": ("not 'cpu'", "xla_nb.spmd.mesh"),
    "no match": ("'in_porj' matches no module", "in_proj"),
    "no match deep": ("'layers.*.attention.qvk'", "layers.0.attention.qkv"),
    "style on parameter": ("'in_proj.weight' matches no module", "in_proj"),
    "placement on module": ("'in_proj' matches no parameter", "in_proj.weight"),
    "no style": ("'in_proj'", "'column'", "ColwiseParallel()"),
    "no plan": ("not a NoneType",),
    "norm": ("norm1 (ColwiseParallel)", "LayerNorm", '"norm1.weight": Shard(0)'),
    "two axes": ("'data', 'model'", "mesh['model']"),
    "one of two": ("in_proj.weight", "1 placement", "mesh['model']"),
    "dimension": ("in_proj.bias", "Shard(dim=1)", "1 dimension"),
    "partial": ("in_proj.weight", "Partial", "Shard(dim)"),
    "partial output": ("out_proj (RowwiseParallel)", "Partial", "Replicate()"),
    "partial input": ("in_proj (ColwiseParallel)", "Partial"),
    "tied": ("embed.weight (ColwiseParallel)", "head.weight", "two ways"),
    "tied names": ("embed.weight", "head.weight", "two ways"),
    "derived": ("in_proj (Quarter)", "Derive it from ParallelStyle", "Shard(0)"),
    "ranked": ("mesh.get_group()", "no process groups"),
    "no model": ("an nn.Module, not a dict",),
    "on the cpu": ("in_proj (ColwiseParallel)", "shard_batch"),
    "wrong rank": ("PrepareModuleOutput", "Shard(dim=3)", "2 dimensions"),
    "counts": ("number of outputs is 1", "lays out 2"),
    "batch axis": ("'data'", "axis='model'"),
    "not placed": ("cpu", "parallelize"),
    "not a model": ("a model or a tensor, not a list",),
}


def test_errors_name_the_problem_and_fix(devices: Devices) -> None:
    refused = devices("refused")
    assert refused.keys() == REFUSED.keys()
    for case, words in REFUSED.items():
        assert refused[case][0] == "UsageError", (case, refused[case])
        for word in words:
            assert word in refused[case][1], (case, refused[case])


def test_refused_plan_leaves_the_model_unchanged(devices: Devices) -> None:
    assert devices("refused_plan_moves_nothing")
