"""timm's models, optimizers and schedulers on ranks."""

PROGRAM = """
import timm, timm.optim, timm.scheduler, torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

generator = torch.Generator().manual_seed(0)
labels = torch.randint(0, 4, (16,), generator=generator)
images = torch.randn(16, 1, 16, 16, generator=generator) / 4 + labels[:, None, None, None]

def train(rows, device, end_step):
    torch.manual_seed(0)
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, in_chans=1, num_classes=4,
        embed_dim=16, depth=1, num_heads=2,
    ).to(device).train()
    optimizer = timm.optim.create_optimizer_v2(net, "sgd", lr=0.1, weight_decay=0.01)
    schedule = timm.scheduler.CosineLRScheduler(optimizer, t_initial=6)
    losses = []
    for step in range(6):
        optimizer.zero_grad()
        guessed = net(images[rows].to(device))
        loss = torch.nn.functional.cross_entropy(guessed, labels[rows].to(device))
        loss.backward()
        end_step(optimizer)
        schedule.step(step + 1)
        losses.append(loss.item())
    return losses

def _mp_fn(index):
    losses = train(slice(index, None, 4), xm.xla_device(), xm.optimizer_step)
    return [xm.mesh_reduce("loss", loss, lambda all: sum(all) / len(all)) for loss in losses]
"""


def test_four_ranks_train_like_one_process(notebook):
    notebook.ok(PROGRAM)
    notebook.ok("run = xmp.spawn(_mp_fn, nprocs=4)")
    notebook.ok("expected = train(slice(None), 'cpu', lambda optimizer: optimizer.step())")
    assert notebook.value("expected[-1] < expected[0]") == "True"
    near = "max(abs(a - b) for a, b in zip(run[3], expected))"
    assert float(notebook.value(near)) < 1e-3
