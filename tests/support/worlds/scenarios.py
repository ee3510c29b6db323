"""Code for the ranks of the tests: each function is called on every rank, with its number."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xla_nb import torchax as xt
from xla_nb.errors import UsageError
from xla_nb.pickling import pickler, refusals
from xla_nb.pickling.functions_and_classes import Live


def load(name: str) -> Callable[[int], Any]:
    """Load a scenario like a job loads a cell's module: top-level code runs before the fork."""
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
    time.sleep(1.5)
    return float(rank)


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


# ---------------------------------------------------------------- a cell's own initialize


def initializes(rank: int) -> Any:
    import jax

    jax.distributed.initialize()
    jax.distributed.initialize("10.0.0.1:1234", num_processes=4, process_id=rank)
    jax.distributed.initialize(coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"])
    total = psum(rank)
    jax.distributed.shutdown()
    return total


def initializes_late(rank: int) -> Any:
    import torchax
    from jax._src import distributed

    torchax.enable_globally()
    distributed.initialize(num_processes=4)
    return psum(rank)


def at_top_of_initializes_at_the_top() -> None:
    from jax.distributed import initialize

    initialize(num_processes=4)


def initializes_at_the_top(rank: int) -> float:
    return psum(rank)


def at_top_of_another_world_at_the_top() -> None:
    import jax

    jax.distributed.initialize(num_processes=8)


def another_world_at_the_top(rank: int) -> None:
    raise AssertionError("not called")


def another_world(rank: int) -> str:
    import jax

    try:
        jax.distributed.initialize(num_processes=8)
    except Exception as error:
        psum()
        return str(error)
    return "not refused"


def multihost(rank: int) -> dict[str, Any]:
    import jax
    from jax.experimental import multihost_utils as utils
    from jax.sharding import PartitionSpec

    mine, mesh = np.array([10.0 * rank, 10.0 * rank + 1]), xt.mesh()
    stacked = utils.process_allgather(mine)
    joined = utils.process_allgather(mine, tiled=True)
    first = utils.broadcast_one_to_all({"a": rank, "b": mine[:1]})
    third = utils.broadcast_one_to_all(np.int32(rank), is_source=rank == 2)
    spec = PartitionSpec("data")
    whole = utils.host_local_array_to_global_array(np.array([float(rank)]), mesh, spec)
    part = utils.global_array_to_host_local_array(whole, mesh, spec)
    utils.sync_global_devices("here")
    try:
        utils.assert_equal(rank, "the ranks have different numbers")
        differs = ""
    except AssertionError as error:
        differs = type(error).__name__
    jax.distributed.shutdown()
    return {
        "stacked": stacked.tolist(),
        "joined": joined.tolist(),
        "from the first": {"a": int(first["a"]), "b": first["b"].tolist()},
        "from the third": int(third),
        "whole": utils.process_allgather(whole, tiled=True).tolist(),
        "own part": np.asarray(part).tolist(),
        "differs": differs,
        "initialized": jax.distributed.is_initialized(),
    }


# ---------------------------------------------------------------- training


def digits() -> tuple[Any, Any]:
    """The first 512 of scikit-learn's digits, from its data file: the import takes seconds."""
    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(package, "datasets/data/digits.csv.gz"), delimiter=",", max_rows=512)
    return (rows[:, :64] / 16).astype(np.float32), rows[:, 64].astype(np.int64)


def network() -> Any:
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    return torch.nn.Sequential(*layers)


STEPS, RATE = 25, 0.5


def reference() -> tuple[list[float], dict[str, Any]]:
    """The same training in one process, with plain torch."""
    import torch

    images, labels = map(torch.from_numpy, digits())
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def my_digits(rank: int, mesh: Any) -> tuple[Any, Any]:
    import torch

    images, labels = digits()
    mine = slice(rank * 128, (rank + 1) * 128)
    return xt.shard_local((torch.from_numpy(images[mine]), torch.from_numpy(labels[mine])), mesh)


def jitted_step(model: Any) -> Any:
    import torch
    from torchax import interop

    def loss_of(weights: Any, images: Any, labels: Any) -> Any:
        scores = torch.func.functional_call(model, weights, (images,))
        return torch.nn.functional.cross_entropy(scores, labels)

    def step(weights: Any, images: Any, labels: Any) -> Any:
        loss, slopes = interop.jax_value_and_grad(loss_of)(weights, images, labels)
        return loss, {name: weights[name] - RATE * slopes[name] for name in weights}

    return interop.jax_jit(step)


def trains(rank: int, spread: Callable[[Any, Any], Any]) -> Any:
    import torchax

    model, mesh = network(), xt.mesh()
    torchax.enable_globally()
    weights = spread(dict(model.state_dict()), mesh)
    images, labels = my_digits(rank, mesh)
    step = jitted_step(model)
    losses = []
    for _ in range(STEPS):
        loss, weights = step(weights, images, labels)
        losses.append(loss.item())
    cut = {name: str(weight.jax().sharding.spec) for name, weight in weights.items()}
    return losses, xt.gather(weights), cut


def trains_data_parallel(rank: int) -> Any:
    return trains(rank, xt.replicate)


def trains_parameters_sharded(rank: int) -> Any:
    return trains(rank, xt.shard)


# ---------------------------------------------------------------- values


def round_trips(rank: int) -> Any:
    import jax
    import torch
    import torchax

    torchax.enable_globally()
    mesh, wide = xt.mesh(), torch.arange(32.0).reshape(8, 4)
    values = {
        "torch": wide,
        "whole numbers": torch.arange(8),
        "bfloat16": wide.to(torch.bfloat16),
        "numpy": wide.numpy().copy(),
        "jax": jax.numpy.arange(8.0),
        "torchax": wide.to("jax"),
        "uneven": [torch.ones(3), (torch.ones(()),)],
        "parameter": torch.nn.Parameter(wide),
    }
    results: dict[str, Any] = {}
    for name, spread in (("sharded", xt.shard), ("replicated", xt.replicate)):
        placed = spread(values, mesh)
        results[name] = {
            "kinds": jax.tree.map(lambda leaf: type(leaf).__name__, placed),
            "parameter": isinstance(placed["parameter"], torch.nn.Parameter),
            "part": tuple(placed["torch"].jax().addressable_data(0).shape),
            "back": xt.gather(placed),
            "again": xt.gather(xt.replicate(placed, mesh)),
        }
    parts = torch.full((2, 3), float(rank)), np.full(2, rank)
    results["local"] = xt.gather(xt.shard_local(parts, mesh))
    results["own"] = xt.gather((torch.full((2,), rank), jax.numpy.full(2, rank)))
    return results


def parts_that_differ(rank: int) -> Any:
    mine, mesh, grid = torch_parts()[rank], xt.mesh(), xt.mesh({"data": 2, "model": 2})
    row, column = np.full((1, 2), rank // 2), np.full((1, 2), rank % 2)
    tried = {
        "rows": lambda: xt.shard_local(mine, mesh),
        "rows in a dict": lambda: xt.shard_local({"x": mine.numpy(), "y": [np.ones(2)]}, mesh),
        "columns": lambda: xt.shard_local(np.ones((2, 2 + (rank == 1))), mesh),
        "types": lambda: xt.shard_local(np.ones(2, np.int32 if rank else np.float32), mesh),
        "keys": lambda: xt.shard_local({"x" if rank else "y": np.ones(2)}, mesh),
        "number": lambda: xt.shard_local(np.float32(rank), mesh),
        "model": lambda: xt.shard_local(parts_that_differ, mesh),
        "column of a grid": lambda: xt.shard_local(column, grid),
        "row of a grid": lambda: str(xt.gather(xt.shard_local(row, grid))[:, 0].tolist()),
        "one weight": lambda: xt.replicate({"w": np.float32(rank == 2)}, mesh),
        "weights": lambda: xt.shard(mine[:1], mesh),
    }
    found = {}
    for name, attempt in tried.items():
        try:
            found[name] = str(attempt())
        except UsageError as refusal:
            found[name] = str(refusal)
    return found, psum()


def torch_parts() -> Any:
    import torch

    return torch.arange(10.0).split(3)


def meshes(rank: int) -> Any:
    import jax

    results: dict[str, Any] = {"plain": dict(xt.mesh().shape)}
    grid = xt.mesh({"data": 2, "model": -1})
    results["grid"] = dict(grid.shape)
    results["order"] = [device.process_index for device in grid.devices.flat]
    spec = jax.sharding.PartitionSpec("data", "model")
    numbers = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    placed = xt.shard(numbers, grid, spec)
    results["part"] = np.asarray(placed.addressable_data(0))
    results["back"] = xt.gather(placed)
    try:
        xt.mesh({"data": 3})
    except ValueError as error:
        results["refused"] = str(error)
    return results


def returns_all_kinds(rank: int) -> Any:
    import jax
    import torch
    import torchax

    torchax.enable_globally()
    model = torch.nn.Linear(4, 2)
    return {
        "torchax": torch.full((3,), float(rank), device="jax"),
        "view": torch.arange(6.0, device="jax").reshape(2, 3)[0],
        "bfloat16": torch.ones(2, dtype=torch.bfloat16, device="jax"),
        "cpu": torch.full((3,), float(rank)),
        "jax": jax.numpy.full(3, rank),
        "jax bfloat16": jax.numpy.ones(2, jax.numpy.bfloat16),
        "replicated": xt.replicate(torch.arange(4.0), xt.mesh()),
        "record": Result(jax.numpy.ones(2), [torch.zeros(2, device="jax")]),
        "model": model.to("jax"),
        "device": torch.device("jax"),
    }


@dataclass
class Result:
    loss: Any
    rest: list[Any]


def returns_a_part(rank: int) -> Any:
    return {"weights": xt.shard(np.ones((8, 2), np.float32), xt.mesh())}


def returns_a_torchax_part(rank: int) -> Any:
    import torch

    return xt.shard(torch.ones(8, 2), xt.mesh())


def sends_to_others(rank: int) -> list[str]:
    """The errors raised when such values are sent to ranks."""
    import jax
    import torch
    import torchax

    torchax.enable_globally()
    messages = []
    for value in (jax.numpy.ones(2), torch.ones(2, device="jax")):
        try:
            pickler.pack({"x": [value]}, Live())
        except refusals.Unshippable as error:
            messages.append(f"{error}: {error.advice}")
    return messages


# ---------------------------------------------------------------- beside JAX


def loads_data(rank: int) -> list[float]:
    """A DataLoader whose worker processes are forked by a rank with open devices."""
    import torch

    numbers = torch.arange(8.0)
    loader = torch.utils.data.DataLoader(numbers, batch_size=4, num_workers=2)
    return [psum(float(batch.sum())) for batch in loader]
