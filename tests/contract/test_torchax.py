"""`--runtime torchax` with various programs and the installed versions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import Notebook
from xla_nb.errors import LaunchError
from xla_nb.runtimes import torchax

TRAINER = """
import torch

def train(rank):
    weights = torch.ones(2, 2).to("jax")
    return (weights @ weights).sum().item() + rank

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, number):
        return torch.full((2,), float(number))

def load(rank):
    batches = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)
    return [batch.to("jax").sum().item() for batch in batches]

def teach(rank):
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    net(torch.ones(4, 3)).sum().backward()
    return net.weight.grad.tolist(), str(net.weight.device)
"""


@pytest.fixture(scope="module")
def trainer(kernel: Notebook, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The kernel with an own module of functions and a fork server that lives as long."""
    try:
        torchax.check_versions()
    except LaunchError as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("own")
    Path(folder, "own_trainer.py").write_text(TRAINER)
    kernel.ok(f"import sys; sys.path.insert(0, {str(folder)!r})\nimport own_trainer, xla_nb")
    kernel.ok("%%xla_spawn -n 1 --runtime torchax --view none\nrank", timeout=300)
    yield kernel
    kernel.ok("sys.path.pop(0)")


def launched(trainer: Notebook, function: str) -> str:
    trainer.ok(f"tried = xla_nb.spawn(own_trainer.{function}, n=2, runtime='torchax', timeout=60)")
    return trainer.value("tried.results")


def test_module_function_computes_on_the_jax_device(trainer: Notebook) -> None:
    assert launched(trainer, "train") == "{0: 8.0, 1: 9.0}"


def test_dataloader_workers_compute_with_torch(trainer: Notebook) -> None:
    assert launched(trainer, "load") == "{0: [2.0, 10.0], 1: [2.0, 10.0]}"


def test_torch_on_the_cpu_still_computes_gradients(trainer: Notebook) -> None:
    each = "([[4.0, 4.0, 4.0]], 'cpu')"
    assert launched(trainer, "teach") == f"{{0: {each}, 1: {each}}}"


def test_pure_jax_program_runs(trainer: Notebook) -> None:
    trainer.ok(
        "%%xla_spawn -n 2 --runtime torchax -o pure\n"
        "import jax.numpy as jnp\n"
        "def f(rank):\n    return float(jnp.ones(3).sum()) + rank"
    )
    assert trainer.value("pure.results") == "{0: 3.0, 1: 4.0}"


def test_torchax_ranks_do_not_import_torch_xla(trainer: Notebook) -> None:
    trainer.ok(
        "%%xla_spawn -n 1 --runtime torchax -o seen\n"
        "import sys\nsorted({'torch_xla', '_XLAC'} & sys.modules.keys())"
    )
    assert trainer.value("seen.results") == "{0: []}"


def test_jax_extra_does_not_install_torch_xla() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [name.split(">")[0].split("=")[0] for name in project["optional-dependencies"]["jax"]]
    assert names == ["torch", "torchax", "jax", "numpy"]
