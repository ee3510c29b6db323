"""What a cell that runs on many JAX processes needs beside torchax and JAX: a mesh over all of
them, values spread over it, and whole values back.

    from xla_nb import torchax as xt

    mesh = xt.mesh()                                   # one axis, "data", over every device
    weights = xt.replicate(model.state_dict(), mesh)   # or xt.shard(...), as FSDP does
    batch = xt.shard_local(my_part_of_the_batch, mesh)
    xt.gather(weights)                                 # on every rank: CPU tensors, NumPy arrays

The rule: a torch tensor gives a torchax tensor, anything else array-like a JAX array, in dicts,
lists and tuples as they come; and every rank makes the same calls in the same order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from xla_nb.protocol import jax_values

#: How a value is spread: a PartitionSpec, an axis of the mesh for its first dimension, or a
#: function that says which of these from the value's shape.
Spec: TypeAlias = Any


def mesh(axes: Mapping[str, int] | None = None) -> Any:
    """A `jax.sharding.Mesh` over the devices of all ranks, in their order.

    `axes` gives each axis its size, of which one may be -1 for what remains.
    """
    import jax
    import numpy as np

    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    sizes = _complete(dict(axes or {"data": -1}), len(devices))
    return jax.sharding.Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))


def _complete(sizes: dict[str, int], devices: int) -> dict[str, int]:
    open_axes = [name for name, size in sizes.items() if size == -1]
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(open_axes) == 1 and known > 0:
        sizes[open_axes[0]] = devices // known
    if math.prod(sizes.values()) != devices or min(sizes.values()) < 1:
        raise ValueError(
            f"a mesh of {sizes} does not cover the {devices} devices of this run. What to do: "
            "give sizes with that product, one of them -1 for what remains, or change -n"
        )
    return sizes


# ---------------------------------------------------------------- spreading


def replicate(values: Any, mesh: Any) -> Any:
    """The whole of each value on every device; all ranks must give the same."""
    return shard(values, mesh, lambda shape: _spec())


def shard(values: Any, mesh: Any, spec: Spec = None) -> Any:
    """Each device keeps its part of values that are the same on every rank.

    Without a `spec` it is FSDP's way: along the mesh's first axis, a value is cut in its first
    dimension that divides evenly, and is whole on every device where none does.
    """
    cut = functools.partial(_first_even, mesh) if spec is None else spec

    def place(value: Any) -> Any:
        import jax

        sharding = jax.sharding.NamedSharding(mesh, _resolve(cut, value.shape))
        if _is_spread(value):  # already, in another way
            return jax.device_put(value, sharding)
        numbers = _canonical(value)
        return jax.make_array_from_callback(numbers.shape, sharding, numbers.__getitem__)

    return _each(values, place)


def shard_local(values: Any, mesh: Any, spec: Spec = None) -> Any:
    """One global value made of the parts that the ranks hold, each giving its own.

    Without a `spec` the parts follow each other in the first dimension, along the mesh's first
    axis: what each rank loaded becomes the whole batch.
    """
    cut = mesh.axis_names[0] if spec is None else spec

    def place(value: Any) -> Any:
        import jax

        sharding = jax.sharding.NamedSharding(mesh, _resolve(cut, value.shape))
        return jax.make_array_from_process_local_data(sharding, _canonical(value))

    return _each(values, place)


def _spec(*parts: Any) -> Any:
    import jax

    return jax.sharding.PartitionSpec(*parts)


def _resolve(spec: Spec, shape: tuple[int, ...]) -> Any:
    if callable(spec):
        spec = spec(shape)
    return _spec(spec) if isinstance(spec, str) else spec


def _first_even(mesh: Any, shape: tuple[int, ...]) -> Any:
    axis, parts = mesh.axis_names[0], mesh.devices.shape[0]
    for number, size in enumerate(shape):
        if size and size % parts == 0:
            return _spec(*[None] * number, axis)
    return _spec()


def _each(values: Any, place: Callable[[Any], Any]) -> Any:
    import jax

    return jax.tree.map(lambda leaf: _wrap(leaf, place(_unwrap(leaf))), values)


def _unwrap(leaf: Any) -> Any:
    """The JAX array of a torchax tensor; anything else that is no JAX array as NumPy."""
    import numpy as np

    if jax_values.is_torchax(leaf):
        return leaf.jax()
    if jax_values.is_torch(leaf):
        return jax_values.of_torch(leaf)
    return leaf if jax_values.is_jax(leaf) else np.asarray(leaf)


def _canonical(value: Any) -> Any:
    """As NumPy, in the width that JAX has numbers of this kind in (x64 or not)."""
    import jax
    import numpy as np

    numbers = np.asarray(value)
    return numbers.astype(jax.dtypes.canonicalize_dtype(numbers.dtype), copy=False)


def _wrap(leaf: Any, placed: Any) -> Any:
    """A torchax tensor where the value was a torch one."""
    if not jax_values.is_torch(leaf):
        return placed
    import torch
    import torchax
    from torchax.tensor import Tensor

    tensor = Tensor(placed, torchax.default_env(), requires_grad=leaf.requires_grad)
    if isinstance(leaf, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=leaf.requires_grad)
    return tensor


# ---------------------------------------------------------------- whole values


def gather(values: Any) -> Any:
    """Values whole, on every rank: torch tensors on the CPU, everything else as NumPy arrays.

    All ranks must call it, and exchange what each of them lacks. A value that a rank made for
    itself alone comes back as it is.
    """
    import jax
    from jax.experimental import multihost_utils

    leaves, tree = jax.tree.flatten(values)
    wholes = [_unwrap(leaf) for leaf in leaves]
    spread = [i for i, each in enumerate(wholes) if _is_spread(each)]
    gathered = multihost_utils.process_allgather([wholes[i] for i in spread], tiled=True)
    for i, whole in zip(spread, gathered, strict=True):
        wholes[i] = whole
    return tree.unflatten(map(_at_home, leaves, wholes))


def _is_spread(value: Any) -> bool:
    return jax_values.is_jax(value) and not jax_values.is_here(value)


def _at_home(leaf: Any, whole: Any) -> Any:
    if jax_values.is_torch(leaf) and not jax_values.is_torchax(leaf):
        return leaf
    numbers = jax_values.to_numpy(whole)
    return jax_values.to_torch(numbers, leaf.dtype) if jax_values.is_torch(leaf) else numbers
