"""The mesh: this process's devices as named axes, and parts of it.

A mesh is a torch DeviceMesh, so that code written for CUDA can hold it. The rule: XLA partitions
over all devices, always; a part of a mesh (`mesh["model"]`) only says which axes are meant, and
its `whole` is what XLA is told of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.distributed.device_mesh import DeviceMesh

from xla_nb.errors import UsageError


def mesh(axes: Mapping[str, int]) -> Mesh:
    """The devices of this process as a mesh with these axes, such as `{"data": 2, "model": 2}`.

    One size may be -1: what the other axes leave. Starts SPMD in this process if nothing has.
    """
    sizes = _checked(axes)
    start()
    devices = xr.global_runtime_device_count()
    sizes = _completed(sizes, devices)
    if math.prod(sizes.values()) != devices:
        raise UsageError(_does_not_cover(sizes, devices))
    return Mesh(np.arange(devices).reshape(tuple(sizes.values())), tuple(sizes))


def start() -> None:
    """Make this an SPMD process, if it is none."""
    if xr.is_spmd():
        return
    if torch_xla._XLAC._xla_get_spmd_config_is_locked():
        # torch_xla would go on with a warning, and end in a segmentation fault at the next sync.
        raise UsageError(
            "SPMD cannot start any more: something in this process has used the XLA device before "
            "the mesh was made. What to do: make the mesh first, `mesh = xla_nb.spmd.mesh(...)`, "
            "and touch devices (torch_xla.device(), .to('xla')) after it."
        )
    xr.use_spmd()


class Mesh(DeviceMesh):  # type: ignore[misc] # torch is not read by mypy
    """Devices along named axes; `mesh["model"]` or `mesh["data", "model"]` is a part of it."""

    def __init__(
        self, devices: np.ndarray[Any, Any], names: tuple[str, ...], whole: Mesh | None = None
    ) -> None:
        super().__init__("xla", torch.from_numpy(devices), mesh_dim_names=names)
        self.whole = whole or self
        self.names = names
        self.batch: tuple[int, tuple[int, ...]] = (0, ())  # the last one's size, and its axes

    @property
    def sizes(self) -> dict[str, int]:
        """Each axis with its number of devices."""
        return dict(zip(self.names, self.mesh.shape, strict=True))

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if name not in self.names:
                raise UsageError(
                    f"The mesh has no axis {name!r}: it has {', '.join(map(repr, self.names))}."
                )
        if len(set(chosen)) < len(chosen):
            raise UsageError(f"mesh[{', '.join(map(repr, chosen))}] names an axis twice.")
        first = [slice(None) if name in chosen else 0 for name in self.names]
        kept = [name for name in self.names if name in chosen]
        devices = self.mesh.numpy()[tuple(first)].transpose([kept.index(name) for name in chosen])
        return Mesh(devices, chosen, self.whole)

    def axis(self, name: str) -> int:
        """The position of an axis in the whole mesh."""
        return self.whole.names.index(name)

    @cached_property
    def xla(self) -> Any:
        """The whole mesh as torch_xla has it."""
        whole = self.whole
        return xs.Mesh(whole.mesh.flatten().numpy(), tuple(whole.mesh.shape), whole.names)


def of(given: object) -> Mesh:
    """A mesh that the user made some way, as one of ours."""
    if isinstance(given, Mesh):
        return given
    if isinstance(given, xs.Mesh):
        names = given.axis_names or _numbered(len(given.mesh_shape))
        return Mesh(given.get_logical_mesh(), names)
    if isinstance(given, DeviceMesh):
        if given.device_type != "xla":
            raise UsageError(
                f"The mesh is one of {given.device_type} devices. Make it with "
                f"xla_nb.spmd.mesh({_axes(given)}), or init_device_mesh('xla', ...)."
            )
        start()
        devices = xr.global_runtime_device_count()
        if sorted(given.mesh.flatten().tolist()) != list(range(devices)):
            raise UsageError(_does_not_cover(_axes(given), devices))
        return Mesh(given.mesh.numpy(), tuple(_axes(given)))
    raise UsageError(
        f"A {type(given).__name__} is no mesh. Make one with xla_nb.spmd.mesh({{'model': n}})."
    )


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"axis{i}" for i in range(count))


def _axes(given: Any) -> dict[str, int]:
    names = given.mesh_dim_names or _numbered(given.mesh.ndim)
    return dict(zip(names, given.mesh.shape, strict=True))


def _checked(axes: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(axes, Mapping) or not axes:
        raise UsageError(
            f"mesh({axes!r}): give the axes with their sizes, such as "
            'mesh({"data": 2, "model": 2}).'
        )
    for name, size in axes.items():
        if not isinstance(name, str):
            raise UsageError(f"mesh({dict(axes)!r}): the name {name!r} of an axis is no string.")
        if isinstance(size, bool) or not isinstance(size, int) or size < -1 or size == 0:
            raise UsageError(
                f"mesh({dict(axes)!r}): the size of {name!r} must be a number of devices, "
                f"or -1 for what the other axes leave; it is {size!r}."
            )
    if list(axes.values()).count(-1) > 1:
        raise UsageError(f"mesh({dict(axes)!r}): only one axis can be -1.")
    return dict(axes)


def _completed(sizes: dict[str, int], devices: int) -> dict[str, int]:
    """The sizes with -1 filled in, if the others divide the devices."""
    others = math.prod(size for size in sizes.values() if size != -1)
    rest = devices // others if devices % others == 0 else 1
    return {name: rest if size == -1 else size for name, size in sizes.items()}


def _does_not_cover(sizes: Mapping[str, int], devices: int) -> str:
    *first, last = sizes
    others = math.prod(sizes[name] for name in first)
    fitting = {**dict.fromkeys(sizes, 1), next(iter(sizes)): devices}
    if devices % others == 0:
        fitting = {**sizes, last: devices // others}
    own = "1 device" if devices == 1 else f"{devices} devices"
    return (
        f"The mesh {dict(sizes)} has {math.prod(sizes.values())} places, and this process owns "
        f"{own}; XLA needs a mesh of exactly these. What to do: mesh({fitting}), or start the "
        "process with another number of devices."
    )
