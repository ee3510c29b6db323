"""torchmetrics on ranks: in a process group, metrics cover the data of all ranks."""

PROGRAM = """
import torch, torch_xla, torchmetrics
import torch.distributed as dist
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp

generator = torch.Generator().manual_seed(0)
guesses = torch.randn(64, 3, generator=generator)
labels = torch.randint(0, 3, (64,), generator=generator)

def metrics(index, starts_group):
    device = torch_xla.device()
    if starts_group:
        dist.init_process_group("xla", init_method="xla://")
    kinds = torchmetrics.classification
    found = torchmetrics.MetricCollection(
        [kinds.MulticlassAccuracy(3, average="micro"), kinds.MulticlassConfusionMatrix(3)]
    ).to(device)
    mean, cat = torchmetrics.MeanMetric().to(device), torchmetrics.CatMetric().to(device)
    for at in range(index * 16, index * 16 + 16, 8):
        some = slice(at, at + 8)
        found.update(guesses[some].to(device), labels[some].to(device))
        mean.update(guesses[some].to(device))
        cat.update(labels[some].float().to(device))
    values = {name: value.cpu() for name, value in found.compute().items()}
    return values, mean.compute().item(), cat.compute().cpu()

def reference(part):
    accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    table = torchmetrics.classification.MulticlassConfusionMatrix(3)
    return accuracy(guesses[part], labels[part]), table(guesses[part], labels[part])
"""
AGREES = (
    "all(torch.allclose(run[rank][0]['MulticlassAccuracy'], reference({part})[0])"
    " and torch.equal(run[rank][0]['MulticlassConfusionMatrix'], reference({part})[1])"
    " and abs(run[rank][1] - guesses[{part}].mean().item()) < 1e-6"
    " and torch.equal(run[rank][2].long(), labels[{part}]) for rank in range(4))"
)


def test_metrics_in_a_process_group_cover_all_ranks(notebook):
    notebook.ok(PROGRAM)
    notebook.ok("run = xmp.spawn(metrics, args=(True,), nprocs=4)")
    assert notebook.value(AGREES.format(part="slice(None)")) == "True"


def test_metrics_without_a_process_group_cover_one_rank_as_on_a_tpu(notebook):
    notebook.ok("run = xmp.spawn(metrics, args=(False,), nprocs=4)")
    assert notebook.value(AGREES.format(part="slice(rank * 16, rank * 16 + 16)")) == "True"
