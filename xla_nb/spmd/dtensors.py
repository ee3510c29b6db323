"""Run the calls of programs written for CUDA that place a model: `init_device_mesh`,
`parallelize_module`, `distribute_tensor`, `distribute_module`, `DTensor.from_local`.

torch passes the `distribute_` functions on to torch_xla, and torch_xla's are replaced by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch_xla.distributed.spmd as xs
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import device_mesh as torch_meshes
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, experimental, parallel

from xla_nb.errors import UsageError
from xla_nb.spmd import meshes, sharding
from xla_nb.spmd.parallel import parallelize

_xla_distribute: Any = xs.xla_distribute_module.__wrapped__  # its wrapper turns SPMD on again


def install() -> None:
    """Install in a process of the SPMD runtime, before the user's code."""
    constructor: Any = staticmethod(make_mesh)
    DeviceMesh.__new__ = constructor
    xs.xla_distribute_tensor = distribute_tensor
    xs.xla_distribute_module = distribute_module
    DTensor.from_local = staticmethod(from_local)
    parallel.parallelize_module = parallel.api.parallelize_module = parallelize_module
    experimental.local_map = experimental._func_map.local_map = refuse_local_map
    # The program sees every tensor on the devices as whole; other tensors lack these attributes.
    cls: Any = torch.Tensor
    cls.device_mesh = _attribute("device_mesh", lambda tensor: sharding.last_placements(tensor)[0])
    cls.placements = _attribute("placements", lambda tensor: sharding.last_placements(tensor)[1])
    cls.full_tensor = _attribute("full_tensor", lambda tensor: lambda **_: tensor.clone())


def _attribute(name: str, read: Callable[[Tensor], Any]) -> property:
    def get(tensor: Tensor) -> Any:
        if tensor.device.type != "xla":
            raise AttributeError(f"{type(tensor).__name__!r} object has no attribute {name!r}")
        return read(tensor)

    return property(get)


def make_mesh(cls: type, device_type: str = "xla", *_args: Any, **_options: Any) -> Any:
    """Replace DeviceMesh.__new__: a mesh over XLA devices becomes a `meshes.Mesh`; others need the
    program's own process group."""
    if device_type != "xla" and not dist.is_initialized():
        raise UsageError(
            f"A {device_type!r} mesh needs a process for each device, but under --runtime spmd one "
            "process owns all devices. Use init_device_mesh('xla', ...), and .to('xla') for "
            "tensors."
        )
    return object.__new__(meshes.Mesh if cls is DeviceMesh and device_type == "xla" else cls)


def parallelize_module(
    module: Any,
    device_mesh: Any = None,
    parallelize_plan: Any = None,
    *,
    src_data_rank: int | None = 0,
) -> Any:
    """`parallelize`, with torch's arguments."""
    return parallelize(module, _mesh(device_mesh), parallelize_plan)


def distribute_tensor(
    tensor: Tensor, device_mesh: Any, placements: Sequence[Placement] | None = None
) -> Tensor:
    """Return a new leaf with the tensor's values, laid out over the mesh.

    A tensor that is already on the devices is laid out too, because torch_xla does only that and
    programs written for it may drop the result.
    """
    if not tensor.is_leaf:
        raise UsageError(
            "distribute_tensor takes parameters, buffers and inputs, but this tensor is computed "
            "from others. Distribute those; XLA lays out the rest."
        )
    mesh = meshes.as_mesh(device_mesh)
    all_placements = placements or [Replicate()] * len(mesh.names)
    layout = sharding.layout(mesh, all_placements, tensor.ndim, "distribute_tensor")
    values = sharding.unwrap(tensor).detach()
    if values.device.type == "xla":
        sharding.place(values, mesh, layout)  # shared with `tensor`
        values = values.cpu()
    result = values.to(sharding.device())
    sharding.place(result, mesh, layout)
    return result.requires_grad_(tensor.requires_grad)


def from_local(
    tensor: Tensor,
    device_mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    **_options: Any,
) -> Tensor:
    """Return a replicated "local" tensor as the whole tensor; gradients flow back."""
    meshes.as_mesh(_mesh(device_mesh))
    if any(type(placement) is not Replicate for placement in placements or ()):
        raise UsageError(
            f"DTensor.from_local: {list(placements or ())} joins the parts of several ranks, but "
            "under SPMD one process holds the whole tensor. Use distribute_tensor on it."
        )
    return tensor.to(sharding.device())


def distribute_module(module: nn.Module, device_mesh: Any = None, *functions: Any) -> Any:
    """Place a module by a function that places its submodules; torch_xla's own code runs it, and
    the functions for inputs and outputs. The rest is replicated."""
    mesh = _mesh(device_mesh)
    return parallelize(_xla_distribute(module, mesh, *functions), mesh, {})


def refuse_local_map(*_args: object, **_options: object) -> NoReturn:
    """Refuse: on whole tensors, torch's local_map would run the function once, on all parts."""
    raise UsageError(
        "local_map: the function works on this rank's part, but under SPMD one process has all "
        "parts. Call the function on the whole tensor."
    )


def _mesh(device_mesh: Any) -> Any:
    """The mesh of a call, or of the `with mesh:` around it."""
    return device_mesh or torch_meshes._mesh_resources.get_current_mesh()
