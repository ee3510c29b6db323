"""The lines of a program written for CUDA that place a model: `init_device_mesh`,
`parallelize_module`, `distribute_tensor`, `distribute_module`, `DTensor.from_local`.

torch passes the `distribute_` functions on to torch_xla; from there they come here. torch's own
`parallelize_module` is the same object with other code, wherever a program has it from.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch_xla.distributed.spmd as xs
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, _api
from torch.distributed.tensor.parallel import ParallelStyle

from xla_nb.errors import UsageError
from xla_nb.patching import InPlace, Place, when_imported
from xla_nb.spmd import marking, meshes, questions
from xla_nb.spmd.parallel import parallelize
from xla_nb.spmd.plans import matches
from xla_nb.spmd.refusals import NotExpressible


def install() -> None:
    """In a process of the SPMD runtime, before the user's code."""
    for name, place, instead in (
        ("xla_distribute_tensor", xs, distribute_tensor),
        ("xla_distribute_module", xs, distribute_module),
        ("from_local", DTensor, staticmethod(from_local)),
        ("__init__", DeviceMesh, make_mesh),
        ("_dtensor_init_helper", _api, make_tensor),
    ):
        setattr(place, name, instead)
    _torchs.turn_on()
    when_imported("torch.distributed.tensor.debug._comm_mode", _refuse_counting)
    questions.answer()


_make_mesh = DeviceMesh.__init__
_from_local = DTensor.from_local
_make_tensor = _api._dtensor_init_helper
_by_policy = xs.xla_distribute_module


def make_mesh(self: Any, device_type: str, mesh: Any, **options: Any) -> None:
    """A mesh over XLA devices becomes one of ours; others need the program's own process group."""
    if device_type != "xla" and not dist.is_initialized():
        shape = tuple(torch.as_tensor(mesh).shape)
        raise UsageError(
            f"A {device_type!r} mesh needs a process for each device, but under --runtime spmd one "
            f"process owns all devices. Use init_device_mesh('xla', {shape}), and .to('xla') for "
            "tensors."
        )
    _make_mesh(self, device_type, mesh, **options)
    if device_type == "xla" and type(self) is DeviceMesh:
        meshes.adopt(self)


def parallelize_module(
    module: Any,
    device_mesh: Any = None,
    parallelize_plan: Any = None,
    *,
    src_data_rank: int | None = 0,
) -> Any:
    """As torch's, a plan's keys that match nothing are left out with a warning."""
    plan = parallelize_plan
    mesh = _mesh(device_mesh)
    if mesh.device_type != "xla":
        original = _torchs.original("parallelize_module")
        return original(module, mesh, plan, src_data_rank=src_data_rank)
    if plan is None:
        warnings.warn("parallelize_module has no plan, so it does nothing.", stacklevel=3)
        return module
    if not isinstance(plan, ParallelStyle | dict):
        raise TypeError(f"parallelize_plan must be a ParallelStyle or a dict, not {type(plan)}.")
    if isinstance(plan, dict):
        for key in [key for key in plan if not matches(module, key)]:
            warnings.warn(f"The plan's key {key!r} matches nothing in the model.", stacklevel=3)
        plan = {key: style for key, style in plan.items() if matches(module, key)}
    return parallelize(module, mesh, plan)


def distribute_tensor(
    tensor: Tensor, device_mesh: Any, placements: Sequence[Placement] | None = None
) -> Tensor:
    """A new leaf with the tensor's values, laid out over the mesh.

    A tensor that is on the devices already is laid out too: programs written for torch_xla, which
    does just that, may drop the result.
    """
    if not tensor.is_leaf:
        raise NotExpressible(
            "distribute_tensor",
            "it takes parameters, buffers and inputs, but this tensor is computed from others",
            "Use tensor.redistribute(mesh, placements), through which gradients flow",
        )
    mesh = meshes.of(device_mesh)
    layout = questions.layout_over(
        mesh, placements or [Replicate()] * len(mesh.names), tensor, "distribute_tensor"
    )
    values = tensor.detach()
    if values.device.type == "xla":
        marking.place(values, mesh, layout)  # shared with `tensor`
        values = values.cpu()
    placed = values.to(marking.device())
    marking.place(placed, mesh, layout)
    return placed.requires_grad_(tensor.requires_grad)


def make_tensor(
    init: Callable[..., Tensor],
    size: Any,
    device_mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    **options: Any,
) -> Tensor:
    """What `torch.distributed.tensor.zeros` and its like return."""
    mesh = _mesh(device_mesh)
    if mesh.device_type != "xla":
        made: Tensor = _make_tensor(init, size, mesh, placements, **options)
        return made
    return distribute_tensor(init(size, **options), mesh, placements)


def from_local(
    tensor: Tensor,
    device_mesh: Any = None,
    placements: Sequence[Placement] | None = None,
    **options: Any,
) -> Tensor:
    """A replicated "local" tensor is the whole one; gradients flow back."""
    mesh = _mesh(device_mesh)
    if mesh.device_type != "xla":
        whole: Tensor = _from_local(tensor, mesh, placements, **options)
        return whole
    wanted = placements or [Replicate()] * len(mesh.names)
    if any(type(each) is not Replicate for each in wanted):
        raise NotExpressible(
            "DTensor.from_local",
            f"{list(wanted)} joins parts that ranks hold, but under SPMD one process holds the "
            "whole tensor",
            "Use distribute_tensor on the whole tensor",
        )
    return questions.constrained(tensor.to(marking.device()), meshes.of(mesh), wanted)


def distribute_module(
    module: nn.Module,
    device_mesh: Any = None,
    partition_fn: Callable[[str, Any, Any], object] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> Any:
    """Place a module by a function that places its submodules; the rest is replicated."""
    if getattr(partition_fn, "__name__", "") == "auto_policy":  # torch_xla's own
        return _by_policy(module, device_mesh, partition_fn, input_fn, output_fn)
    mesh = _mesh(device_mesh)
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
    parallelize(module, mesh, {})
    if input_fn is not None:
        enter = _with_module(input_fn)
        module.register_forward_pre_hook(lambda module, inputs: enter(module, inputs, mesh))
    if output_fn is not None:
        leave = _with_module(output_fn)
        module.register_forward_hook(lambda module, _, outputs: leave(module, outputs, mesh))
    return module


def _with_module(function: Callable[..., Any]) -> Callable[..., Any]:
    """Once these functions took no module, and torch still calls such ones without it."""
    if len(inspect.signature(function).parameters) == 2:
        return lambda _module, values, mesh: function(values, mesh)
    return function


def refuse_local_map(*_: object, **__: object) -> NoReturn:
    raise NotExpressible(
        "local_map",
        "the function works on this rank's part, but under SPMD one process has all parts",
        "Call the function on the whole tensor",
    )


_torchs = InPlace(
    [
        Place("torch.distributed.tensor.parallel.api", "parallelize_module", parallelize_module),
        Place("torch.distributed.tensor.experimental._func_map", "local_map", refuse_local_map),
    ]
)


def _refuse_counting(module: Any) -> None:
    def enter(_self: object) -> NoReturn:
        raise NotExpressible(
            "CommDebugMode",
            "it would count nothing: XLA adds the communication when it compiles",
            "Use xla_nb.spmd.collectives(model, x)",
        )

    module.CommDebugMode.__enter__ = enter


def _mesh(device_mesh: Any) -> Any:
    """The mesh of a call, or of the `with mesh:` around it."""
    if device_mesh is not None:
        return device_mesh
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.get_current_mesh()
