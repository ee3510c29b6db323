"""For cells that run on many JAX processes: a mesh over all ranks, values spread over it, and
whole values back.

    from xla_nb import torchax as xt

    mesh = xt.mesh()                                   # one axis, "data", over every device
    weights = xt.replicate(model.state_dict(), mesh)   # or xt.shard(...), as FSDP does
    batch = xt.shard_local(my_part_of_the_batch, mesh)
    xt.gather(weights)                                 # on every rank: CPU tensors, NumPy arrays

Dicts, lists and tuples keep their structure; a torch tensor becomes a torchax tensor, anything else
array-like a JAX array. Every rank must make the same calls in the same order. JAX and torch are
imported where they are used, so importing this module in the notebook costs nothing.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from xla_nb.errors import UsageError
from xla_nb.pickling.libraries import jax_values
from xla_nb.wording import listed, ranks, several

#: How a value is spread: a PartitionSpec, the mesh axis for its first dimension, or a function
#: from the value's shape to one of these.
Spec: TypeAlias = Any


def mesh(axes: Mapping[str, int] | None = None) -> Any:
    """A `jax.sharding.Mesh` over the devices of all ranks, in rank order.

    `axes` maps each axis to its size; one may be -1, for the remainder. The default is a single
    axis, "data". Raises ValueError if the sizes do not cover the devices.
    """
    import jax
    import numpy as np

    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    axes = {"data": -1} if axes is None else axes
    try:
        if min(axes.values()) < -1:
            raise ValueError  # NumPy would treat it as -1
        grid = np.array(devices).reshape(tuple(axes.values()))
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"a mesh of {axes} does not cover the {len(devices)} devices of this run. Use sizes "
            "whose product is that number (one may be -1, for the remainder), or change -n."
        ) from None
    return jax.sharding.Mesh(grid, tuple(axes))


# ---------------------------------------------------------------- spreading


def replicate(values: Any, mesh: Any) -> Any:
    """Replicate each value on every device; like `shard`, for a spec without axes."""
    return shard(values, mesh, lambda shape: _spec())


def shard(values: Any, mesh: Any, spec: Spec = None) -> Any:
    """Shard values that are the same on every rank: each device keeps its part.

    Without a `spec`, values are sharded as FSDP does: over the mesh's first axis, along the first
    dimension that divides evenly; a value without such a dimension is replicated. Raises UsageError
    on every rank unless all pass the same values.
    """
    layout = functools.partial(_first_even, mesh) if spec is None else spec
    _check_same(values, mesh)

    def place(value: Any) -> Any:
        import jax

        sharding = jax.sharding.NamedSharding(mesh, _resolve(layout, value.shape))
        if _is_spread(value):  # it may be sharded differently
            return jax.device_put(value, sharding)
        array = _canonical(value)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return _map_leaves(values, place)


def shard_local(values: Any, mesh: Any, spec: Spec = None) -> Any:
    """Build one global value from the ranks' parts; each rank passes its own part.

    Without a `spec`, the parts are concatenated in the first dimension, over the mesh's first
    axis: the parts that the ranks loaded become the whole batch. Raises UsageError on every rank
    unless all parts have the same shape.
    """
    layout = mesh.axis_names[0] if spec is None else spec
    _check_parts(values, mesh, is_joined=spec is None)

    def place(value: Any) -> Any:
        import jax

        sharding = jax.sharding.NamedSharding(mesh, _resolve(layout, value.shape))
        return jax.make_array_from_process_local_data(sharding, _canonical(value))

    return _map_leaves(values, place)


def _check_parts(values: Any, mesh: Any, *, is_joined: bool) -> None:
    """Raise UsageError unless the ranks' parts have the same shapes: JAX does not compare them, and
    each rank would take the whole for as many parts like its own."""
    import jax
    import numpy as np

    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(values)]
    if is_joined and () in shapes:
        raise UsageError(
            "shard_local: a number has no first dimension along which parts could be joined. Use "
            "xt.replicate(x, mesh) for a value that is the same on every rank."
        )
    length = shapes[0][0] if shapes and shapes[0] else 0
    groups = _alike(zlib.crc32(repr(shapes).encode()), length, mesh)
    if len(groups) > 1:
        found = [f"{several(n, 'row')} on {ranks(group)}" for (_, n), group in groups.items()]
        raise UsageError(
            f"shard_local: the ranks' parts have different shapes: {listed(found)}. JAX joins "
            "equal parts only: leave out or fill up a smaller last batch."
        )


def _check_same(values: Any, mesh: Any) -> None:
    """Raise UsageError unless the ranks' values are the same: JAX does not compare them, and each
    device would keep, or compute with, its own."""
    import jax
    import numpy as np

    arrays = [_unwrap(leaf) for leaf in jax.tree.leaves(values)]
    own = [_canonical(array) for array in arrays if not _is_spread(array)]
    digest = zlib.crc32(repr([(array.shape, array.dtype) for array in own]).encode())
    for array in own:
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), digest)
    groups = _alike(digest, 0, mesh)
    if len(groups) > 1:
        raise UsageError(
            "shard and replicate take the same values on every rank, but "
            f"{listed([ranks(group) for group in groups.values()])} differ. Make them the same "
            "(load them, or seed alike), or join each rank's own part with xt.shard_local."
        )


def _alike(digest: int, length: int, mesh: Any) -> dict[tuple[int, int], set[int]]:
    """The ranks by the numbers that they pass; a collective of the mesh."""
    import jax
    import numpy as np

    if not mesh.is_multi_process:
        return {}
    own = np.array([[digest, length]], np.uint32)
    rows = jax.make_array_from_callback(
        (mesh.size, 2), jax.sharding.NamedSharding(mesh, _spec(mesh.axis_names)), lambda _: own
    )
    numbers = np.asarray(_replication(mesh)(rows).addressable_data(0)).tolist()
    groups: dict[tuple[int, int], set[int]] = {}
    for device, row in zip(mesh.devices.flat, numbers, strict=True):
        groups.setdefault(tuple(row), set()).add(device.process_index)
    return groups


@functools.cache
def _replication(mesh: Any) -> Any:
    """A compiled function that returns an array replicated over the mesh."""
    import jax

    return jax.jit(lambda x: x, out_shardings=jax.sharding.NamedSharding(mesh, _spec()))


def _spec(*parts: Any) -> Any:
    import jax

    return jax.sharding.PartitionSpec(*parts)


def _resolve(spec: Spec, shape: tuple[int, ...]) -> Any:
    if callable(spec):
        spec = spec(shape)
    return _spec(spec) if isinstance(spec, str) else spec


def _first_even(mesh: Any, shape: tuple[int, ...]) -> Any:
    axis, parts = mesh.axis_names[0], mesh.devices.shape[0]
    for dimension, size in enumerate(shape):
        if size and size % parts == 0:
            return _spec(*[None] * dimension, axis)
    return _spec()


def _map_leaves(values: Any, convert: Callable[[Any], Any]) -> Any:
    import jax

    return jax.tree.map(lambda leaf: _wrap(leaf, convert(_unwrap(leaf))), values)


def _unwrap(leaf: Any) -> Any:
    """The JAX array of a torchax tensor; other values, unless JAX arrays, as NumPy arrays."""
    import numpy as np

    if jax_values.is_torchax(leaf):
        return leaf.jax()
    if jax_values.is_torch(leaf):
        return jax_values.of_torch(leaf)
    array = leaf if jax_values.is_jax(leaf) else np.asarray(leaf)
    if array.dtype.hasobject:
        raise UsageError(
            f"xla_nb.torchax takes tensors, arrays and numbers, not {type(leaf).__name__}. Of a "
            "model, pass dict(model.state_dict())."
        )
    return array


def _canonical(value: Any) -> Any:
    """The value as a NumPy array, in the width that JAX uses for its dtype (x64 or not)."""
    import jax
    import numpy as np

    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _wrap(leaf: Any, placed: Any) -> Any:
    """`placed`, as a torchax tensor if the original `leaf` was a torch tensor."""
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
    """Gather whole values on every rank: torch tensors on the CPU, all others as NumPy arrays.

    A collective: all ranks must call it. A value local to one rank is returned unchanged.
    """
    import jax
    from jax.experimental import multihost_utils

    leaves, tree = jax.tree.flatten(values)
    arrays = [_unwrap(leaf) for leaf in leaves]
    indices = [i for i, array in enumerate(arrays) if _is_spread(array)]
    gathered = multihost_utils.process_allgather([arrays[i] for i in indices], tiled=True)
    for i, array in zip(indices, gathered, strict=True):
        arrays[i] = array
    return tree.unflatten(map(_to_host, leaves, arrays))


def _is_spread(value: Any) -> bool:
    return jax_values.is_jax(value) and not jax_values.is_here(value)


def _to_host(leaf: Any, array: Any) -> Any:
    if jax_values.is_torch(leaf) and not jax_values.is_torchax(leaf):
        return leaf
    host_array = jax_values.to_numpy(array)
    return jax_values.to_torch(host_array, leaf.dtype) if jax_values.is_torch(leaf) else host_array
