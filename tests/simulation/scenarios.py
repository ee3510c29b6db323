"""Functions that tests run on the ranks of a simulated host.

Each function runs on every rank. A collective's result is compared with one computed locally from
all ranks' inputs, which `tensor(rank, ...)` reproduces on every rank.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import json
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.amp
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch import Tensor, nn
from torch_xla._internal import tpu
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer
from torch_xla.experimental.custom_kernel import flash_attention
from torch_xla.experimental.scan import scan

import xla_nb
from tests.simulation import this_rank
from xla_nb.simulation import refusals
from xla_nb.simulation.agreement import (
    CollectiveMismatch,
    RankLost,
)
from xla_nb.simulation.collectives import Reduction, _Meeting
from xla_nb.simulation.memory import Walk
from xla_nb.stopwatch import Wait

# torch_xla 2.8's process group has no all_to_all of lists, gather, scatter or reduce, and mistakes
# a subgroup's root for the world's.
SINCE_2_9 = tuple(map(int, torch_xla.__version__.split(".")[:2])) >= (2, 9)
#: torch_xla's own functions, before a simulated host replaces any.
XLACS = dict(vars(torch_xla._XLAC))
HALVES = [[0, 2], [1, 3]]
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.int8,
    torch.bool,
)
FOLDS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda rows: rows.sum(0, dtype=rows.dtype),
    "mul": lambda rows: rows.prod(0, dtype=rows.dtype),
    "min": lambda rows: rows.amin(0),
    "max": lambda rows: rows.amax(0),
}
MIDDLE = (173, 229)  # 158 kB of f32: too large for a frame, but 4 of them fit on a board
LARGE = (283, 271)  # 307 kB: too large for a board


def tensor(rank: int, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def everyones(*shape: int, ranks: Sequence[int] = range(4), **kind: Any) -> Tensor:
    return torch.stack([tensor(rank, *shape, **kind) for rank in ranks])


def mine(*shape: int, **kind: Any) -> Tensor:
    return tensor(xr.global_ordinal(), *shape, **kind).to("xla")


def half(rank: int) -> list[int]:
    return HALVES[rank % 2]


def same(actual: Tensor, expected: Tensor, **tolerance: float) -> None:
    assert actual.device.type == "xla", actual.device
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)


# --- rank identity


def identity(rank: int) -> dict[str, object]:
    return {
        "argument": rank,
        "world_size": xr.world_size(),
        "global_ordinal": xr.global_ordinal(),
        "local_ordinal": xr.local_ordinal(),
        "process_count": xr.process_count(),
        "process_index": xr.process_index(),
        "global_device_count": xr.global_device_count(),
        "global_runtime_device_count": xr.global_runtime_device_count(),
        "local_device_count": xr.local_device_count(),
        "addressable_device_count": xr.addressable_device_count(),
        "local_process_count": xr.local_process_count(),
        "host_index": xr.host_index(),
        "device": str(torch_xla.device()),
        "real_devices": xm.xla_real_devices(),
        "hardware": xm.xla_device_hw(torch_xla.device()),
        "is_master": xm.is_master_ordinal(local=False),
        "pid": os.getpid(),
    }


def told(rank: int) -> dict[str, object]:
    device = torch_xla.device()
    return {
        "device_type": xr.device_type(),
        "PJRT_DEVICE": os.environ["PJRT_DEVICE"],
        "hardware": xm.xla_device_hw(device),
        "real_devices": torch_xla.real_devices(),
        "all_devices": torch_xla._XLAC._xla_get_all_devices(),
        "kind": xm.xla_device_kind(),
        "attributes": xr.runtime_device_attributes(str(device)),
        "version": tpu.version(),
        "type": tpu.get_tpu_type(),
        "chips": tpu.num_available_chips(),
        "devices": tpu.num_available_devices(),
        "expected": tpu.num_expected_global_devices(),
        "processes": tpu.num_local_processes(),
        "task": tpu.task_id(),
        "worker": tpu.worker_id(),
        "workers": tpu.get_worker_ips(),
        "master": xr.get_master_ip(),
        "host": xr.host_index(),
        "simulated": xla_nb.simulated(),
        "sum": float(xm.all_reduce("sum", torch.ones(1, device=device))),
    }


def told_of_a_cpu(rank: int) -> tuple[object, ...]:
    return (
        xr.device_type(),
        xm.xla_device_hw(torch_xla.device()),
        torch_xla.real_devices(),
        xla_nb.simulated(),
        os.environ["LOCAL_RANK"],
        os.environ["LOCAL_WORLD_SIZE"],
    )


def variables(rank: int) -> dict[str, str]:
    return {name: os.environ[name] for name in ast.literal_eval(os.environ["SHOW"])}


def evaluated(rank: int) -> list[object]:
    return [eval(question) for question in ast.literal_eval(os.environ["SHOW"])]


def reasons_for_refusals(rank: int) -> list[str]:
    return sorted({reason for reason, _ in refusals.REFUSED.values()})


def told_a_child(rank: int) -> str:
    command = [sys.executable, "-c", "import os; print(os.environ['PJRT_DEVICE'])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def autocast(rank: int) -> str:
    device = torch_xla.device()
    layer = nn.Linear(4, 4).to(device)
    with torch_xla.amp.autocast(device):
        return str(layer(torch.ones(2, 4, device=device)).dtype)


def accelerated(rank: int) -> tuple[object, ...]:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    accelerator.print("printed by one rank")
    model = nn.Linear(4, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with accelerator.autocast():
        output = model(torch.ones(2, 4, device=accelerator.device) * (rank + 1))
    accelerator.backward(output.float().square().mean())
    optimizer.step()
    weights = [value.tolist() for value in accelerator.unwrap_model(model).state_dict().values()]
    return accelerator.local_process_index, accelerator.num_processes, weights


def unknown_metadata(rank: int) -> str:
    try:
        return str(tpu._get_metadata("agent-worker-number"))
    except tpu.requests.HTTPError as problem:
        return str(problem)


def asks_for_memory(rank: int) -> object:
    return xm.get_memory_info(torch_xla.device())


def asks_for_kernel(rank: int) -> object:
    rows = torch.randn(1, 2, 128, 64).to("xla")
    return flash_attention(rows, rows, rows)


def sum_of_ones(rank: int) -> float:
    return float(xm.all_reduce("sum", torch.ones(1, device="xla")))


def process_id(rank: int) -> int:
    return os.getpid()


# --- collectives


def every_check(rank: int) -> dict[str, str]:
    """Run the checks named in CHECKS in order; return the error of each, or an empty string."""
    found = {}
    for name in json.loads(os.environ["CHECKS"]):
        found[name] = ""
        try:
            globals()[name](rank)
        except Exception:
            found[name] = traceback.format_exc()
        if dist.is_initialized():
            dist.destroy_process_group()
    return found


def check_all_reduce_supports_every_operation(rank: int) -> None:
    for kind in FOLDS:
        reduces(kind, torch.float32)
        reduces(kind, torch.bool)


def check_all_reduce_sums_every_dtype(rank: int) -> None:
    for dtype in DTYPES:
        reduces("sum", dtype)


def check_all_reduce_supports_every_operation_on_every_dtype(rank: int) -> None:
    for dtype in DTYPES:
        for kind in FOLDS:
            reduces(kind, dtype)


def reduces(kind: str, dtype: torch.dtype) -> None:
    rows = everyones(3, 5, dtype=dtype)
    if dtype == torch.bool:
        expected = rows.any(0) if kind in ("sum", "max") else rows.all(0)
    else:
        expected = FOLDS[kind](rows)
    same(xm.all_reduce(kind, mine(3, 5, dtype=dtype)), expected, rtol=0, atol=0)


def check_all_reduce_and_or_reject_floats(rank: int) -> None:
    for dtype in (torch.bool, torch.int32, torch.uint8):
        a, b, c, d = everyones(9, dtype=dtype).unbind()
        same(xm.all_reduce("and", mine(9, dtype=dtype)), a & b & c & d)
        same(xm.all_reduce("or", mine(9, dtype=dtype)), a | b | c | d)
    try:
        xm.all_reduce("and", mine(9))
    except RuntimeError as error:
        assert "integer" in str(error)
    else:
        raise AssertionError("xm.REDUCE_AND of floats is an error in XLA")


def check_all_reduce_supports_large_values_scales_and_groups(rank: int) -> None:
    for shape in ((7,), MIDDLE, LARGE):
        same(xm.all_reduce("sum", mine(*shape)), everyones(*shape).sum(0), rtol=0, atol=0)
        scaled = xm.all_reduce("sum", mine(*shape), scale=0.25)
        same(scaled, everyones(*shape).sum(0) * 0.25)
        grouped = xm.all_reduce("max", mine(*shape), groups=HALVES)
        same(grouped, everyones(*shape, ranks=half(rank)).amax(0))
    same(
        xm.all_reduce("sum", mine(*LARGE, dtype=torch.bfloat16)),
        everyones(*LARGE, dtype=torch.bfloat16).sum(0),
    )


def check_all_reduce_of_a_list_works_in_place(rank: int) -> None:
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((3,), torch.float32),
        ((2, 2), torch.bfloat16),
        (MIDDLE, torch.float32),
        ((), torch.float32),
        ((4,), torch.int64),
        ((0,), torch.float32),
    ]
    values = [mine(*shape, dtype=dtype) for shape, dtype in shapes]
    view = values[0][1:]
    version = values[0]._version
    assert xm.all_reduce("sum", values) is values
    for value, (shape, dtype) in zip(values, shapes, strict=True):
        same(value, everyones(*shape, dtype=dtype).sum(0, dtype=dtype), rtol=0, atol=0)
    same(view, everyones(3).sum(0)[1:])
    assert values[0]._version == version


def check_all_reduce_runs_pending_work_and_keeps_its_input(rank: int) -> None:
    value = mine(4) * 2 + 1
    reduced = xm.all_reduce("sum", value)
    same(value, tensor(rank, 4) * 2 + 1)
    same(reduced + 1, (everyones(4) * 2 + 1).sum(0) + 1)
    assert not reduced.requires_grad


def check_all_gather_concatenates_in_rank_order(rank: int) -> None:
    for shape in ((2, 3, 4), (4, 60, 50)):
        for dim in (0, 1, -1):
            for pin in (True, False):
                gathered = xm.all_gather(mine(*shape), dim=dim, pin_layout=pin)
                same(gathered, torch.cat(everyones(*shape).unbind(), dim))
                gathered = xm.all_gather(mine(*shape), dim=dim, pin_layout=pin, groups=HALVES)
                same(gathered, torch.cat(everyones(*shape, ranks=half(rank)).unbind(), dim))
    for dtype in DTYPES:
        expected = everyones(6, dtype=dtype).flatten()
        same(xm.all_gather(mine(6, dtype=dtype)), expected)
        same(xm.all_gather(mine(6, dtype=dtype), pin_layout=False), expected)


def check_all_gather_fills_given_outputs(rank: int) -> None:
    output = torch.zeros(8, 3, device="xla")
    assert xm.all_gather(mine(2, 3), output=output, pin_layout=False) is output
    same(output, everyones(2, 3).flatten(0, 1))
    values = [mine(2, seed=1), mine(3, 3, seed=2, dtype=torch.int32)]
    wanted = [
        everyones(2, seed=1).flatten(),
        everyones(3, 3, seed=2, dtype=torch.int32).flatten(0, 1),
    ]
    for results in (
        xm.all_gather(values, pin_layout=False),
        xm.all_gather_bucketized(values),
        xm.all_gather_bucketized(values, bucket_cap_mb=0),
        xm.all_gather(
            values,
            output=[torch.zeros_like(each, device="xla") for each in wanted],
            pin_layout=False,
        ),
    ):
        for result, expected in zip(results, wanted, strict=True):
            same(result, expected)


def check_reduce_scatter_gives_each_rank_its_chunk(rank: int) -> None:
    for shape, dim in (((8, 3), 0), ((3, 8), 1), ((200, 300), 0), ((200, 300), 1)):
        whole = everyones(*shape).sum(0) * 0.5
        result = xm.reduce_scatter("sum", mine(*shape), scale=0.5, scatter_dim=dim, shard_count=4)
        same(result, whole.chunk(4, dim)[rank])
        output = torch.zeros_like(result)
        xm.reduce_scatter(
            "sum", mine(*shape), scale=0.5, scatter_dim=dim, shard_count=4, output=output
        )
        same(output, whole.chunk(4, dim)[rank])
        grouped = xm.reduce_scatter(
            "max", mine(*shape), scale=1.0, scatter_dim=dim, shard_count=2, groups=HALVES
        )
        whole = everyones(*shape, ranks=half(rank)).amax(0)
        same(grouped, whole.chunk(2, dim)[rank // 2])


def check_reduce_scatter_accepts_lists(rank: int) -> None:
    values = [mine(8, 2, seed=1), mine(4, seed=2, dtype=torch.bfloat16), mine(12, seed=3)]
    wanted = [
        everyones(8, 2, seed=1).sum(0).chunk(4)[rank],
        everyones(4, seed=2, dtype=torch.bfloat16).sum(0).chunk(4)[rank],
        everyones(12, seed=3).sum(0).chunk(4)[rank],
    ]
    outputs = [torch.zeros_like(each, device="xla") for each in wanted]
    plain = {"scale": 1.0, "scatter_dim": 0, "shard_count": 4}
    for results in (
        xm.reduce_scatter("sum", values, pin_layout=False, **plain),
        xm.reduce_scatter("sum", values, output=outputs, pin_layout=False, **plain),
        xm.reduce_scatter_bucketized("sum", values, **plain),
        xm.reduce_scatter_bucketized("sum", values, bucket_cap_mb=0, **plain),
    ):
        for result, expected in zip(results, wanted, strict=True):
            same(result, expected, rtol=0, atol=0)


def check_outputs_are_resized_to_the_result(rank: int) -> None:
    plain: dict[str, Any] = {"scale": 1.0, "scatter_dim": 0, "shard_count": 4, "pin_layout": False}
    scattered = everyones(8, 2).sum(0).chunk(4)[rank]
    gathered = everyones(2, 3).flatten(0, 1)
    for shape in ((2, 2), (4,), (3, 5), (0,)):
        one, two, three = (torch.zeros(*shape, device="xla") for _ in range(3))
        xm.reduce_scatter("sum", mine(8, 2), output=one, **plain)
        xm.reduce_scatter("sum", [mine(8, 2)], output=[two], **plain)
        xm.all_gather(mine(2, 3), output=three, pin_layout=False)
        for output, expected in ((one, scattered), (two, scattered), (three, gathered)):
            same(output, expected)
            same(output + 1, expected + 1)


def check_in_place_collectives_on_views_leave_the_base_unchanged(rank: int) -> None:
    base = torch.zeros(8, 2, device="xla")
    part = base[2:6]
    part += mine(4, 2)
    torch_xla.sync()
    xm.all_reduce("sum", [part])  # torch_xla's in-place collectives do not change the base
    same(part, everyones(4, 2).sum(0))
    same(base[2:6], tensor(rank, 4, 2))
    doubled = torch.zeros(2, dtype=torch.float64, device="xla")
    xm.reduce_scatter("sum", mine(8), 1.0, 0, 4, output=doubled)
    assert doubled.dtype == torch.float64
    same(doubled, everyones(8).sum(0).chunk(4)[rank].double())


#: Ways to pass a tensor, or part of one, to an in-place collective.
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "the tensor": lambda base: base,
    "its data": lambda base: base.data,
    "detached": lambda base: base.detach(),
    "a row": lambda base: base[1],
    "a row's data": lambda base: base[1].data,
    "a detached row": lambda base: base[1].detach(),
    "a row of its data": lambda base: base.data[1],
    "columns": lambda base: base[:, 1:],
    "transposed": lambda base: base.t(),
    "transposed data": lambda base: base.t().data,
    "flat": lambda base: base.view(-1),
    "flat, detached": lambda base: base.view(-1).detach(),
    "one number": lambda base: base[0, 1],
}


#: The ways that cover all of the tensor's memory.
WHOLE = {"the tensor", "its data", "detached", "transposed data", "flat, detached"}


def check_in_place_collectives_update_the_same_tensors_as_torch_xla(rank: int) -> None:
    """Tensors, earlier views and later writes end up as with torch_xla's own collectives."""
    own = XLACS["_xla_all_reduce_inplace"]  # within this process; all ranks have equal values

    def seen(reduce: Callable[[Tensor], object], part: Callable[[Tensor], Tensor]) -> list[Any]:
        base = torch.arange(6.0).view(2, 3).to("xla")
        view, written, given = base[0], base[0, 1:], part(base)
        written += 1  # as DistributedDataParallel writes gradients into views of a bucket
        torch_xla.sync()
        reduce(given)
        each = given, base, view, written
        found: list[Any] = [(one * 1).tolist() for one in each]
        found += [one._version for one in each]
        given += 1
        found += [one.tolist() for one in each]
        base *= 2
        return [*found, *(one.tolist() for one in each)]

    for name, part in PARTS.items():
        expected = seen(lambda given: own("sum", [given], 4.0, [], True), part)
        found = seen(lambda given: xm.all_reduce("sum", [given]), part)
        if name in WHOLE:  # earlier views are updated too, as DistributedDataParallel needs
            assert found[0] == expected[0], name
            assert found[4:8] == expected[4:8], name  # versions
        else:
            assert found == expected, name


def check_all_to_all_exchanges_chunks(rank: int) -> None:
    for shape, split, concat in (
        ((8, 3), 0, 0),
        ((2, 8), 1, 0),
        ((400, 60), 0, 1),
        ((800, 120), 0, 1),
    ):
        result = xm.all_to_all(mine(*shape), split, concat, 4)
        pieces = [tensor(other, *shape).chunk(4, split)[rank] for other in range(4)]
        same(result, torch.cat(pieces, concat))
        result = xm.all_to_all(mine(*shape), split, concat, 2, groups=HALVES)
        pieces = [tensor(other, *shape).chunk(2, split)[rank // 2] for other in half(rank)]
        same(result, torch.cat(pieces, concat))


def check_collective_permute_moves_values_between_pairs(rank: int) -> None:
    for shape in ((3,), MIDDLE, LARGE):
        ring = [[source, (source + 1) % 4] for source in range(4)]
        same(xm.collective_permute(mine(*shape), ring), tensor((rank - 1) % 4, *shape))
        some = xm.collective_permute(mine(*shape), [[0, 3], [1, 1]])
        sources = {3: 0, 1: 1}
        expected = tensor(sources[rank], *shape) if rank in sources else torch.zeros(shape)
        same(some, expected)


def complaint(call: Callable[[], object]) -> str:
    """The message of the error that the call raises on every rank."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as problem:
        return str(problem)
    raise AssertionError("answered")


def check_invalid_groups_are_refused(rank: int) -> None:
    for groups, reason in (
        (((0, 1), (2, 3)), "must be a list"),
        ([[0, 1], [1, 2, 3]], "rank 1 appears 2 times"),
        ([[0, 0], [1, 2, 3]], "rank 0 appears 2 times"),
        ([[0, 1, 2, 3], []], "an empty group"),
        ([[0, 1, 2, 3, 4]], "rank 4 is out of range for 4"),
        ([[0.0, 1.0], [2.0, 3.0]], "cannot be interpreted as an integer"),
    ):
        calls: list[Callable[[Any], object]] = [
            lambda groups: xm.all_reduce("sum", mine(4), groups=groups),
            lambda groups: xm.all_reduce("sum", [mine(4)], groups=groups),
            lambda groups: xm.all_gather(mine(4), groups=groups),
            lambda groups: xm.reduce_scatter("sum", mine(4), 1.0, 0, 2, groups=groups),
            lambda groups: xm.all_to_all(mine(4), 0, 0, 2, groups=groups),
        ]
        for call in calls:
            assert reason in complaint(functools.partial(call, groups)), groups
    assert "must be a list" in complaint(lambda: xm.collective_permute(mine(4), ((0, 1), (1, 0))))
    assert "at least one tensor" in complaint(lambda: xm.all_reduce("sum", []))
    assert "at least one tensor" in complaint(lambda: xm.all_reduce("sum", iter([mine(4)])))
    same(xm.all_reduce("sum", mine(4)), everyones(4).sum(0))


def check_collectives_accept_values_still_on_the_host(rank: int) -> None:
    """XLA lacks torch.complex and geometric_; torch computes them and uploads the result later."""
    rows = torch.complex(everyones(4), everyones(4, seed=1))
    same(xm.all_reduce("sum", torch.complex(mine(4), mine(4, seed=1))), rows.sum(0))
    value = torch.complex(mine(4), mine(4, seed=1))
    xm.all_reduce("sum", [value])
    same(value, rows.sum(0))
    drawn = torch.ones(4).to("xla").geometric_(0.5)
    gathered = xm.all_gather(drawn, pin_layout=False)
    same(gathered.view(4, 4)[rank], drawn.cpu())


def check_groups_may_differ_in_size(rank: int) -> None:
    for shape in ((3,), MIDDLE, LARGE):
        reduced = xm.all_reduce("sum", mine(*shape), groups=[[0], [1, 2, 3]])
        same(reduced, everyones(*shape, ranks=[1, 2, 3] if rank else [0]).sum(0))
    same(xm.all_reduce("sum", mine(4)), everyones(4).sum(0))


def check_negative_and_out_of_range_dimensions_are_refused(rank: int) -> None:
    calls: list[Callable[[int], object]] = [
        lambda dim: xm.reduce_scatter("sum", mine(4, 4), 1.0, dim, 4),
        lambda dim: xm.reduce_scatter("sum", [mine(4, 4)], 1.0, dim, 4, pin_layout=False),
        lambda dim: xm.all_to_all(mine(4, 4), dim, 0, 4),
        lambda dim: xm.all_to_all(mine(4, 4), 0, dim, 4),
    ]
    for dim in (-1, -2, 2):
        for call in calls:
            expected = f"f32[4,4] has no dimension {dim}. XLA counts dimensions from 0."
            assert expected in complaint(functools.partial(call, dim))
    assert "no dimension -1" in complaint(lambda: xm.all_gather(mine(2, 2), -3, pin_layout=False))


def check_results_require_gradients_exactly_as_in_torch_xla(rank: int) -> None:
    own, token = XLACS, XLACS["_get_all_reduce_token"]("xla:0")
    value = mine(4).requires_grad_()
    ring = [[source, (source + 1) % 4] for source in range(4)]
    for result, expected in (
        (
            xm.all_reduce("sum", value, scale=0.5),
            own["_xla_all_reduce"]("sum", value, 1.0, [], True),
        ),
        (xm.all_gather(value, groups=HALVES), own["_xla_all_reduce"]("sum", value, 1.0, [], True)),
        (
            xm.all_gather(value, pin_layout=False),
            own["_xla_all_gather"](value, 0, 1, [], False, None, None),
        ),
        (
            xm.reduce_scatter("sum", value, 1.0, 0, 4),
            own["_xla_reduce_scatter"]("sum", value, token, 1.0, 0, 1, [], True, None, None)[0],
        ),
        (xm.all_to_all(value, 0, 0, 4), own["_xla_all_to_all"](value, token, 0, 0, 1, [], True)[0]),
        (
            xm.collective_permute(value, ring),
            own["_xla_collective_permute"](value, token, [[0, 0]])[0],
        ),
    ):
        assert (result.requires_grad, result.is_leaf) == (expected.requires_grad, expected.is_leaf)
    gathered = xm.all_gather(value)
    same(gathered.detach(), everyones(4).flatten())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gathered.sum().backward()  # torch warns and computes no gradient
    assert value.grad is None
    assert "_c10d_functional::all_reduce: an autograd kernel was not" in str(told[0].message)
    some = value if rank else value.detach()  # ranks agree whether or not they need a gradient
    same(xm.all_gather(some).detach(), everyones(4).flatten())


def check_float8_values_can_be_moved(rank: int) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        rows = [tensor(other, 4).to(dtype).float() for other in range(4)]
        value = mine(4).to(dtype)
        same(xm.all_gather(value, pin_layout=False).float(), torch.cat(rows))
        turned = xm.collective_permute(value, [[0, 1], [1, 2], [2, 3], [3, 0]])
        same(turned.float(), rows[(rank - 1) % 4])
        exchanged = xm.all_to_all(value, 0, 0, 4)
        same(exchanged.float(), torch.stack(rows)[:, rank])


def check_rendezvous_in_a_full_graph_is_refused(rank: int) -> None:
    meet = torch_xla.compile(lambda value: xm.rendezvous("end"), full_graph=True)
    assert "full_graph=True" in complaint(lambda: meet(mine(4)))
    assert len(xm.rendezvous("end")) == 4


def check_collectives_inside_scan_are_refused(rank: int) -> None:
    start, rows = torch.zeros(2, device="xla"), mine(3, 2)

    def reduced(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return xm.all_reduce("sum", carry + row), carry * row

    message = complaint(lambda: scan(reduced, start, rows))
    assert "does not support a collective in torch_xla's scan" in message
    summed, _ = scan(lambda carry, row: (carry + row, carry * row), start, rows)
    same(xm.all_reduce("sum", summed), everyones(3, 2).sum((0, 1)))


def check_broadcast_copies_the_roots_values(rank: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        values = [mine(5, dtype=dtype), mine(2, 2, dtype=dtype, seed=1)]
        xm.collective_broadcast(values, root_ordinal=2)
        same(values[0], tensor(2, 5, dtype=dtype))
        same(values[1], tensor(2, 2, 2, dtype=dtype, seed=1))
    torch.manual_seed(rank)
    model = nn.Linear(4, 3).to("xla")
    xm.broadcast_master_param(model)
    torch.manual_seed(0)
    same(model.weight.detach(), nn.Linear(4, 3).weight.detach())


def check_rendezvous_exchanges_payloads(rank: int) -> None:
    assert xm.rendezvous("plain") == [b""] * 4
    assert xm.rendezvous("named", f"rank {rank}".encode()) == [
        f"rank {other}".encode() for other in range(4)
    ]
    large = [bytes([other]) * (other * 300_000) for other in range(4)]
    assert xm.xla_rendezvous(large[rank]) == large
    assert xm.rendezvous("all", b"x", [0, 1, 2, 3]) == [b"x"] * 4
    assert xm.mesh_reduce("mean", float(rank), lambda values: sum(values) / 4) == 1.5
    summed = xm.mesh_reduce("sum", mine(3), lambda values: torch.stack(values).sum(0))
    torch.testing.assert_close(summed, everyones(3).sum(0))
    result = xm.do_on_ordinals(lambda value: value.sum().item(), (mine(3),), ordinals=[1])
    assert result == (tensor(1, 3).sum().item() if rank == 1 else None)


def check_all_reduce_handles_values_of_many_chunks(rank: int) -> None:
    ragged = 2_500_003  # 10 MB: three chunks of shared memory, the last one short
    both = [mine(ragged), mine(999_983, dtype=torch.int32), mine(ragged, seed=1)]
    wanted = [
        everyones(ragged).sum(0),
        everyones(999_983, dtype=torch.int32).sum(0, dtype=torch.int32),
        everyones(ragged, seed=1).sum(0),
    ]
    for result, expected in zip(xm.all_reduce("sum", both), wanted, strict=True):
        same(result, expected)
    same(xm.all_reduce("sum", mine(3)), everyones(3).sum(0))


def check_every_collective_handles_values_of_many_chunks(rank: int) -> None:
    ragged, rows = 2_500_003, 2_500_004
    first, second = (xm.all_reduce("max", mine(ragged, seed=seed)) for seed in (2, 3))
    same(first, everyones(ragged, seed=2).amax(0))
    same(second, everyones(ragged, seed=3).amax(0))
    grouped = xm.all_reduce("sum", mine(ragged), groups=HALVES)
    same(grouped, everyones(ragged, ranks=half(rank)).sum(0))
    same(xm.all_gather(mine(ragged)), everyones(ragged).flatten())
    scattered = xm.reduce_scatter("sum", mine(rows), scale=1.0, scatter_dim=0, shard_count=4)
    same(scattered, everyones(rows).sum(0).chunk(4)[rank])
    exchanged = xm.all_to_all(mine(4, rows // 4), 0, 1, 4)
    same(exchanged, everyones(4, rows // 4)[:, rank].reshape(1, -1))
    for pairs in ([[0, 3], [1, 1], [3, 2]], [[rank, rank] for rank in range(4)], [[2, 0]]):
        source = {target: origin for origin, target in pairs}.get(rank)
        expected = torch.zeros(ragged) if source is None else tensor(source, ragged)
        same(xm.collective_permute(mine(ragged), pairs), expected)
    same(xm.all_reduce("sum", mine(3)), everyones(3).sum(0))


def check_differentiable_collectives_propagate_gradients(rank: int) -> None:
    value = mine(3).requires_grad_()
    weight = torch.arange(3.0).to("xla")
    (xf.all_reduce("sum", value, scale=0.5) * weight).sum().backward()
    same(value.grad, torch.arange(3.0) * 0.5)
    value = mine(2, 3).requires_grad_()
    gathered = xf.all_gather(value, dim=0)
    same(gathered.detach(), everyones(2, 3).flatten(0, 1))
    factors = torch.arange(24.0).view(8, 3)
    (gathered * factors.to("xla")).sum().backward()
    same(value.grad, factors[2 * rank : 2 * rank + 2])
    weight, inputs = mine(5, 2), mine(8, 3, seed=1)
    full = torch.cat([tensor(other, 5, 2) for other in range(4)], 1)
    same(xf.distributed_mm(weight, inputs), full @ tensor(rank, 8, 3, seed=1))


# --- training


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    return tensor(rank, 8, 6, seed=10 + step), tensor(rank, 8, 2, seed=50 + step)


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def reference_training(steps: int, optimizer: type[torch.optim.Optimizer], lr: float) -> nn.Module:
    model, ranks = net(), xr.world_size()
    chosen = optimizer(model.parameters(), lr=lr)  # type: ignore[call-arg]
    for step in range(steps):
        chosen.zero_grad()
        for rank in range(ranks):
            inputs, wanted = batch(rank, step)
            (nn.functional.mse_loss(model(inputs), wanted) / ranks).backward()
        chosen.step()
    return model


def equal_parameters(model: nn.Module, reference: nn.Module) -> None:
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        same(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-5)


def check_training_with_optimizer_step(rank: int) -> None:
    for bucket in ("0", "1"):
        os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = bucket
        model = net().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            inputs, wanted = (each.to("xla") for each in batch(rank, step))
            nn.functional.mse_loss(model(inputs), wanted).backward()
            xm.optimizer_step(optimizer, barrier=True)
        equal_parameters(model, reference_training(5, torch.optim.SGD, 0.1))


def train_in_a_full_graph(model: nn.Module, rank: int, steps: int) -> None:
    """Run SGD steps, each compiled as one graph; the model averages its own gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inputs: Tensor, wanted: Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()

    compiled = torch_xla.compile(step, full_graph=True)
    for number in range(steps):
        compiled(*(each.to("xla") for each in batch(rank, number)))


def check_training_in_a_full_graph(rank: int) -> None:
    model = net().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inputs: Tensor, wanted: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        xm.optimizer_step(optimizer)
        return loss

    compiled = torch_xla.compile(step, full_graph=True)
    for number in range(5):
        compiled(*(each.to("xla") for each in batch(rank, number)))
    equal_parameters(model, reference_training(5, torch.optim.SGD, 0.1))

    def reads(value: Tensor) -> float:
        return xm.all_reduce("sum", value).sum().item()

    try:
        torch_xla.compile(reads, full_graph=True)(mine(3))
    except RuntimeError as error:
        assert "Unexpected execution" in str(error)
    else:
        assert rank != 0  # torch_xla raises only in a host's first process


def check_training_with_ddp_in_a_full_graph(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    model = nn.parallel.DistributedDataParallel(net().to("xla"), gradient_as_bucket_view=True)
    train_in_a_full_graph(model, rank, 5)
    equal_parameters(model, reference_training(5, torch.optim.SGD, 0.1))


def check_training_with_fsdp_in_a_full_graph(rank: int) -> None:
    model = XlaFullyShardedDataParallel(net().to("xla"))
    train_in_a_full_graph(model, rank, 4)
    expected = reference_training(4, torch.optim.SGD, 0.1)
    inputs = tensor(0, 5, 6, seed=99)
    outputs = model(inputs.to("xla")).detach()
    same(outputs, expected(inputs).detach(), rtol=1e-4, atol=1e-5)


def check_training_with_a_device_loader(rank: int) -> None:
    data = [batch(rank, step) for step in range(5)]
    model = net().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    steps = 0
    for inputs, wanted in pl.MpDeviceLoader(loader, torch_xla.device()):
        assert inputs.device.type == "xla"
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        xm.optimizer_step(optimizer)
        steps += 1
    assert steps == 5
    equal_parameters(model, reference_training(5, torch.optim.SGD, 0.1))


def check_training_with_ddp(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    model = nn.parallel.DistributedDataParallel(net().to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        inputs, wanted = (each.to("xla") for each in batch(rank, step))
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        torch_xla.sync()
    equal_parameters(model, reference_training(5, torch.optim.SGD, 0.1))


def check_ddp_accumulates_gradients_under_no_sync(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    reference = net()
    model = nn.parallel.DistributedDataParallel(net().to("xla"), gradient_as_bucket_view=True)
    for each, parts in ((reference, range(4)), (model, [rank])):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for step in (0, 2):
            optimizer.zero_grad()
            with model.no_sync() if each is model else contextlib.nullcontext():
                accumulate(each, parts, step)
            accumulate(each, parts, step + 1)
            optimizer.step()
    equal_parameters(model.module, reference)


def accumulate(model: nn.Module, parts: Sequence[int], step: int) -> None:
    """Add the gradient of the mean loss over these ranks' batches to existing gradients."""
    device = next(model.parameters()).device
    pairs = [batch(part, step) for part in parts]
    inputs, wanted = (torch.cat(each).to(device) for each in zip(*pairs, strict=True))
    nn.functional.mse_loss(model(inputs), wanted).backward()


def check_training_with_fsdp(rank: int) -> None:
    inner = net().to("xla")
    inner[0] = XlaFullyShardedDataParallel(inner[0])
    model = XlaFullyShardedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        inputs, wanted = (each.to("xla") for each in batch(rank, step))
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        torch_xla.sync()
    expected = reference_training(4, torch.optim.SGD, 0.1)
    inputs = tensor(0, 5, 6, seed=99)
    outputs = model(inputs.to("xla")).detach()
    same(outputs, expected(inputs).detach(), rtol=1e-4, atol=1e-5)


def check_training_with_zero_redundancy(rank: int) -> None:
    model = net().to("xla")
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, lr=0.01, pin_layout=False, grad_clipping=False
    )
    for step in range(4):
        optimizer.zero_grad()
        inputs, wanted = (each.to("xla") for each in batch(rank, step))
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
        torch_xla.sync()
    equal_parameters(model, reference_training(4, torch.optim.Adam, 0.01))


def check_sync_batch_norm(rank: int) -> None:
    ours = xf.SyncBatchNorm(3).to("xla")
    theirs = nn.BatchNorm1d(3)
    ranks = range(xr.world_size())
    whole = everyones(6, 3, ranks=ranks).flatten(0, 1).requires_grad_()
    value = mine(6, 3).requires_grad_()
    factors = everyones(6, 3, ranks=ranks, seed=4)
    result = ours(value)
    expected = theirs(whole)
    same(result.detach(), expected.detach()[6 * rank : 6 * rank + 6], rtol=1e-4, atol=1e-5)
    (result * factors[rank].to("xla")).sum().backward()
    (expected * factors.flatten(0, 1)).sum().backward()
    assert whole.grad is not None
    same(value.grad, whole.grad[6 * rank : 6 * rank + 6], rtol=1e-4, atol=1e-4)


# --- torch.distributed


def check_process_group_runs_collectives(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 4)
    value = mine(4)
    dist.all_reduce(value)
    same(value, everyones(4).sum(0))
    value = mine(4)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    same(value, everyones(4).amax(0))
    parts = [torch.zeros(4, device="xla") for _ in range(4)]
    dist.all_gather(parts, mine(4))
    same(torch.stack(parts), everyones(4))
    whole = torch.zeros(16, device="xla")
    dist.all_gather_into_tensor(whole, mine(4))
    same(whole, everyones(4).flatten())
    value = mine(4)
    dist.broadcast(value, src=3)
    same(value, tensor(3, 4))
    part = torch.zeros(2, device="xla")
    dist.reduce_scatter(part, list(mine(8).chunk(4)))
    same(part, everyones(8).sum(0).chunk(4)[rank])
    dist.reduce_scatter_tensor(part, mine(8))
    same(part, everyones(8).sum(0).chunk(4)[rank])
    expected = [tensor(other, 8).chunk(4)[rank] for other in range(4)]
    if SINCE_2_9:
        parts = [torch.zeros(2, device="xla") for _ in range(4)]
        dist.all_to_all(parts, [each.clone() for each in mine(8).chunk(4)])
        same(torch.stack(parts), torch.stack(expected))
    single = torch.zeros(8, device="xla")
    dist.all_to_all_single(single, mine(8))
    same(single, torch.cat(expected))
    dist.barrier()


def check_in_place_process_group_calls_refuse_complex_tensors(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    in_place = [dist.all_reduce, functools.partial(dist.broadcast, src=1)]
    for call in in_place if SINCE_2_9 else in_place[:1]:  # 2.8 broadcasts the complex tensor itself
        value = torch.complex(mine(4), mine(4, seed=1))
        assert "complex numbers" in complaint(functools.partial(call, value))
    value = torch.complex(mine(4), mine(4, seed=1))
    rows = torch.complex(everyones(4), everyones(4, seed=1))
    same(xm.all_reduce("sum", value), rows.sum(0))
    xm.all_reduce("sum", [value])
    same(value, rows.sum(0))


def check_process_group_runs_collectives_with_a_root(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    if not SINCE_2_9:
        return
    parts = [torch.zeros(3, device="xla") for _ in range(4)] if rank == 1 else None
    dist.gather(mine(3), parts, dst=1)
    if parts is not None:
        same(torch.stack(parts), everyones(3))
    part = torch.zeros(3, device="xla")
    dist.scatter(part, list(mine(4, 3).unbind()) if rank == 2 else None, src=2)
    same(part, tensor(2, 4, 3)[rank])
    value = mine(3)
    dist.reduce(value, dst=1)
    same(value, everyones(3).sum(0) if rank == 1 else tensor(rank, 3))


def check_send_and_recv_move_values(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    for shape in ((3,), MIDDLE, LARGE):
        value = mine(*shape)
        if rank in (0, 3):
            dist.send(value, dst=1 if rank == 0 else 2)
            same(value, tensor(rank, *shape))
        else:
            dist.recv(value, src=0 if rank == 1 else 3)
            same(value, tensor(0 if rank == 1 else 3, *shape))


def check_subgroups_run_independently(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    groups = [dist.new_group(ranks) for ranks in HALVES]
    own = half(rank)
    for _ in range(3 if rank % 2 else 1):  # groups may call different numbers of collectives
        value = mine(4)
        dist.all_reduce(value, group=groups[rank % 2])
        same(value, everyones(4, ranks=own).sum(0))
    if SINCE_2_9:
        value = mine(4)
        dist.broadcast(value, src=own[1], group=groups[rank % 2])
        same(value, tensor(own[1], 4))
    alone = dist.new_group([2])
    if rank == 2:
        value = mine(4)
        dist.all_reduce(value, group=alone)
        same(value, tensor(2, 4))
    value = mine(4)
    dist.all_reduce(value)
    same(value, everyones(4).sum(0))


def check_functional_collectives(rank: int) -> None:
    ops = torch.ops._c10d_functional
    dist.init_process_group("xla", init_method="xla://")
    groups = [dist.new_group(ranks) for ranks in HALVES]
    own, everyone = half(rank), dist.group.WORLD.group_name
    for name, ranks in (("", range(4)), (everyone, range(4)), (groups[rank % 2].group_name, own)):
        size, index = len(ranks), list(ranks).index(rank)
        rows = everyones(8, ranks=ranks)
        done = ops.wait_tensor(ops.all_reduce(mine(8), "sum", name))
        same(done, rows.sum(0))
        same(ops.all_gather_into_tensor(mine(8), size, name), rows.flatten())
        shard = ops.reduce_scatter_tensor(mine(8), "max", size, name)
        same(shard, rows.amax(0).chunk(size)[index])
        splits = [8 // size] * size
        exchanged = ops.all_to_all_single(mine(8), splits, splits, name)
        same(exchanged, torch.cat([row.chunk(size)[index] for row in rows]))
        same(ops.broadcast(mine(8), 1, name), tensor(list(ranks)[1], 8))
        both = ops.all_reduce_coalesced([mine(8), mine(3, seed=1)], "sum", name)
        same(both[1], everyones(3, seed=1, ranks=ranks).sum(0))


# --- calls that torch_xla lacks


def calls_that_torch_xla_lacks(rank: int) -> dict[str, str]:
    dist.init_process_group("xla", init_method="xla://")
    ones, several = torch.ones(2, device="xla"), [None] * dist.get_world_size()
    calls: dict[str, Callable[[], object]] = {
        "AVG": lambda: dist.all_reduce(ones, dist.ReduceOp.AVG),
        "BXOR": lambda: dist.all_reduce(ones, dist.ReduceOp.BXOR),
        "all_gather_object": lambda: dist.all_gather_object(several, rank),
        "gather_object": lambda: dist.gather_object(rank, several if rank == 0 else None),
        "broadcast_object_list": lambda: dist.broadcast_object_list([rank]),
        "scatter_object_list": lambda: dist.scatter_object_list([None], several),
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
        "recv from any": lambda: dist.recv(ones),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([ones]),
    }
    return {name: _how_it_ends(call) for name, call in calls.items()}


def _how_it_ends(call: Callable[[], object]) -> str:
    try:
        return str(call())
    except Exception as error:
        return type(error).__name__


def check_a_subgroup_needs_no_other_ranks(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    group = dist.new_group([1, 3])
    if rank in (1, 3):
        sent, summed = (torch.full((2,), float(rank), device="xla") for _ in range(2))
        dist.broadcast(sent, src=3, group=group)
        dist.all_reduce(summed, group=group)
        # torch_xla 2.8 mistakes the source's index in the group, 1, for its ordinal
        source = 3.0 if SINCE_2_9 else 1.0
        assert (sent.cpu().tolist(), summed.cpu().tolist()) == ([source] * 2, [4.0, 4.0])


def check_batched_sends_and_receives_run_in_order(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")
    other = rank ^ 1
    sent, received = torch.full((2,), float(rank), device="xla"), torch.zeros(2, device="xla")
    batch = [dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(batch if rank < other else batch[::-1]):
        work.wait()
    assert received.cpu().tolist() == [other, other]


def saves_graphs(rank: int) -> None:
    same(mine(3) + 1, tensor(rank, 3) + 1)


# --- torch.compile


def check_compiled_collectives(rank: int) -> None:
    @torch.compile(backend="openxla")
    def step(value: Tensor, weight: Tensor) -> Tensor:
        hidden = torch.tanh(value * 2 + weight)
        summed = xm.all_reduce(xm.REDUCE_SUM, hidden)
        return xm.all_reduce(xm.REDUCE_SUM, summed * weight) + hidden

    for seed in range(4):
        hidden = torch.tanh(everyones(4, seed=seed) * 2 + seed)
        expected = (hidden.sum(0) * seed * torch.ones(4, 1)).sum(0) + hidden[rank]
        weight = torch.full((4,), float(seed)).to("xla")
        same(step(mine(4, seed=seed), weight), expected)


def check_compiled_all_gather_and_functional_collectives(rank: int) -> None:
    ops = torch.ops._c10d_functional

    @torch.compile(backend="openxla")
    def gather(value: Tensor) -> Tensor:
        return xm.all_gather(value + 1) * 2

    @torch.compile(backend="openxla")
    def functional(value: Tensor) -> Tensor:
        shard = ops.wait_tensor(ops.reduce_scatter_tensor(value * 2, "sum", 4, ""))
        return ops.wait_tensor(ops.all_gather_into_tensor(shard, 4, "")) + 1

    for seed in range(3):
        rows = everyones(8, seed=seed)
        same(gather(mine(8, seed=seed)), (rows.flatten() + 1) * 2)
        same(functional(mine(8, seed=seed)), rows.sum(0) * 2 + 1)


def check_compiled_training_step(rank: int) -> None:
    model = net().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="openxla")
    for step in range(4):
        optimizer.zero_grad()
        inputs, wanted = (each.to("xla") for each in batch(rank, step))
        nn.functional.mse_loss(compiled(inputs), wanted).backward()
        xm.optimizer_step(optimizer, barrier=True)
    equal_parameters(model, reference_training(4, torch.optim.SGD, 0.1))


def check_compiled_collective_under_autocast(rank: int) -> None:
    @torch.compile(backend="openxla")
    def step(value: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("xla", dtype=torch.bfloat16):
            return torch.relu(xm.all_reduce("sum", value @ weight)) @ weight

    weight = tensor(9, 4, 4)
    low = weight.bfloat16()
    products = torch.stack([each.bfloat16() @ low for each in everyones(4, 4)])
    expected = torch.relu(products.sum(0, dtype=torch.bfloat16)) @ low
    for _ in range(3):
        same(step(mine(4, 4), weight.to("xla")), expected)


def check_compiled_in_place_update(rank: int) -> None:
    @torch.compile(backend="openxla")
    def step(state: Tensor, value: Tensor) -> Tensor:
        state.add_(xm.all_reduce(xm.REDUCE_SUM, value + 0))
        return state * 2

    state, expected = torch.zeros(4).to("xla"), torch.zeros(4)
    for seed in range(4):
        expected = expected + everyones(4, seed=seed).sum(0)
        same(step(state, mine(4, seed=seed)), expected * 2)
        same(state, expected)


def check_compiled_in_place_collectives(rank: int) -> None:
    dist.init_process_group("xla", init_method="xla://")

    @torch.compile(backend="openxla")
    def alone(value: Tensor) -> None:
        dist.all_reduce(value)

    @torch.compile(backend="openxla")
    def step(value: Tensor, whole: Tensor, part: Tensor) -> Tensor:
        dist.all_reduce(value)
        dist.all_gather_into_tensor(whole, value[:2] * (rank + 1))
        dist.reduce_scatter_tensor(part, whole)
        return value * 2 + part.sum()

    for seed in range(3):
        summed = everyones(4, seed=seed).sum(0)
        value = mine(4, seed=seed)
        alone(value)
        same(value, summed)
        value, whole, part = mine(4, seed=seed), torch.zeros(8).to("xla"), torch.zeros(2).to("xla")
        result = step(value, whole, part)
        pieces = torch.cat([summed[:2] * (other + 1) for other in range(4)])
        same(value, summed)
        same(whole, pieces)
        same(part, pieces.chunk(4)[rank] * 4)
        same(result, summed * 2 + (pieces.chunk(4)[rank] * 4).sum())


def check_compiled_with_dynamic_sizes(rank: int) -> None:
    config: Any = torch._dynamo.config
    config.enable_cpp_symbolic_shape_guards = False  # they are compiled with g++, under a lock

    @torch.compile(backend="openxla", dynamic=True)
    def step(value: Tensor) -> Tensor:
        return xm.all_reduce(xm.REDUCE_SUM, value * value.shape[0]) + 1

    for size in (4, 6):
        same(step(mine(size)), everyones(size).sum(0) * size + 1)


def check_compiled_full_graph_with_a_collective_is_refused(rank: int) -> None:
    @torch.compile(backend="openxla", fullgraph=True)
    def step(value: Tensor) -> Tensor:
        return xm.all_reduce(xm.REDUCE_SUM, value * 2) + 1

    assert "all_reduce" in complaint(lambda: step(mine(4)))


# --- unsupported functions


def refused(rank: int) -> dict[str, str]:
    calls: dict[str, Callable[[], object]] = {
        "_xla_send": lambda: xm.send(mine(2), 1),
        "_xla_recv": lambda: xm.recv(mine(2), 1),
        "use_spmd": xr.use_spmd,
        "_xla_spmd_all_reduce": lambda: torch_xla._XLAC._xla_spmd_all_reduce(
            "sum", mine(2), 1.0, []
        ),
    }
    messages = {}
    for name, call in calls.items():
        try:
            call()
            messages[name] = "answered"
        except NotImplementedError as error:
            messages[name] = str(error)
    return messages


def names_of_xlac(rank: int) -> tuple[list[str], list[str]]:
    """All names of `torch_xla._XLAC`, and the replaced ones."""
    replaced = [
        name
        for name in dir(torch_xla._XLAC)
        if getattr(getattr(torch_xla._XLAC, name), "__module__", "").startswith("xla_nb")
    ]
    return dir(torch_xla._XLAC), replaced


def functional_names(rank: int) -> tuple[list[str], dict[str, str]]:
    """torch's functional collectives without an XLA kernel, and the errors of in-place ones."""
    prefix, has = "_c10d_functional::", torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)]
    without = [name.removeprefix(prefix) for name in names if not has(name, "XLA")]
    ops, messages = torch.ops._c10d_functional, {}
    calls: dict[str, Callable[[], object]] = {
        "all_reduce_": lambda: ops.all_reduce_(mine(4), "sum", ""),
        "all_reduce_coalesced_": lambda: ops.all_reduce_coalesced_([mine(4)], "sum", ""),
        "broadcast_": lambda: ops.broadcast_(mine(4), 0, ""),
        "all_gather_into_tensor_out": lambda: ops.all_gather_into_tensor_out(
            mine(4), 4, "", out=torch.zeros(16, device="xla")
        ),
    }
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            messages[name] = str(error)
    return without, messages


# --- divergence


def mismatch_operation(rank: int) -> None:
    if rank == 1:
        xm.all_gather(mine(4))
    else:
        xm.all_reduce("sum", mine(4))


def mismatch_kind(rank: int) -> None:
    xm.all_reduce("max" if rank == 3 else "sum", mine(4))


def mismatch_scale(rank: int) -> None:
    xm.all_reduce("sum", mine(4), scale=1 / (1_000_002 if rank == 3 else 1_000_001))


def mismatch_shape(rank: int) -> None:
    xm.all_reduce("sum", mine(5 if rank == 2 else 4))


def mismatch_dtype(rank: int) -> None:
    xm.all_reduce("sum", mine(4, dtype=torch.bfloat16 if rank == 0 else torch.float32))


def mismatch_groups(rank: int) -> None:
    groups = [[0, 1], [2, 3]] if rank == 0 else HALVES
    xm.all_reduce("sum", mine(4), groups=groups)


def mismatch_order(rank: int) -> None:
    shapes = (3, 4) if rank else (4, 3)
    for shape in shapes:
        xm.all_reduce("sum", mine(shape))


def mismatch_in_a_long_list(rank: int) -> None:
    sizes = [4] * 400
    if rank == 1:
        sizes[250] = 5
    xm.all_reduce("sum", [mine(size) for size in sizes])


def mismatch_caught(rank: int) -> list[float]:
    for _ in range(3):
        try:
            xm.all_reduce("sum", mine(rank + 1))
        except CollectiveMismatch:
            continue
        raise AssertionError("no mismatch")
    return xm.all_reduce("sum", torch.ones(2).to("xla")).cpu().tolist()


def mismatch_with_a_group(rank: int) -> None:
    """Rank 0 reduces over the group [0, 1], while ranks 1 to 3 reduce over all ranks."""
    dist.init_process_group("xla", init_method="xla://")
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(mine(4), group=group)
    else:
        xm.all_reduce("sum", mine(4))


def mismatch_with_a_group_of_late_ranks(rank: int) -> None:
    """Ranks 1 and 2 reduce over all ranks before rank 0 reduces over its group, rank 3 after it.
    They fail without another message from rank 0."""
    dist.init_process_group("xla", init_method="xla://")
    group = dist.new_group([0, 1])
    if rank == 0:
        until(lambda: files("*.out") == 2)
        Path(os.environ["FOLDER"], "0.out").touch()
        try:
            dist.all_reduce(mine(4), group=group)
        finally:
            until(lambda: files("*.result") == 3)
    elif rank == 3:
        until(lambda: files("*.out") == 3)
    else:
        Path(os.environ["FOLDER"], f"{rank}.out").touch()
    xm.all_reduce("sum", mine(4))


def interrupted_while_it_waits(rank: int) -> list[list[float]]:
    """Interrupt rank 2 in three collectives while it waits for rank 0; it continues with the next
    one each time. Returns the results that the rank received."""
    xm.rendezvous("all there")
    got = []
    for turn in range(6):
        interrupted = rank == 2 and turn % 2 == 0
        value = torch.full((3,), 10.0**turn * (rank + 1)).to("xla")
        torch_xla.sync()
        if interrupted:
            threading.Thread(target=_interrupt, args=(threading.get_ident(),)).start()
        if rank == 0 and turn % 2 == 0:
            until(lambda turn=turn: files(f"interrupted{turn}") == 1)  # type: ignore[misc]
        try:
            got.append(xm.all_reduce("sum", value).cpu().tolist())
        except KeyboardInterrupt:
            assert interrupted
            Path(os.environ["FOLDER"], f"interrupted{turn}").touch()
    return got


def interrupted_in_a_large_one(rank: int) -> list[str]:
    """Interrupt rank 2 while it waits for rank 0, at the first or second meeting of a collective
    that takes several, and call it again. Returns how each of the two calls ended."""
    xm.rendezvous("all there")
    waited = int(os.environ["WAITED"])
    barrier = _Meeting._barrier
    ends = []

    def interrupt() -> None:
        if rank == 2:
            threading.Thread(target=_interrupt, args=(threading.get_ident(),)).start()
        if rank == 0:
            until(lambda: files("interrupted") == 1)

    def interrupted(meeting: _Meeting) -> None:
        interrupt()
        barrier(meeting)

    value = mine(*LARGE)
    torch_xla.sync()
    if waited:
        _Meeting._barrier = interrupted  # type: ignore[method-assign]
    else:
        interrupt()
    for _ in range(2):
        try:
            ends.append(f"{xm.all_reduce('sum', value).cpu().sum().item():.0f}")
        except (KeyboardInterrupt, CollectiveMismatch) as error:
            if isinstance(error, KeyboardInterrupt):
                Path(os.environ["FOLDER"], "interrupted").touch()
            ends.append(f"{type(error).__name__} {error}".partition(" f32")[0])
    return ends


def _interrupt(thread: int) -> None:
    """Interrupt a thread that waits for rank 0, as stopping a run does."""
    until(lambda: (wait := this_rank.waiting()) is not None and 0 in wait.missing)
    interrupt = ctypes.py_object(KeyboardInterrupt)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), interrupt) == 1


def mismatch_in_a_cell(rank: int) -> None:
    source = "def reduce(value, xm):\n    return xm.all_reduce('sum', value)\n"
    linecache.cache["Cell In[5]"] = (len(source), None, source.splitlines(True), "Cell In[5]")
    names: dict[str, Any] = {}
    exec(compile(source, "Cell In[5]", "exec"), names)
    names["reduce"](mine(4 if rank else 2), xm)


def mismatch_in_backward(rank: int) -> None:
    value = mine(4 if rank else 2).requires_grad_()
    doubled = value * 2
    doubled.register_hook(functools.partial(xm.all_reduce, "sum"))
    doubled.sum().backward()


def returns_early(rank: int) -> None:
    xm.all_reduce("sum", mine(4))
    if rank != 2:
        xm.all_reduce("sum", mine(4))


def returns_before_any(rank: int) -> None:
    if rank != 0:
        xm.all_reduce("sum", mine(4))


def calls_one_more(rank: int) -> list[int]:
    """Rank 1 calls a collective after all other ranks have returned."""
    if rank == 1:
        until(lambda: files("*.result") == 3)
        try:
            xm.all_reduce("sum", mine(4))
        except CollectiveMismatch as error:
            assert "Rank 1 waited in all_reduce" in str(error), error
            assert " for ranks 0, 2, 3, which had returned:" in str(error), error
            return [*error.early]
    return []


def raises_early(rank: int) -> None:
    if rank == 1:
        raise ValueError("bad batch")
    xm.rendezvous("end")


def files(pattern: str) -> int:
    return len(list(Path(os.environ["FOLDER"]).glob(pattern)))


def until(condition: Callable[[], bool]) -> None:
    while not condition():  # the launcher's alarm kills a rank that waits forever
        time.sleep(0.01)


def killed(rank: int) -> str:
    xm.rendezvous("all there")
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        xm.all_reduce("sum", mine(4))
    except RankLost as error:
        return str(error)
    return ""


def killed_inside(rank: int) -> list[str]:
    """Ranks 1 and 3 reach the next step after rank 0 has left the collective, still alive. No ranks
    are in step afterwards."""
    barrier = _Meeting._barrier

    def late(meeting: _Meeting) -> None:
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        until(lambda: rank == 0 or files("0.out") == 1)
        barrier(meeting)

    xm.rendezvous("all there")
    _Meeting._barrier = late  # type: ignore[method-assign]
    found = []
    for _ in range(2):
        try:
            xm.all_reduce("sum", mine(*LARGE))
        except RankLost as error:
            found.append(str(error))
        Path(os.environ["FOLDER"], f"{rank}.out").touch()
    until(lambda: files("*.out") == 3)
    return found


def raises_inside(rank: int) -> str:
    """Rank 2 runs out of memory between two steps of a collective."""
    xm.rendezvous("all there")
    if rank == 2:
        Walk._collect = _lacks_memory  # type: ignore[method-assign]
    try:
        xm.all_reduce("sum", mine(3_000_000))
    except CollectiveMismatch as error:
        return f"{error}, {error.follows}"
    return ""


def raises_between_hosts(rank: int) -> str:
    """Rank 1 runs out of memory for its share; the two hosts have unequal parts of its group."""
    xm.rendezvous("all there")
    if rank == 1:
        Reduction.fold = _lacks_memory  # type: ignore[method-assign, assignment]
    try:
        xm.all_reduce("sum", mine(*LARGE), groups=[[0, 1, 2], [3]])
    except CollectiveMismatch as error:
        return str(error)
    except MemoryError:
        this_rank.leave("raised MemoryError")
        until(lambda: files("0.result") == 1)  # this process must live until others know
    return ""


def _lacks_memory(*_: object) -> None:
    raise MemoryError


def late(rank: int) -> list[Any]:
    """Rank 0 arrives when the other ranks' meters have seen that they wait for it."""
    waits: list[Wait] = []
    watcher = threading.Thread(target=watch, args=(waits,))
    if rank == 0:
        until(lambda: files("waits*") == 3)
    else:
        watcher.start()
    xm.all_reduce("sum", mine(4))
    if rank:
        watcher.join()
    return [*((each.operation, each.missing) for each in waits), this_rank.waiting()]


def watch(waits: list[Wait]) -> None:
    def is_waiting() -> bool:
        current = this_rank.waiting()
        if current is None or current.missing != (0,):
            return False
        waits.append(current)
        return True

    until(is_waiting)
    Path(os.environ["FOLDER"], f"waits{xr.global_ordinal()}").touch()


def two_programs(rank: int) -> list[float]:
    """Two programs in one process: the first fails, the second succeeds."""
    if rank == 1:
        this_rank.leave("raised KeyError")
    else:
        try:
            xm.all_reduce("sum", mine(4))
        except CollectiveMismatch as error:
            this_rank.leave(f"raised {type(error).__name__}")
        else:
            raise AssertionError("rank 1 had left")
    this_rank.begin(1)
    return xm.all_reduce("sum", torch.ones(1).to("xla")).cpu().tolist()


def leaves_while_a_thread_waits(rank: int) -> None:
    if rank == 0:
        threading.Thread(target=xm.rendezvous, args=("never",), daemon=True).start()
        until(lambda: this_rank.waiting() is not None)
        raise KeyError("stop")
    if rank == 1:
        until(lambda: files("0.result") == 1)


def forked_children(rank: int) -> float:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, num_workers=2, batch_size=4)
    total = sum(xm.all_reduce("sum", each.to("xla")).sum().item() for (each,) in loader)
    return float(total)


def collective_in_a_child(rank: int) -> tuple[str, list[bytes]]:
    """The error in a forked child of rank 1, and the result of the ranks' next rendezvous."""
    reading, writing = os.pipe()
    if rank == 1:
        if (child := os.fork()) == 0:
            try:
                xm.rendezvous("of the child")
            except RuntimeError as problem:
                os.write(writing, str(problem).encode())
            os._exit(0)
        os.waitpid(child, 0)
    os.close(writing)
    return os.read(reading, 1000).decode(), xm.rendezvous("of ranks", bytes([rank]))


def many(rank: int) -> tuple[int, int]:
    """The number of open files before and after many collectives."""
    value = mine(4)
    before = len(open_files())
    for _ in range(300):
        xm.all_reduce("sum", value)
    return before, len(open_files())


def nothing(rank: int) -> int:
    return sum(name.startswith("socket:") for name in open_files())


def open_files() -> list[str]:
    names = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the file of the listing itself
            names.append(str(fd.readlink()))
    return names


def processes_and_ports(rank: int) -> list[float]:
    dist.init_process_group("xla", init_method="xla://")
    value = torch.full((2,), float(rank)).to("xla")
    dist.all_reduce(value)
    return value.cpu().tolist()


def between_hosts(rank: int) -> None:
    """Reduce values in shared memory, divided unevenly, over six ranks of several hosts."""
    everyone = [list(range(6))]
    for groups in (everyone, [[0, 1, 3, 4], [2, 5]], [[0, 1, 5], [2, 3, 4]]):
        group = next(each for each in groups if rank in each)
        for dtype in (torch.float32, torch.int64, torch.bool):
            for kind, fold in FOLDS.items():
                if kind == "mul" and dtype != torch.bool:
                    continue  # would overflow
                rows = torch.stack([tensor(other, 100, 101, dtype=dtype) for other in group])
                if dtype == torch.bool:
                    expected = rows.any(0) if kind in ("sum", "max") else rows.all(0)
                else:
                    expected = fold(rows)
                value = mine(100, 101, dtype=dtype)
                result = xm.all_reduce(kind, value, groups=groups).cpu()
                torch.testing.assert_close(result, expected)
                alike = xm.rendezvous("alike", result.numpy().tobytes(), [])
                assert {alike[other] for other in group} == {alike[rank]}
    halved = xm.all_reduce("sum", mine(100, 101), scale=0.5).cpu()
    rows = torch.stack([tensor(other, 100, 101) for other in range(6)])
    torch.testing.assert_close(halved, rows.sum(0) / 2)
    # A host's ranks get unequal shares: some are empty, or a piece shorter.
    for count in (1_048_577, 524_289, 786_433):
        many = xm.all_reduce("sum", torch.full((count,), float(rank)).to("xla")).cpu()
        assert (many == 15.0).all()


def two_hosts(rank: int) -> dict[str, Any]:
    value = xm.all_reduce("sum", torch.full((2,), float(rank)).to("xla"))
    large = xm.all_reduce("sum", torch.full(LARGE, float(rank)).to("xla"))
    dist.init_process_group("xla", init_method="xla://")
    parts = [torch.zeros(1, device="xla") for _ in range(4)]
    dist.all_gather(parts, torch.full((1,), float(rank)).to("xla"))
    return {
        "rank": rank,
        "local": xr.local_ordinal(),
        "host": xr.host_index(),
        "world": xr.world_size(),
        "sum": value.cpu().tolist(),
        "large": large.cpu().max().item(),
        "gathered": [part.item() for part in parts],
    }
