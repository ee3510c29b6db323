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
from collections.abc import Mapping, Sequence
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
    import jax

    layout = functools.partial(_first_even, mesh) if spec is None else spec
    leaves, tree = jax.tree.flatten(values)
    arrays = [array if _is_spread(array) else _canonical(array) for array in map(_unwrap, leaves)]
    _check_same(tree, [array for array in arrays if not _is_spread(array)], mesh)

    def place(array: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, _resolve(layout, array.shape))
        if _is_spread(array):  # it may be sharded differently
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return tree.unflatten(map(_wrap, leaves, map(place, arrays)))


def shard_local(values: Any, mesh: Any, spec: Spec = None) -> Any:
    """Build one global value from the ranks' parts; each rank passes its own part.

    Without a `spec`, the parts are concatenated in the first dimension, over the mesh's first
    axis: the parts that the ranks loaded become the whole batch. Ranks along axes that the spec
    does not split over take the same part. Raises UsageError on every rank unless the parts fit.
    """
    import jax

    layout = mesh.axis_names[0] if spec is None else spec
    leaves, tree = jax.tree.flatten(values)
    parts = [_canonical(_unwrap(leaf)) for leaf in leaves]
    _check_parts(tree, parts, mesh, layout, is_joined=spec is None)

    def place(part: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, _resolve(layout, part.shape))
        return jax.make_array_from_process_local_data(sharding, part)

    return tree.unflatten(map(_wrap, leaves, map(place, parts)))


# ---------------------------------------------------------------- compared between ranks

# JAX does not compare what ranks pass: each would compute with its own.


def _check_parts(
    tree: Any, parts: Sequence[Any], mesh: Any, layout: Spec, *, is_joined: bool
) -> None:
    """Raise UsageError unless the ranks' parts fit together: they have the same structure, shapes
    and types, and are equal on ranks that take the same part."""
    if is_joined and not all(part.ndim for part in parts):
        raise UsageError(
            "shard_local: a number has no first dimension along which parts could be joined. Use "
            "xt.replicate(x, mesh) for a value that is the same on every rank."
        )
    if not mesh.is_multi_process:
        return
    length = parts[0].shape[0] if parts and parts[0].ndim else 0
    groups = _groups(_numbers(mesh, _digest(tree, parts), length), mesh)
    if len(groups) > 1:
        found = [f"{several(n, 'row')} on {ranks(group)}" for (_, n), group in groups.items()]
        if len({n for _, n in groups}) < len(groups):
            found = [f"those of {ranks(group)}" for group in groups.values()]
        raise UsageError(
            f"shard_local: the ranks' parts differ in shape, type or keys: {listed(found)}. JAX "
            "joins equal parts only: leave out or fill up a smaller last batch."
        )
    replicas = [_replicas(mesh, _resolve(layout, part.shape)) for part in parts]
    for axes in dict.fromkeys(filter(None, replicas)):
        same = [part for part, others in zip(parts, replicas, strict=True) if others == axes]
        numbers = _numbers(mesh, _digest(tree, same, content=True))[..., 0]
        if (numbers.max(axes) != numbers.min(axes)).any():
            along = listed([repr(mesh.axis_names[axis]) for axis in axes])
            raise UsageError(
                f"shard_local: ranks along the axis {along} of the mesh {dict(mesh.shape)} take "
                "the same part, but theirs differ. Pass them the same, or join those of all ranks: "
                f"xt.shard_local(x, mesh, jax.sharding.PartitionSpec({mesh.axis_names!r}))."
            )


def _check_same(tree: Any, arrays: Sequence[Any], mesh: Any) -> None:
    """Raise UsageError unless the ranks' values are the same."""
    if not mesh.is_multi_process:
        return
    groups = _groups(_numbers(mesh, _digest(tree, arrays, content=True)), mesh)
    if len(groups) > 1:
        raise UsageError(
            "shard and replicate take the same values on every rank, but "
            f"{listed([ranks(group) for group in groups.values()])} differ. Make them the same "
            "(load them, or seed alike), or join each rank's own part with xt.shard_local."
        )


def _digest(tree: Any, arrays: Sequence[Any], *, content: bool = False) -> int:
    """A number that is equal for arrays of the same shapes and types, and the same `content`, in
    trees with the same keys."""
    import numpy as np

    digest = zlib.crc32(repr((tree, [(array.shape, array.dtype) for array in arrays])).encode())
    for array in arrays if content else ():
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), digest)
    return digest


def _replicas(mesh: Any, spec: Any) -> tuple[int, ...]:
    """The axes of the mesh along which a spec does not split: ranks there take the same part."""
    used = {name for part in spec for name in (part if isinstance(part, tuple) else (part,))}
    sizes = mesh.devices.shape
    return tuple(n for n, name in enumerate(mesh.axis_names) if name not in used and sizes[n] > 1)


def _numbers(mesh: Any, *own: int) -> Any:
    """What each rank passes, by its place in the mesh: a collective."""
    import jax
    import numpy as np

    row = np.array([own], np.uint32)
    rows = jax.make_array_from_callback(
        (mesh.size, len(own)),
        jax.sharding.NamedSharding(mesh, _spec(mesh.axis_names)),
        lambda _: row,
    )
    whole = np.asarray(_replication(mesh)(rows).addressable_data(0))
    return whole.astype(np.int64).reshape(*mesh.devices.shape, len(own))


def _groups(numbers: Any, mesh: Any) -> dict[tuple[int, ...], set[int]]:
    """The ranks by the numbers that they passed."""
    groups: dict[tuple[int, ...], set[int]] = {}
    for device, row in zip(mesh.devices.flat, numbers.reshape(mesh.size, -1).tolist(), strict=True):
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


def _unwrap(leaf: Any) -> Any:
    """The JAX array of a torchax tensor; other values, unless JAX arrays, as NumPy arrays."""
    import numpy as np

    if jax_values.is_torchax(leaf):
        return leaf.jax()
    if jax_values.is_torch(leaf):
        return jax_values.of_torch(leaf)
    if jax_values.is_jax(leaf):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMm":
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
