"""torch.distributed.checkpoint and torch_xla's FSDP in a notebook's training."""

import pytest

PROGRAM = """
import torch, torch_xla
import torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch_xla.core.xla_model as xm, torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
from torch import nn
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP

generator = torch.Generator().manual_seed(1)
x = torch.randn(32, 8, generator=generator)
y = x.sum(1, keepdim=True)

def train(wrap, rows, device, end_step):
    torch.manual_seed(0)
    net = wrap(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x[rows].to(device)), y[rows].to(device))
        loss.backward()
        end_step(optimizer)
        torch_xla.sync()
    return net, loss.item()

plain = lambda net: net
net, expected = train(plain, slice(None), "cpu", lambda optimizer: optimizer.step())
"""
CHECKPOINT = """
def _mp_fn(index, folder):
    dist.init_process_group("xla", init_method="xla://")
    trained, loss = train(plain, slice(index, None, 4), torch_xla.device(), xm.optimizer_step)
    group = dist.new_group(backend="gloo")
    state = {name: value.cpu() for name, value in trained.state_dict().items()}
    dcp.save({"model": state}, checkpoint_id=folder, process_group=group)
    loaded = {"model": {name: torch.zeros_like(value) for name, value in state.items()}}
    dcp.load(loaded, checkpoint_id=folder, process_group=group)
    return loaded["model"]
"""


@pytest.fixture(scope="module")
def trained(notebook):
    notebook.ok(PROGRAM)
    return notebook


@pytest.mark.slow
def test_ranks_save_one_checkpoint_and_each_loads_it(trained, tmp_path):
    trained.ok(CHECKPOINT)
    trained.ok(f"run = xmp.spawn(_mp_fn, args=({str(tmp_path)!r},), nprocs=4)")
    near = "torch.allclose(run[3][name], value, atol=1e-5)"
    assert trained.value(f"all({near} for name, value in net.state_dict().items())") == "True"
    # the notebook loads it too, without ranks
    trained.ok(
        "model = {'model': {name: torch.zeros_like(v) for name, v in net.state_dict().items()}}\n"
        f"dcp.load(model, checkpoint_id={str(tmp_path)!r}, no_dist=True)"
    )
    assert trained.value("torch.equal(model['model']['0.weight'], run[0]['0.weight'])") == "True"


@pytest.mark.slow
def test_fsdp_model_trains_like_an_unsharded_one(trained):
    trained.ok(
        "def sharded(index):\n"
        "    net, loss = train(FSDP, slice(index, None, 4), torch_xla.device(),\n"
        "                      lambda optimizer: optimizer.step())\n"
        "    mean = xm.mesh_reduce('loss', loss, lambda all: sum(all) / len(all))\n"
        "    return mean\n"
        "run = xmp.spawn(sharded, nprocs=4)"
    )
    assert trained.value("abs(run[2] - expected) < 1e-5") == "True"
