"""An `Accelerator` created in the notebook assumes a single process, so it is not sent to ranks."""

import pytest

from tests.support.installed import need
from tests.support.kernel import COLD, Notebook

need("accelerate", whole_file=True)

ABOVE = """
import torch, torch_xla, xla_nb
import torch_xla.distributed.xla_multiprocessing as xmp
from accelerate import Accelerator, PartialState, notebook_launcher
from accelerate.state import GradientState
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(16.0))
"""
MADE = """
accelerator = Accelerator()
loader = accelerator.prepare(DataLoader(data, batch_size=4))
scheduler = accelerator.prepare(torch.optim.lr_scheduler.ConstantLR(
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)
))
partial, gradients = PartialState(), GradientState()
class Trainer:
    def __init__(self): self.own = Accelerator()
    def fit(self, index): return self.own.num_processes
trainer = Trainer()
"""
#: The message of accelerate's own launchers.
WORDS = (
    "To launch a multi-device training from your notebook, the `Accelerator` should only be "
    "initialized inside your training function"
)


@pytest.fixture(scope="module")
def stale(warm_kernels):
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(COLD + ABOVE)
    kernel.ok(MADE)
    yield kernel
    kernel.close()


@pytest.mark.slow
def test_message_still_matches_accelerate(stale):
    stale.ok("import inspect, accelerate.launchers as own\nsource = inspect.getsource(own)")
    stale.ok("source = ' '.join(source.replace('\"', ' ').split())")
    assert stale.value(f"{WORDS!r} in source") == "True"


def test_notebook_launcher_refuses_like_the_original(stale):
    shown = stale.run("notebook_launcher(lambda: 1, num_processes=2)")
    assert f"{WORDS}. Restart your notebook" in shown.error


@pytest.mark.parametrize(
    ("launch", "name"),
    [
        ("xmp.spawn(lambda index: accelerator.num_processes, nprocs=2)", "accelerator"),
        ("torch_xla.launch(lambda index: [*loader])", "loader"),
        ("xla_nb.spawn(lambda index: scheduler.step(), n=2)", "scheduler"),
        ("xmp.spawn(lambda index: partial.num_processes, nprocs=2)", "partial"),
        ("xmp.spawn(lambda index: gradients.sync_gradients, nprocs=2)", "gradients"),
        ("xmp.spawn(lambda index: trainer.fit(index), nprocs=2)", "trainer"),
        ("xmp.spawn(lambda index, given: 1, args=(accelerator,), nprocs=2)", "accelerator"),
        ("%%xla_spawn -n 2\nprint(accelerator.num_processes)", "accelerator"),
        ("%%xla_spawn -n 2\ndef f(rank): return accelerator.num_processes", "accelerator"),
    ],
)
def test_launch_with_accelerate_objects_of_the_notebook_names_them(stale, launch, name):
    shown = stale.run(launch)
    assert f"Cannot send `{name}`" in shown.error
    assert WORDS in shown.error
    assert "Nothing was run on ranks." in shown.error


def test_accelerator_is_not_sent_to_live_ranks(stale):
    shown = stale.run("%%xla\naccelerator.num_processes")
    assert "Cannot send `accelerator`" in shown.error
    assert WORDS in shown.error


@pytest.mark.slow
@pytest.mark.leaves("processes")  # the fork server lives as long as the kernel
def test_accelerator_created_on_ranks_spans_all_ranks(stale):
    stale.ok("del api.engine().warm")  # set by COLD
    stale.ok(
        "def world(index):\n"
        "    accelerator = Accelerator()\n"
        "    mine = accelerator.prepare(DataLoader(data, batch_size=4))\n"
        "    return accelerator.num_processes, accelerator.process_index, len([*mine])\n"
        "run = xmp.spawn(world, nprocs=4)"
    )
    assert stale.value("dict(run)") == str({rank: (4, rank, 1) for rank in range(4)})
