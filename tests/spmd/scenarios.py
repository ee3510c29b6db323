"""Functions that tests run in the process with four devices; each returns plain data."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import models
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from collectives_count import collectives
from models import Attention, Block, Mlp, Stack, Tied, difference
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)

from tests.support.returned import returned
from xla_nb import spmd
from xla_nb.spmd import sharding

MLP = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
BLOCK = {
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.in_proj": ColwiseParallel(),
    "mlp.out_proj": RowwiseParallel(),
}
SEQUENCE = {  # as in torch's tutorial on sequence parallelism
    "norm1": SequenceParallel(),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    ),
    "attention.qkv": ColwiseParallel(),
    "attention.out": RowwiseParallel(output_layouts=Shard(1)),
    "norm2": SequenceParallel(),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "mlp.in_proj": ColwiseParallel(),
    "mlp.out_proj": RowwiseParallel(output_layouts=Shard(1)),
}
TIED = {
    "embed": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Replicate()),
    **{f"mlp.{name}": style for name, style in MLP.items()},
}


TORCHS_MESH = init_device_mesh("xla", (4,))  # made before the runtime is set up


def vectors(*shape: int, steps: int = models.STEPS) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(shape), torch.randn(shape)) for _ in range(steps)]


def words(rows: int = 4, length: int = 6, steps: int = models.STEPS) -> list[Any]:
    torch.manual_seed(1)
    return [
        (torch.randint(24, (rows, length)), torch.randint(24, (rows, length))) for _ in range(steps)
    ]


def seeded(model: Callable[..., nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(0)
    return model(*args)


def whole(**axes: int) -> Any:
    return spmd.mesh(axes)


def on_device(batch: Any) -> Any:
    return tuple(each.to("xla") for each in batch)


def refusal(work: Any) -> tuple[str, str]:
    """The error that `work` raises: its type and its message."""
    try:
        work()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"


# --- numbers -----------------------------------------------------------------------------------

MODELS: dict[str, Any] = {
    "mlp": (Mlp, MLP, lambda: vectors(4, 8)),
    "block": (Block, BLOCK, lambda: vectors(4, 6, 16)),
    "sequence": (Block, SEQUENCE, lambda: vectors(4, 8, 16)),
    "by head": (lambda: Block(by_head=True), BLOCK, lambda: vectors(4, 6, 16)),
    "tied": (Tied, TIED, words),
}


def trained(model: str, optimizer: str, axes: dict[str, int]) -> float:
    kind, plan, batches = MODELS[model]
    mesh = spmd.mesh(axes)

    def bring(batch: Any) -> Any:
        return spmd.shard_batch(batch, mesh) if "data" in axes else on_device(batch)

    return difference(
        seeded(kind),
        lambda model: spmd.parallelize(model, mesh["model"], plan),
        batches(),
        optimizer,
        bring,
    )


def both_axes() -> float:
    """A second plan also splits weights, and AdamW's state, over the batch axis."""
    mesh = whole(data=2, model=2)

    def place(model: Any) -> Any:
        spmd.parallelize(model, mesh["model"], BLOCK)
        return spmd.parallelize(model, mesh["data"], {"*.*.weight": Shard(0), "*.*.bias": Shard(0)})

    return difference(
        seeded(Block, True),
        place,
        vectors(4, 6, 16),
        "adamw",
        lambda batch: spmd.shard_batch(batch, mesh),
    )


def uneven(rows: int, hidden: int) -> tuple[float, str]:
    """Neither the batch nor the hidden width divides by its axis."""
    mesh = whole(data=2, model=2)
    models: list[Any] = []

    def place(model: Any) -> Any:
        models.append(spmd.parallelize(model, mesh["model"], MLP))
        return models[0]

    far = difference(
        seeded(Mlp, 8, hidden),
        place,
        vectors(rows, 8),
        "adamw",
        lambda batch: spmd.shard_batch(batch, mesh),
    )
    return far, described(models[0].in_proj.weight, mesh)


def described(tensor: torch.Tensor, mesh: Any = None) -> str:
    """A tensor's placement in words, as read back from XLA; with the axes of a mesh."""
    placed, splits = sharding.placement_of(tensor), []
    layout = mesh and sharding.layout_of(tensor, mesh)
    for dim in range(tensor.ndim):
        count = len({region[dim] for _, region in placed.parts})
        axes = " and ".join(repr(mesh.names[axis]) for axis in layout[dim]) if mesh else ""
        if axes or (count > 1 and not mesh):
            splits.append(f"Shard({dim}) over {axes}" if axes else f"Shard({dim}) in {count} parts")
    part = "x".join(map(str, placed.shard)) or "one number"
    return f"{', '.join(splits) or 'Replicate'}; {part} on each device"


# --- placements --------------------------------------------------------------------------------


def placements(model: str, axes: dict[str, int], part: str | None) -> dict[str, str]:
    """Each parameter's placement in words, as read back from XLA."""
    mesh = spmd.mesh(axes)
    layers = {f"layers.*.{name}": style for name, style in BLOCK.items()}
    kinds: dict[str, Any] = {"mlp": (Mlp, MLP), "stack": (Stack, layers), "tied": (Tied, TIED)}
    kind, plan = kinds[model]
    placed = spmd.parallelize(seeded(kind), mesh[part] if part else mesh, plan)
    return {name: described(each, mesh) for name, each in sharding.named_tensors(placed)}


def bytes_held(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """The bytes that each device really holds, padding included."""
    held: dict[str, int] = {}
    for tensor in tensors:
        ((*parts,),) = sharding.XLAC._get_local_shards([tensor])
        for data, device in parts:
            held[device] = held.get(device, 0) + data.numel() * data.element_size()
    return held


def bytes_on_each() -> dict[int, Any]:
    """By mesh size: the bytes of a trained model and its optimizer that devices hold, and the
    bytes that `placements` reports."""
    held = {}
    for size in (1, 2, 4):
        mesh = whole(data=4 // size, model=size)
        model = spmd.parallelize(
            nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)),
            mesh["model"],
            {"0": ColwiseParallel(), "1": RowwiseParallel()},
        )
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 64).to("xla")).pow(2).mean().backward()
            optimizer.step()
            torch_xla.sync()
        moments = [optimizer.state[parameter]["exp_avg"] for parameter in model.parameters()]
        reported = sum(each.bytes_per_device for each in spmd.placements(model).values())
        held[size] = (bytes_held(model.parameters()), bytes_held(moments), reported)
    return held


def counted(what: str) -> dict[str, int]:
    """The collectives of a forward pass of a placed model."""
    mesh = whole(model=4)
    x = torch.randn(4, 8, 16).to("xla")
    if what == "column":
        column = spmd.parallelize(nn.Linear(16, 32), mesh, ColwiseParallel())
        return collectives(column, x)
    if what == "row":
        row = spmd.parallelize(nn.Linear(16, 32), mesh, RowwiseParallel())
        return collectives(row, x)
    if what == "gathered":
        column = nn.Linear(16, 32)
        plan = ColwiseParallel(output_layouts=Replicate())
        return collectives(spmd.parallelize(column, mesh, plan), x)
    plan: Any = SEQUENCE if what == "sequence" else BLOCK
    if what == "data":
        mesh = whole(data=2, model=2)
        x = spmd.shard_batch(x, mesh)
    if what == "computed":
        mesh = whole(data=2, model=2)
        x = spmd.shard_batch(x, mesh) / 2  # as preprocessing on the devices does
    block = spmd.parallelize(Block(by_head=what != "block"), mesh["model"], plan)
    collectives(block, x)
    return collectives(block, x)  # the second time nothing is compiled


# --- plans -------------------------------------------------------------------------------------


class Everything(ParallelStyle):
    """A user's style that splits every parameter of a module on dimension 0."""

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        def partition(name: str, module: Any, mesh: Any) -> None:
            for key, parameter in list(module.named_parameters(recurse=False)):
                placed = distribute_tensor(parameter, mesh, [Shard(0)])
                module.register_parameter(key, nn.Parameter(placed))

        return distribute_module(module, device_mesh, partition)


class Halved(ParallelStyle):
    """A user's style that changes the values and adds a hook."""

    def _apply(self, module: Any, device_mesh: Any) -> Any:
        module.weight = nn.Parameter(module.weight.detach() / 2)
        module.register_forward_hook(lambda _module, _inputs, output: output + 1)
        return module


class Ranked(ParallelStyle):
    def _apply(self, module: Any, device_mesh: Any) -> Any:
        module.part = device_mesh.get_group()
        return module


class Quarter(ColwiseParallel):
    def _partition_linear_fn(self, name: str, module: Any, device_mesh: Any) -> None:
        weight = distribute_tensor(module.weight, device_mesh, [Shard(1)])
        module.register_parameter("weight", nn.Parameter(weight))


def styles() -> dict[str, Any]:
    """Apply users' own styles."""
    mesh, model, x = whole(model=4), seeded(Mlp), torch.randn(2, 8)
    with torch.no_grad():
        hidden = nn.functional.gelu(model.in_proj(x))
        wanted = model.out_proj(hidden) - hidden @ model.out_proj.weight.T / 2 + 1
    spmd.parallelize(model, mesh, {"in_proj": Everything(), "out_proj": Halved()})
    return {
        "placements": [
            described(each, mesh) for each in (model.in_proj.weight, model.in_proj.bias)
        ],
        "far": (model(x.to("xla")).cpu() - wanted).abs().max().item(),
    }


def prepared() -> dict[str, Any]:
    """The styles that only lay out values, with tuples, keywords and several outputs."""

    class Two(nn.Module):
        def forward(self, x: Any, y: Any = None, flag: bool = True) -> Any:
            return x + 1, y * 2, flag

    mesh, x = whole(model=4), torch.randn(4, 8)
    takes = PrepareModuleInput(
        input_layouts=(Shard(0),),
        desired_input_layouts=(Replicate(),),
        input_kwarg_layouts={"y": Replicate()},
        desired_input_kwarg_layouts={"y": Shard(1)},
    )
    gives = PrepareModuleOutput(
        output_layouts=(Replicate(), Shard(1), None), desired_output_layouts=(Shard(0), None, None)
    )
    model = spmd.parallelize(nn.Sequential(Two()), mesh, {"0": takes})
    spmd.parallelize(model, mesh, {"0": gives})
    first, second, flag = model[0](x.to("xla"), y=x.to("xla"))
    torch_xla.sync()
    both = PrepareModuleInputOutput(
        input_layouts=Shard(0),
        desired_input_layouts=Replicate(),
        output_layouts=Replicate(),
        desired_output_layouts=Shard(1),
    )
    third = spmd.parallelize(nn.Identity(), mesh, both)(x.to("xla"))
    torch_xla.sync()
    return {
        "placements": [described(each, mesh) for each in (first, second, third)],
        "equal": [
            torch.equal(a.cpu(), b) for a, b in ((first, x + 1), (second, x * 2), (third, x))
        ],
        "flag": flag,
    }


def twice() -> dict[str, str]:
    """Two plans, one over each axis; an optimizer made before; a copy."""
    mesh, model = whole(data=2, model=2), seeded(Mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    spmd.parallelize(model, mesh["model"], MLP)
    spmd.parallelize(model, mesh["data"], {"*.weight": Shard(0), "out_proj.bias": Shard(0)})
    before = model.in_proj.weight.detach().cpu()
    model(torch.randn(4, 8).to("xla")).sum().backward()
    optimizer.step()
    torch_xla.sync()
    assert not torch.equal(before, model.in_proj.weight.detach().cpu())
    copied = copy.deepcopy(model)
    return {name: described(each, mesh) for name, each in sharding.named_tensors(copied)}


def own_meshes() -> list[str]:
    """Meshes made by torch and by torch_xla, and their parts."""
    placements = []
    for mesh in (
        init_device_mesh("xla", (4,), mesh_dim_names=("model",)),
        TORCHS_MESH,
        xs.Mesh(list(range(4)), (4,), ("model",)),
        whole(model=-1),
        whole(data=1, model=4)["model"],
    ):
        model = spmd.parallelize(seeded(Mlp), mesh, MLP)
        placements.append(described(model.in_proj.weight))
    part = whole(a=2, b=2)["b", "a"]
    return [*placements, f"{part.sizes} {part.mesh.tolist()}"]


def recurrent() -> list[str]:
    """A module that holds weak references to its parameters; buffers; a frozen parameter."""
    mesh = whole(model=4)
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 8), "norm": nn.BatchNorm1d(8)})
    model["norm"].weight.requires_grad_(False)
    spmd.parallelize(model, mesh, {"lstm.weight_hh_l0": Shard(0), "norm.running_mean": Shard(0)})
    x = torch.randn(4, 2, 8)
    out = model["norm"](model["lstm"](x.to("xla"))[0].flatten(0, 1))
    assert out.cpu().isfinite().all()
    assert not model["norm"].weight.requires_grad
    norm = model["norm"]
    held = model["lstm"].weight_hh_l0, norm.running_mean, norm.bias
    return [described(each, mesh) for each in held]


def refused() -> dict[str, tuple[str, str]]:
    """The error of every impossible plan, mesh and call."""
    mesh, flat = whole(data=2, model=2), whole(model=4)

    def plan(given: Any, on: Any = None, kind: Any = Mlp) -> Any:
        return lambda: spmd.parallelize(seeded(kind), on or flat, given)

    return {
        name: refusal(work)
        for name, work in {
            "small mesh": lambda: whole(data=2, model=4),
            "odd mesh": lambda: whole(model=3),
            "no axes": lambda: spmd.mesh({}),
            "two rests": lambda: whole(data=-1, model=-1),
            "no axis": lambda: mesh["modle"],
            "cpu mesh": plan(MLP, "cpu"),
            "no match": plan({"in_porj": ColwiseParallel()}),
            "no match deep": plan({"layers.*.attention.qvk": ColwiseParallel()}, kind=Stack),
            "style on parameter": plan({"in_proj.weight": ColwiseParallel()}),
            "placement on module": plan({"in_proj": Shard(0)}),
            "no style": plan({"in_proj": "column"}),
            "no plan": plan(None),
            "norm": plan({"norm1": ColwiseParallel()}, kind=Block),
            "two axes": plan(MLP, mesh),
            "one of two": plan({"in_proj.weight": Shard(0)}, mesh),
            "dimension": plan({"in_proj.bias": Shard(1)}),
            "partial": plan({"in_proj.weight": Partial()}),
            "partial output": plan({"out_proj": RowwiseParallel(output_layouts=Partial())}),
            "partial input": plan({"in_proj": ColwiseParallel(input_layouts=Partial())}),
            "tied": plan({"embed": ColwiseParallel(), "head": ColwiseParallel()}, kind=Tied),
            "tied names": plan({"embed.weight": Shard(0), "head.weight": Shard(1)}, kind=Tied),
            "derived": plan({"in_proj": Quarter()}),
            "ranked": plan({"in_proj": Ranked()}),
            "no model": lambda: spmd.parallelize(MLP, flat, MLP),
            "on the cpu": lambda: spmd.parallelize(seeded(Mlp), flat, MLP)(torch.randn(2, 8)),
            "wrong rank": lambda: spmd.parallelize(
                nn.Identity(),
                flat,
                PrepareModuleOutput(output_layouts=Shard(3), desired_output_layouts=Shard(3)),
            )(torch.randn(2, 2).to("xla")),
            "counts": lambda: spmd.parallelize(
                nn.Identity(),
                flat,
                PrepareModuleOutput(
                    output_layouts=(None, None), desired_output_layouts=(None, None)
                ),
            )(torch.randn(2, 2).to("xla")),
            "batch axis": lambda: spmd.shard_batch(torch.ones(4), flat),
            "not placed": lambda: spmd.placements(seeded(Mlp)),
            "not a model": lambda: spmd.show([1]),
        }.items()
    }


def refused_plan_moves_nothing() -> bool:
    """True if a plan with one wrong key leaves the model unchanged."""
    model = seeded(Mlp)
    refusal(lambda: spmd.parallelize(model, whole(model=4), {**MLP, "nothing": Everything()}))
    return all(p.device.type == "cpu" for p in model.parameters()) and not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules()
    )


# --- data and checkpoints ----------------------------------------------------------------------


def batches() -> dict[str, Any]:
    mesh = whole(data=2, model=2)
    x = torch.arange(24.0).reshape(6, 4)
    nested = spmd.shard_batch({"x": x, "more": [x.to("xla"), (torch.tensor(3), "text")]}, mesh)
    numbers = torch.utils.data.TensorDataset(torch.arange(10.0))
    loaded = spmd.loader(torch.utils.data.DataLoader(numbers, batch_size=4), mesh)
    sums = [each.sum().item() for (each,) in loaded]
    return {
        "placement": described(nested["x"], mesh),
        "again": described(nested["more"][0], mesh),
        "scalar": (nested["more"][1][0].item(), nested["more"][1][1]),
        "equal": torch.equal(nested["x"].cpu(), x),
        "length": len(loaded),
        "sums": sums,
        "other axis": described(spmd.shard_batch(x, mesh["data"], "model"), mesh),
    }


def checkpoints() -> dict[str, Any]:
    mesh, other = whole(data=2, model=2), whole(model=4)
    batch = spmd.shard_batch(words()[0], mesh)
    model = spmd.parallelize(seeded(Tied), mesh["model"], TIED)
    optimizer = models.OPTIMIZERS["adamw"](model.parameters())

    def train(model: nn.Module, optimizer: Any, batch: Any) -> None:
        models.loss_of(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    train(model, optimizer, batch)
    saved = io.BytesIO()
    xm.save((model.state_dict(), optimizer.state_dict()), saved)
    saved.seek(0)
    state, moments = torch.load(saved, weights_only=True)

    loaded = Tied()
    loaded.load_state_dict(state)
    again = spmd.parallelize(loaded, other, TIED)
    weight = again.embed.weight
    moved = models.OPTIMIZERS["adamw"](again.parameters())
    moved.load_state_dict(moments)
    train(model, optimizer, batch)
    train(again, moved, spmd.shard_batch(words()[0], other, "model"))
    torch_xla.sync()
    return {
        "kinds": {(type(v).__name__, v.device.type) for v in state.values()},
        "far": (model.embed.weight.cpu() - weight.cpu()).abs().max().item(),
        "tied": again.head.weight is weight,
        "placement": described(again.embed.weight, other),
        "moment": described(moved.state[weight]["exp_avg"], other),
    }


def pictures() -> dict[str, bytes]:
    """Pickled pictures, as the notebook receives them."""
    mesh = whole(data=2, model=2)
    stack = spmd.parallelize(
        Stack(), mesh["model"], {f"layers.*.{name}": each for name, each in BLOCK.items()}
    )
    named = nn.ModuleDict({"<b>&": nn.Linear(5, 3)})
    spmd.parallelize(named, mesh, {"*.weight": [Shard(0), Shard(1)], "*.bias": [Shard(0)] * 2})
    tied = spmd.parallelize(Tied(), mesh["model"], TIED)
    volume = nn.ParameterDict({"volume": nn.Parameter(torch.zeros(2, 4, 4))})
    spmd.parallelize(volume, mesh, {"volume": [Shard(1), Shard(2)]})
    return {
        "stack": pickle.dumps(spmd.show(stack)),
        "named": pickle.dumps(spmd.show(named)),
        "tied": pickle.dumps(spmd.show(tied)),
        "volume": pickle.dumps(spmd.show(volume)),
        "tensor": pickle.dumps(spmd.show(torch.ones(3).to("xla"))),
        "placed": pickle.dumps(spmd.placements(tied)),
    }


def attention_alone() -> float:
    """Fused QKV called on its own, with its batch split over the other axis."""
    mesh, model = whole(data=2, model=2), seeded(Attention, 16, 4)
    x = torch.randn(4, 6, 16)
    wanted = model(x)
    spmd.parallelize(model, mesh["model"], {"qkv": ColwiseParallel(), "out": RowwiseParallel()})
    return (model(spmd.shard_batch(x, mesh)).cpu() - wanted).abs().max().item()


def norms() -> dict[str, tuple[float, dict[str, int]]]:
    """Each norm's largest difference from torch's in outputs, input gradients and running
    statistics, and its collectives when its batch is split."""
    mesh = whole(data=4)
    results = {}
    for name, norm, shape in (
        ("layer", nn.LayerNorm(8), (8, 8)),
        ("layer, bare", nn.LayerNorm((4, 8), eps=1e-2, elementwise_affine=False), (8, 4, 8)),
        ("batch", nn.BatchNorm1d(8), (8, 8)),
        ("batch, two", nn.BatchNorm2d(8, momentum=None), (8, 8, 3, 3)),
        ("batch, bare", nn.BatchNorm1d(8, affine=False, track_running_stats=False), (8, 8, 5)),
        ("batch, eval", nn.BatchNorm2d(8).eval(), (8, 8, 3, 3)),
        ("group", nn.GroupNorm(2, 8), (8, 8, 3)),
    ):
        model = spmd.parallelize(copy.deepcopy(norm), mesh, {})
        far = []
        for _ in range(2):
            x = torch.randn(shape, requires_grad=True)
            batch = spmd.shard_batch(x.detach(), mesh).requires_grad_()
            wanted, actual = norm(x), model(batch)
            wanted.pow(3).sum().backward()
            actual.pow(3).sum().backward()
            far += [actual.cpu() - wanted, (batch.grad.cpu() - x.grad) / 10]
        state = model.state_dict()
        far += [(state[key].cpu() - value).float() for key, value in norm.state_dict().items()]
        moves = collectives(model, spmd.shard_batch(torch.randn(shape), mesh))
        with torch.no_grad():
            moves |= collectives(model, spmd.shard_batch(torch.randn(shape), mesh))
        results[name] = (max(each.abs().max().item() for each in far), moves)
    return results


def transformed() -> dict[str, float]:
    """How far functions of a placed model are from those of the same model on one device."""
    model, batch, func, mesh = Mlp(), torch.randn(6, 8), torch.func, whole(data=2, model=2)
    placed = spmd.parallelize(copy.deepcopy(model), mesh["model"], MLP)
    plain = spmd.parallelize(copy.deepcopy(model), mesh, {})
    compiled = torch.compile(plain, backend="openxla", fullgraph=True)
    inputs = spmd.shard_batch(batch, mesh)

    def slopes(of: nn.Module, x: torch.Tensor, *, each: bool) -> list[torch.Tensor]:
        def loss(weights: Any, row: torch.Tensor) -> torch.Tensor:
            return func.functional_call(of, weights, (row,)).square().sum()

        of_loss = func.vmap(func.grad(loss), (None, 0)) if each else func.grad(loss)
        return [*of_loss(dict(of.named_parameters()), x).values()]

    def far(actual: Iterable[torch.Tensor], wanted: Iterable[torch.Tensor]) -> float:
        pairs = zip(actual, wanted, strict=True)
        return max((one.cpu() - other).abs().max().item() for one, other in pairs)

    return {
        "vmap": far([func.vmap(placed)(inputs)], [model(batch)]),
        "grad": far(slopes(placed, inputs, each=False), slopes(model, batch, each=False)),
        "grad of each": far(slopes(placed, inputs, each=True), slopes(model, batch, each=True)),
        "compiled": far([compiled(batch.to("xla"))], [model(batch)]),
    }


def wrapped() -> dict[str, Any]:
    """What becomes of a result of torch_xla's own mark_sharding."""
    mesh, values = whole(data=2, model=2), torch.arange(32.0).view(8, 4)
    marked = xs.mark_sharding(values.to("xla"), mesh.xla, ("data", "model"))
    assert type(marked) is not torch.Tensor
    sent = [returned(one) for one in (marked, marked.cpu())]
    batch = spmd.shard_batch(marked, mesh)
    return {
        "sent": [(type(one).__name__, torch.equal(one, values)) for one in sent],
        "placed": sharding.placement_of(marked).parts[1],
        "batch": (sharding.placement_of(batch).parts[1], torch.equal(batch.cpu(), values)),
    }


def half() -> tuple[str, float]:
    """LayerNorm in bfloat16: its dtype, and its largest relative error."""
    norm, x = nn.LayerNorm(64).bfloat16(), torch.randn(4, 64, dtype=torch.bfloat16)
    wanted = norm(x)
    actual = spmd.parallelize(norm, whole(model=4), {})(x.to("xla")).cpu()
    return str(actual.dtype), ((actual - wanted).abs() / (wanted.abs() + 2**-8)).max().item()
