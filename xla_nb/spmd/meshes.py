"""The mesh: this process's devices along named axes.

A mesh is a torch DeviceMesh, so code written for CUDA can use it. XLA always partitions over all
devices: a part of a mesh, `mesh["model"]`, only selects axes, and XLA gets its `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.distributed.device_mesh import DeviceMesh

from xla_nb.errors import UsageError
from xla_nb.wording import several


def mesh(axes: Mapping[str, int]) -> Mesh:
    """Return the devices of this process as a mesh with these axes: `{"data": 2, "model": 2}`.

    One size may be -1, for the remaining devices. Starts SPMD in this process if needed. Raises
    UsageError if the sizes do not cover the devices.
    """
    count = _devices()
    try:
        if min(axes.values()) < -1:
            raise ValueError  # NumPy would take it for -1
        devices = np.arange(count).reshape(tuple(axes.values()))
    except (AttributeError, TypeError, ValueError):
        raise UsageError(_coverage_message(axes, count)) from None
    return as_mesh(Mesh("xla", devices, mesh_dim_names=tuple(axes)))


def _devices() -> int:
    """The number of devices that a mesh covers. Raises UsageError if SPMD cannot start."""
    if not xr.is_spmd() and torch_xla._XLAC._xla_get_spmd_config_is_locked():
        # torch_xla would only warn, then crash with a segmentation fault at the next sync.
        raise UsageError(
            "SPMD can no longer start: this process has opened the XLA device. Launch with "
            "--runtime spmd; in your own process, make the mesh before you use devices "
            "(torch_xla.device(), .to('xla'))."
        )
    return int(xr.global_runtime_device_count())


def _refuse_method(method: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UsageError(
            f"mesh.{method}() does not work under SPMD: one process owns all devices of the mesh, "
            "so there are no ranks and no process groups. Load the whole batch and split it with "
            "distribute_tensor(batch, mesh, [Shard(0)]); instead of FSDP or DDP, split parameters "
            'by placements: xla_nb.spmd.parallelize(model, mesh, {"*.weight": Shard(0)}).'
        )

    return refuse


class Mesh(DeviceMesh):  # type: ignore[misc] # torch is not read by mypy
    """Devices along named axes; `mesh["model"]` and `mesh["data", "model"]` are parts of it."""

    #: The size of the last batch that was split over the whole mesh, and the axes that split it.
    batch: tuple[int, tuple[int, ...]] = (0, ())

    @property
    def whole(self) -> Mesh:
        """The mesh of which this is a part, or this mesh itself."""
        whole: Mesh = self.__dict__.get("_whole", self)
        return whole

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes; `axis0`, `axis1`, … if they have none."""
        return self.mesh_dim_names or tuple(f"axis{i}" for i in range(self.mesh.ndim))

    @property
    def sizes(self) -> dict[str, int]:
        """Each axis with its number of devices."""
        return dict(zip(self.names, self.mesh.shape, strict=True))

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        selected = (names,) if isinstance(names, str) else tuple(names)
        if not set(selected) <= set(self.names) or len(set(selected)) < len(selected):
            raise UsageError(
                f"The mesh has no part {names!r}. Name each axis once; its axes are "
                f"{', '.join(map(repr, self.names))}."
            )
        index = tuple(slice(None) if name in selected else 0 for name in self.names)
        ordered = [name for name in self.names if name in selected]
        devices = self.mesh.numpy()[index].transpose([ordered.index(name) for name in selected])
        part = Mesh("xla", devices, mesh_dim_names=selected)
        part._whole = self.whole
        return part

    def axis(self, name: str) -> int:
        """The position of an axis in the whole mesh."""
        return self.whole.names.index(name)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """0 if the axis has one device; otherwise raises UsageError: SPMD has one process."""
        axis = self.names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim
        return 0 if self.size(axis) == 1 else _refuse_method("get_local_rank")()

    get_rank = _refuse_method("get_rank")
    get_coordinate = _refuse_method("get_coordinate")
    get_group = _refuse_method("get_group")
    get_all_groups = _refuse_method("get_all_groups")
    _flatten = _refuse_method("_flatten")

    @cached_property
    def xla(self) -> Any:
        """The whole mesh as torch_xla's own type."""
        whole = self.whole
        return xs.Mesh(whole.mesh.flatten().numpy(), tuple(whole.mesh.shape), whole.names)


def as_mesh(mesh: Any) -> Mesh:
    """Convert a mesh of torch, torch_xla or this module to a `Mesh`; starts SPMD if needed.

    Raises UsageError unless it covers the devices of this process; another process may have created
    the mesh.
    """
    if isinstance(mesh, xs.Mesh):
        mesh = Mesh("xla", mesh.get_logical_mesh(), mesh_dim_names=mesh.axis_names)
    if not isinstance(mesh, DeviceMesh) or mesh.device_type != "xla":
        raise UsageError(
            f"Expected a mesh of XLA devices, not {mesh!r}. Make one with "
            "xla_nb.spmd.mesh({'model': n}) or init_device_mesh('xla', ...)."
        )
    result = mesh
    if not isinstance(result, Mesh):
        result = Mesh("xla", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    whole, count = result.whole, _devices()
    if sorted(whole.mesh.flatten().tolist()) != list(range(count)):
        raise UsageError(_coverage_message(whole.sizes, count))
    if not xr.is_spmd():
        xr.use_spmd()
    return result


def _coverage_message(axes: object, devices: int) -> str:
    return (
        f"The mesh {axes!r} does not cover the {several(devices, 'device')} of this process. Give "
        f'each axis a size, such as {{"model": {devices}}}, whose product is {devices}; one may be '
        "-1, for the remaining devices. Or start the process with another number of devices."
    )
