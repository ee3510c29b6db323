"""What the ranks of the tests do. Each function is called in every rank, with its number."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from xla_nb import torchax as xt


def load(name: str) -> Callable[[int], Any]:
    """As a job loads a cell's module: what stands at its top is executed before the fork."""
    at_top = globals().get(f"at_top_of_{name}")
    if at_top is not None:
        at_top()
    entry: Callable[[int], Any] = globals()[name]
    return entry


def psum(value: float = 1.0) -> float:
    """The sum of the ranks' values, by a collective."""
    import jax

    whole = jax.sharding.NamedSharding(xt.mesh(), jax.sharding.PartitionSpec())
    values = xt.shard_local(np.full(2, value, np.float32), xt.mesh())
    return float(jax.jit(lambda x: x.sum() / 2, out_shardings=whole)(values))


# ---------------------------------------------------------------- the world


def forms(rank: int) -> Any:
    import jax

    return {
        "process": (jax.process_index(), jax.process_count()),
        "devices": (jax.local_device_count(), jax.device_count()),
        "platform": jax.default_backend(),
        "initialized": jax.distributed.is_initialized(),
        "sum": psum(rank + 1),
    }


def returns_early(rank: int) -> float:
    if rank == 0:
        return 0.0
    psum_of_pairs = 0.0
    time.sleep(1.5)
    return psum_of_pairs + rank


def returns_with_a_step_begun(rank: int) -> float:
    import jax

    whole = jax.sharding.NamedSharding(xt.mesh(), jax.sharding.PartitionSpec())
    step = jax.jit(lambda x: (x @ x.T).sum(), out_shardings=whole)
    begun = step(xt.shard_local(np.ones((700, 2000), np.float32), xt.mesh()))
    return 0.0 if rank == 0 else float(begun)


def one_raises(rank: int) -> float:
    total = psum(rank)
    if rank == 1:
        raise RuntimeError("on purpose")
    for _ in range(1000):
        total += psum(rank)
    return total


def one_is_killed(rank: int) -> float:
    for step in range(1000):
        if (rank, step) == (1, 20):
            os.kill(os.getpid(), signal.SIGKILL)
        psum(rank)
    return 0.0


def first_is_killed_outside(rank: int) -> int:
    psum(rank)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(2)
    return rank
