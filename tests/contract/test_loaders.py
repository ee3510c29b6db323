"""An error in a dataset ends the loop that reads it, whichever loader prefetches it."""

from __future__ import annotations

from tests.support.kernel import Notebook

DATA = """
import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from torch.utils.data import DataLoader
class Images(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: raise FileNotFoundError(f"img_{i}.jpg")
        return torch.full((2,), float(i))
"""


def test_device_loader_raises_the_datasets_error(notebook: Notebook) -> None:
    notebook.ok(DATA)
    shown = notebook.run(
        "def train(rank):\n"
        "    device = xm.xla_device()\n"
        "    return sum(len(x) for x in pl.MpDeviceLoader(DataLoader(Images(), 2), device))\n"
        "xmp.spawn(train, nprocs=2)"
    )
    assert "Both ranks failed (rank " in shown.error
    assert ", line 7: FileNotFoundError: img_5.jpg" in shown.error


def test_key_error_in_a_loader_worker_shows_the_workers_traceback(
    notebook: Notebook,
) -> None:
    notebook.ok(DATA)
    notebook.ok("class Rows(Images):\n    def __getitem__(self, i): return {'image': i}['label']")
    shown = notebook.run(
        "def train(rank):\n"
        "    for x in DataLoader(Rows(), 2, num_workers=1): pass\n"
        "xmp.spawn(train, nprocs=2)"
    )
    told = "line 2: KeyError: 'label' (Caught KeyError in DataLoader worker process 0)"
    assert told in shown.error
    assert "{'image': i}['label']" in shown.text + shown.error


def test_rank_with_a_dataset_error_is_named_as_failed(notebook: Notebook) -> None:
    notebook.ok(DATA)
    shown = notebook.run(
        "def train(rank):\n"
        "    data = Images() if rank == 1 else [torch.zeros(2)] * 8\n"
        "    for x in pl.MpDeviceLoader(DataLoader(data, 2), xm.xla_device()):\n"
        "        xm.all_reduce('sum', x)\n"
        "xmp.spawn(train, nprocs=2)"
    )
    assert "Rank 1 failed at " in shown.error
    assert "FileNotFoundError: img_5.jpg; 1 other failed because of it" in shown.error


def test_loader_that_cannot_start_fails_instead_of_hanging(notebook: Notebook) -> None:
    notebook.ok(DATA)
    shown = notebook.run(
        "def train(rank):\n"
        "    cannot = DataLoader(Images(), 2, num_workers=1, collate_fn=lambda b: b,\n"
        "                        multiprocessing_context='spawn')\n"
        "    for x in pl.MpDeviceLoader(cannot, xm.xla_device()): pass\n"
        "xmp.spawn(train, nprocs=2)"
    )
    assert "train.<locals>.<lambda>" in shown.error
