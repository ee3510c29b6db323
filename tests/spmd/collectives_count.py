"""Count the collectives in the programs that a function ran.

They are read from the compiled programs, after partitioning, through a trace of XLA's profiler,
which needs no flag set before the runtime starts.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import xplane

_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)


def collectives(work: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, int]:
    """Run `work(*args, **kwargs)` and count the collectives in the programs compiled for it.

    A column-parallel layer followed by a row-parallel one gives `{"all-reduce": 1}`. Operations
    pending before the call are computed first and not counted; what `work` returns is computed and
    counted.
    """
    programs = _programs(work, args, kwargs)
    assert programs, "the function ran no program on the devices"
    totals: Counter[str] = Counter()
    for program in programs:
        for opcode, count in program.items():
            totals[opcode.removesuffix("-start")] += count
    return {name: totals[name] for name in _COLLECTIVES if totals[name]}


def _programs(
    work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Counter[str]]:
    torch_xla.sync(wait=True)
    _wait_for_every_device()
    with tempfile.TemporaryDirectory(prefix="xla-nb-trace-") as folder:
        xp.start_trace(folder)
        try:
            result = work(*args, **kwargs)
            torch_xla.sync(wait=True)
            xm.wait_device_ops()  # sync may return before a small program has run
            del result
        finally:
            xp.stop_trace()
        traces = sorted(Path(folder).rglob("*.xplane.pb"))
        return [program for trace in traces for program in xplane.opcodes(trace.read_bytes())]


def _wait_for_every_device() -> None:
    """Wait until every device has finished earlier programs.

    torch_xla's own waiting (sync, wait_device_ops) ends with the first device; the others may be
    late. A program for several devices starts after the one before it has ended on all of them.
    Fetching the values of a new one from each device therefore waits for all earlier programs.
    """
    fence = torch.zeros(1, device=torch_xla.device()) + 1
    for shards in torch_xla._XLAC._get_local_shards([fence]):
        for shard, _ in shards:
            shard.cpu()
