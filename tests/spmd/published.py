"""Code from programs for CUDA, run in the process with four devices; only "cuda" is changed to
"xla"."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import torch
import torch_xla
from models import Stack, difference
from scenarios import BLOCK, MLP, MODELS, on_device, refusal, seeded, vectors
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    zeros,
)
from torch.distributed.tensor.experimental import _func_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

from xla_nb import spmd


def flat() -> Any:
    return init_device_mesh("xla", (4,))


def square() -> Any:
    return init_device_mesh("xla", (2, 2), mesh_dim_names=("dp", "tp"))


# --- numbers -----------------------------------------------------------------------------------


def trained(model: str, optimizer: str = "sgd") -> float:
    kind, plan, batches = MODELS[model]
    return difference(
        seeded(kind),
        lambda model: parallelize_module(model, flat(), plan),
        batches(),
        optimizer,
        on_device,
    )


def two_dimensions() -> float:
    """Data-parallel and tensor-parallel, layer by layer, under the mesh's own `with`."""
    mesh = square()

    def place(model: Any) -> Any:
        model = model.to("xla")
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], BLOCK)
        with mesh["tp"]:
            return parallelize_module(model, parallelize_plan={})

    def bring(batch: Any) -> Any:
        return tuple(distribute_tensor(each, mesh["dp"], [Shard(0)]) for each in batch)

    return difference(seeded(Stack), place, vectors(4, 6, 16), "adamw", bring)


def distributed(dimensions: int, placements: list[Any], by: str) -> float:
    """A model whose parameters are distributed one by one, by a loop or a partition function."""
    mesh = flat() if dimensions == 1 else square()
    kind, _, batches = MODELS["mlp"]

    def replace(_name: str, module: nn.Module, mesh: Any) -> None:
        for name, p in list(module.named_parameters(recurse=False)):
            wanted = [each if p.ndim > 1 else Replicate() for each in placements]
            module.register_parameter(name, nn.Parameter(distribute_tensor(p.data, mesh, wanted)))
            assert getattr(module, name).placements == tuple(wanted)

    def place(model: Any) -> Any:
        if by == "module":
            return distribute_module(model, mesh, replace)
        if by == "nothing":
            return distribute_module(model, mesh)
        if by == "loop, on the device":
            model = model.to("xla")
        for name, module in model.named_modules():
            replace(name, module, mesh)
        return model

    return difference(seeded(kind), place, batches(), "sgd", on_device)


def hooks() -> list[float]:
    """distribute_module with functions for its inputs and outputs, as in torch's documentation."""
    mesh, model = flat(), seeded(MODELS["mlp"][0])
    (x, _), *_ = vectors(4, 8)

    def split(name: str, module: nn.Module, mesh: Any) -> None:
        if name == "in_proj":
            for key, p in list(module.named_parameters()):
                module.register_parameter(key, nn.Parameter(distribute_tensor(p, mesh, [Shard(0)])))

    def enter(_module: Any, inputs: Any, mesh: Any) -> Any:
        return DTensor.from_local(inputs[0], mesh, [Replicate()])

    def leave(outputs: Any, _mesh: Any) -> Any:
        return outputs / 2

    placed = distribute_module(copy.deepcopy(model), mesh, split, enter, leave)
    slopes = []
    for each, value in ((lambda x: model(x) / 2, x), (placed, x.to("xla"))):
        each(value).square().sum().backward()
    for each in (model, placed):
        slopes.append([p.grad.cpu() for p in each.parameters()])
    return [(a - b).abs().max().item() for a, b in zip(*slopes, strict=True)]


def loss_in_parallel() -> list[float]:
    kind, plan, batches = MODELS["tied"]
    model, ((tokens, wanted), *_) = seeded(kind), batches()
    placed = parallelize_module(copy.deepcopy(model), flat(), plan)
    losses, gradients = [], []
    for each, place in ((model, torch.Tensor.clone), (placed, lambda x: x.to("xla"))):
        with loss_parallel():
            output = each(place(tokens)).flatten(0, 1)
            loss = nn.functional.cross_entropy(output, place(wanted).flatten())
            loss.backward()
        losses.append(loss.detach().cpu())
        gradients.append(each.embed.weight.grad.cpu())
    return [(a - b).abs().max().item() for a, b in (losses, gradients)]


# --- properties --------------------------------------------------------------------------------


def answers() -> dict[str, Any]:
    """Properties of parameters and other tensors, through training, copies and state dicts."""
    mesh, model = square(), seeded(MODELS["mlp"][0])
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    parallelize_module(model, mesh["tp"], MLP)
    equal = all(
        torch.equal(p.full_tensor().cpu(), values[name]) for name, p in model.named_parameters()
    )
    placed = {name: p.placements for name, p in model.named_parameters()}
    model(torch.ones(2, 8, device="xla")).sum().backward()
    torch_xla.sync()
    slope = model.in_proj.weight.grad
    optimizer.step()
    weight = model.in_proj.weight
    whole = weight.full_tensor()
    whole.data.add_(1)
    kept = {name: p.placements for name, p in model.state_dict().items()}
    both = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0), Shard(0)])
    parted = distribute_tensor(torch.zeros(4, 4), mesh["dp"], [Shard(1)])
    file = io.BytesIO()
    torch.save({name: p.full_tensor().cpu() for name, p in model.state_dict().items()}, file)
    file.seek(0)
    return {
        "placements": placed,
        "equal": equal,
        "mesh": weight.device_mesh == mesh["tp"],
        "kept": kept == placed,
        "copied": copy.deepcopy(model).in_proj.weight.placements == weight.placements,
        "as it is": distribute_tensor(
            torch.ones(4, 4), weight.device_mesh, weight.placements
        ).placements,
        "moved": not torch.equal(weight.detach().cpu(), values["in_proj.weight"]),
        "whole is apart": torch.equal(whole.detach().cpu(), weight.detach().cpu() + 1),
        "gradient": (slope.placements, torch.equal(slope.full_tensor().cpu(), slope.cpu())),
        "both": (both.placements, both.device_mesh == mesh, both.cpu().sum().item()),
        "parted": (parted.placements, parted.device_mesh == mesh["dp"]),
        "uneven": [
            distribute_tensor(torch.ones(rows, 3), flat(), [Shard(0)]).placements
            for rows in (1, 5, 15)
        ],
        "saved": torch.equal(torch.load(file)["in_proj.weight"], weight.detach().cpu()),
        "without": [
            hasattr(values["in_proj.weight"], name) for name in ("placements", "full_tensor")
        ],
    }


def leaves() -> dict[str, Any]:
    """distribute_tensor returns a new leaf; from_local propagates gradients."""
    mesh = flat()
    for_device = torch.arange(8.0, device="xla", requires_grad=True)
    placed = distribute_tensor(for_device, mesh, [Shard(0)])
    (placed * 2).sum().backward()
    with torch.no_grad():
        placed.mul_(3)
    x = torch.ones(4, 4, device="xla", requires_grad=True)
    DTensor.from_local(x * 6, mesh).full_tensor().sum().backward()
    return {
        "gradients": (placed.grad.cpu().tolist(), for_device.grad),
        "values": (for_device.cpu().tolist(), placed.cpu().tolist()),
        "marked": for_device.placements,
        "joined": x.grad.cpu().tolist(),
    }


# --- meshes and refusals -----------------------------------------------------------------------


def whole_of_eight() -> Any:
    """A mesh from a process with eight devices."""
    return spmd.Mesh("xla", np.arange(8).reshape(1, 8), mesh_dim_names=("dp", "tp"))


def meshes() -> dict[str, Any]:
    mesh = square()
    direct = DeviceMesh("xla", torch.arange(4).view(2, 2), mesh_dim_names=("a", "b"))
    return {
        "sizes": (mesh.size(), mesh.size(0), mesh["tp"].size(), tuple(mesh.shape), mesh.ndim),
        "names": (mesh.mesh_dim_names, mesh["tp"].mesh_dim_names, flat().mesh_dim_names),
        "of ours": isinstance(direct["b"], spmd.Mesh),
        "sent": pickle.loads(pickle.dumps(whole_of_eight()))["tp"].mesh_dim_names,
        "alone": init_device_mesh("xla", (1, 4), mesh_dim_names=("dp", "tp")).get_local_rank("dp"),
    }


def refused() -> dict[str, tuple[str, str]]:
    mesh, x = flat(), torch.ones(4, 4, device="xla", requires_grad=True)
    model = parallelize_module(seeded(MODELS["mlp"][0]), mesh, MLP)
    ones = torch.ones(4, 4)
    return {
        name: refusal(work)
        for name, work in {
            "cuda": lambda: init_device_mesh("cuda", (2, 2)),
            "sent": lambda: parallelize_module(
                seeded(MODELS["mlp"][0]), pickle.loads(pickle.dumps(whole_of_eight()))["tp"], MLP
            ),
            "too many": lambda: distribute_tensor(ones, init_device_mesh("xla", (8,))),
            "local rank": mesh.get_local_rank,
            "group": mesh.get_group,
            "coordinate": mesh.get_coordinate,
            "local": lambda: model.in_proj.weight.to_local,
            "placements pending": lambda: (x * 2).placements,
            "made": lambda: zeros(4, 8, device_mesh=mesh, placements=[Shard(1)]),
            "partial": lambda: distribute_tensor(ones, mesh, [Partial()]),
            "too few": lambda: distribute_tensor(ones, square(), [Shard(0)]),
            "dimension": lambda: distribute_tensor(ones, mesh, [Shard(2)]),
            "not a leaf": lambda: distribute_tensor(x * 2, mesh, [Shard(0)]),
            "parts": lambda: DTensor.from_local(ones, mesh, [Shard(0)]),
            "fully_shard": lambda: fully_shard(seeded(MODELS["mlp"][0]).to("xla"), mesh=mesh),
            "flatten": lambda: square()["dp", "tp"]._flatten("all"),
            "local_map": lambda: _func_map.local_map(torch.sum, out_placements=[Shard(0)]),
            "two axes": lambda: parallelize_module(seeded(MODELS["mlp"][0]), square(), MLP),
            "no plan": lambda: parallelize_module(model, mesh, [ColwiseParallel()]),
            "no such key": lambda: parallelize_module(model, mesh, {"in_prj": ColwiseParallel()}),
        }.items()
    }
