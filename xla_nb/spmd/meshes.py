"""The mesh: this process's devices along named axes.

A mesh is a torch DeviceMesh, so code written for CUDA can use it. XLA always partitions over all
devices: a part of a mesh, `mesh["model"]`, only selects axes, and XLA gets its `whole`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.distributed.device_mesh import DeviceMesh

from xla_nb.errors import UsageError
from xla_nb.topology.mesh_axes import complete
from xla_nb.wording import several


def mesh(axes: Mapping[str, int]) -> Mesh:
    """The devices of this process as a mesh with these axes, such as `{"data": 2, "model": 2}`.

    One size may be -1 for what the other axes leave. Starts SPMD in this process if needed. Raises
    UsageError if the sizes do not cover the devices.
    """
    _check(axes)
    devices = _devices()
    sizes = complete(axes, devices)
    if sizes is None:
        raise UsageError(_does_not_cover(axes, devices))
    start()
    return Mesh(np.arange(devices).reshape(tuple(sizes.values())), tuple(sizes))


def start() -> None:
    """Make this an SPMD process unless it is one. Raises UsageError where it can no longer be."""
    if not xr.is_spmd():
        _check_early()
        xr.use_spmd()


def _devices() -> int:
    """How many devices a mesh of this process covers. Raises UsageError where SPMD cannot start."""
    if not xr.is_spmd():
        _check_early()
    count: int = xr.global_runtime_device_count()
    return count


def _check_early() -> None:
    if torch_xla._XLAC._xla_get_spmd_config_is_locked():
        # torch_xla would only warn, then crash with a segmentation fault at the next sync.
        raise UsageError(
            "SPMD can no longer start: this process used the XLA device before making a mesh. "
            "Make the mesh first, `mesh = xla_nb.spmd.mesh(...)`, and touch devices "
            "(torch_xla.device(), .to('xla')) after it."
        )


class Mesh(DeviceMesh):  # type: ignore[misc] # torch is not read by mypy
    """Devices along named axes; `mesh["model"]` and `mesh["data", "model"]` are parts of it."""

    def __init__(
        self, devices: np.ndarray[Any, Any], names: tuple[str, ...], whole: Mesh | None = None
    ) -> None:
        super().__init__("xla", torch.from_numpy(devices), mesh_dim_names=names)
        self._join(names, whole)

    def _join(self, names: tuple[str, ...], whole: Mesh | None = None) -> None:
        self.whole = whole or self
        self.names = names
        self.fits = True  # it is known to cover the devices
        self.batch: tuple[int, tuple[int, ...]] = (0, ())  # size and axes of the last batch

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, fits=False)  # another process may have other devices

    @property
    def sizes(self) -> dict[str, int]:
        """Each axis with its number of devices."""
        return dict(zip(self.names, self.mesh.shape, strict=True))

    def __getitem__(self, names: str | tuple[str, ...]) -> Mesh:
        chosen = (names,) if isinstance(names, str) else tuple(names)
        for name in chosen:
            if name not in self.names:
                names = ", ".join(map(repr, self.names))
                raise UsageError(f"The mesh has no axis {name!r}. Choose from {names}.")
        if len(set(chosen)) < len(chosen):
            raise UsageError(
                f"mesh[{', '.join(map(repr, chosen))}] names an axis twice. Name each axis once."
            )
        first = [slice(None) if name in chosen else 0 for name in self.names]
        kept = [name for name in self.names if name in chosen]
        devices = self.mesh.numpy()[tuple(first)].transpose([kept.index(name) for name in chosen])
        return Mesh(devices, chosen, self.whole)

    def axis(self, name: str) -> int:
        """The position of an axis in the whole mesh."""
        return self.whole.names.index(name)

    # What asks for this process among others is answered only where there is one device.

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        return self._only(
            "get_local_rank", self.size() if mesh_dim is None else self._size(mesh_dim)
        )

    def get_rank(self) -> int:
        return self._only("get_rank", self.size())

    def get_coordinate(self) -> list[int]:
        return [self._only("get_coordinate", size) for size in self.mesh.shape]

    def get_group(self, mesh_dim: int | str | None = None) -> NoReturn:
        raise _no_groups("get_group")

    def get_all_groups(self) -> NoReturn:
        raise _no_groups("get_all_groups")

    def _flatten(self, *_: object, **__: object) -> NoReturn:
        raise _no_groups("_flatten")

    @staticmethod
    def _only(method: str, devices: int) -> int:
        if devices != 1:
            raise _no_processes(method)
        return 0

    def _size(self, mesh_dim: int | str) -> int:
        axis = self.names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim
        return int(self.mesh.shape[axis])

    @cached_property
    def xla(self) -> Any:
        """The whole mesh in torch_xla's own type."""
        whole = self.whole
        return xs.Mesh(whole.mesh.flatten().numpy(), tuple(whole.mesh.shape), whole.names)


def of(mesh: object) -> Mesh:
    """Any mesh of torch's, torch_xla's or ours as one of ours."""
    if isinstance(mesh, Mesh):
        if not mesh.whole.fits:
            _check_devices(mesh.whole)
            mesh.whole.fits = True
        return mesh
    if isinstance(mesh, xs.Mesh):
        names = mesh.axis_names or _numbered(len(mesh.mesh_shape))
        return Mesh(mesh.get_logical_mesh(), names)
    if isinstance(mesh, DeviceMesh):
        _check_devices(mesh)
        return Mesh(mesh.mesh.numpy(), tuple(_axes(mesh)))
    raise UsageError(
        f"Expected a mesh, not a {type(mesh).__name__}. Make one with "
        "xla_nb.spmd.mesh({'model': n})."
    )


def adopt(mesh: Any) -> None:
    """Make a mesh that torch has made over XLA devices one of ours; it stays the same object.

    It may be made before there is a process with devices, and is checked at its first use then.
    """
    if xr.is_spmd():
        _check_devices(mesh)
    mesh.__class__ = Mesh
    mesh._join(tuple(_axes(mesh)))
    mesh.fits = xr.is_spmd()


def _check_devices(mesh: Any) -> None:
    """Start SPMD for a mesh of torch's. Raises UsageError unless it covers the devices."""
    if mesh.device_type != "xla":
        raise UsageError(
            f"The mesh holds {mesh.device_type} devices, not XLA devices. Make it with "
            f"xla_nb.spmd.mesh({_axes(mesh)}) or init_device_mesh('xla', ...)."
        )
    devices = _devices()
    if sorted(mesh.mesh.flatten().tolist()) != list(range(devices)):
        raise UsageError(_does_not_cover(_axes(mesh), devices))
    start()


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"axis{i}" for i in range(count))


def _axes(mesh: Any) -> dict[str, int]:
    names = mesh.mesh_dim_names or _numbered(mesh.mesh.ndim)
    return dict(zip(names, mesh.mesh.shape, strict=True))


def _check(axes: Mapping[str, int]) -> None:
    if not isinstance(axes, Mapping) or not axes:
        raise UsageError(
            f'mesh({axes!r}) has no axes. Give each axis a size: mesh({{"data": 2, "model": 2}}).'
        )
    for name, size in axes.items():
        if not isinstance(name, str):
            raise UsageError(f"mesh({dict(axes)!r}): the axis name {name!r} must be a string.")
        if isinstance(size, bool) or not isinstance(size, int) or size < -1 or size == 0:
            raise UsageError(
                f"mesh({dict(axes)!r}): the size of {name!r} must be a number of devices, "
                f"or -1 for what the other axes leave, not {size!r}."
            )
    if list(axes.values()).count(-1) > 1:
        raise UsageError(f"mesh({dict(axes)!r}): only one axis can be -1.")


def _no_processes(method: str) -> UsageError:
    return UsageError(
        f"mesh.{method}() has no answer under SPMD: one process owns all devices of the mesh, so "
        "there are no ranks. Load the whole batch and split it with "
        "distribute_tensor(batch, mesh, [Shard(0)]) or xla_nb.spmd.loader."
    )


def _no_groups(method: str) -> UsageError:
    return UsageError(
        f"mesh.{method}() has no answer under SPMD: one process owns all devices of the mesh, so "
        "there are no process groups, and what needs them (fully_shard, FSDP, DDP) does not work. "
        'Split parameters by placements, xla_nb.spmd.parallelize(model, mesh, {"*.weight": '
        "Shard(0)}); XLA adds the communication."
    )


def _does_not_cover(axes: Mapping[str, int], devices: int) -> str:
    sizes = {name: max(size, 1) for name, size in axes.items()}  # -1: at least one device
    *first, last = sizes
    others = math.prod(sizes[name] for name in first)
    fitting = {**dict.fromkeys(sizes, 1), next(iter(sizes)): devices}
    if devices % others == 0:
        fitting = {**sizes, last: devices // others}
    needed = several(math.prod(sizes.values()), "device")
    needed = f"a multiple of {needed}" if -1 in axes.values() else needed
    return (
        f"The mesh {dict(axes)} needs {needed}, but this process has {devices}. Use "
        f"mesh({fitting}), or start the process with another number of devices."
    )
