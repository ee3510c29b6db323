"""Launchers called on ranks are refused by name; a launch of one process runs in the notebook."""

import pytest

from tests.support.installed import need
from tests.support.kernel import COLD, Notebook

ABOVE = """
import torch, torch_xla, xla_nb
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla._internal import pjrt
def inner(index=0): return index
"""
REMOVE = "`{}` already launches this cell. Remove the magic, or the "
CALLED = "A rank cannot start ranks, but this one called {}. Launch from the notebook, not from "


@pytest.fixture
def cells(notebook):
    notebook.ok(ABOVE)
    yield notebook
    notebook.run("%xla_shutdown")


LAUNCHES = {
    "xmp.spawn(inner)": "xmp.spawn",
    "xmp.spawn(inner, nprocs=2)": "xmp.spawn",
    "xmp.spawn(inner, nprocs=1)": "xmp.spawn",
    "xmp.spawn(inner, start_method='fork')": "xmp.spawn",
    "pjrt.run_multiprocess(inner)": "xmp.spawn",
    "torch_xla.launch(inner)": "torch_xla.launch",
    "torch_xla.launch(inner, debug_single_process=True)": "torch_xla.launch",
    "xla_nb.spawn(inner)": "xla_nb.spawn",
    "xla_nb.ranks(n=2)": "xla_nb.ranks",
}
TRIED = """
def tried(rank):
    said = []
    for call in {calls}:
        try:
            said.append(call())
        except Exception as error:
            said.append(f"{{type(error).__name__}}: {{error}}")
    return said
said = xmp.spawn(tried, nprocs=2)[1]
"""


def test_every_launcher_is_refused_on_a_rank(cells):
    calls = ", ".join(f"lambda: {call}" for call in LAUNCHES)
    cells.ok(TRIED.format(calls=f"[{calls}]"))
    for number, launcher in enumerate(LAUNCHES.values()):
        assert CALLED.format(launcher) in cells.value(f"said[{number}]"), launcher


@pytest.mark.parametrize("runtime", ["xla", "spmd"])
@pytest.mark.parametrize("call", ["xmp.spawn(inner, nprocs=2)", "torch_xla.launch(inner)"])
def test_launcher_call_below_the_spawn_magic_is_refused(cells, call, runtime):
    shown = cells.run(f"%%xla_spawn -n 2 --runtime {runtime}\n{call}")
    assert REMOVE.format("%%xla_spawn") + f"call to {call.partition('(')[0]}." in shown.error
    assert f"Cell In[{shown.number}], line 2" in shown.error


def test_launcher_call_below_the_live_magic_is_refused(cells):
    shown = cells.run("%%xla\nxmp.spawn(inner, nprocs=2)")
    assert REMOVE.format("%%xla") in shown.error


@pytest.mark.parametrize(
    "call",
    [
        "xmp.spawn(f, args=(FLAGS,), nprocs=2)",
        "if __name__ == '__main__':\n    xmp.spawn(f, args=(FLAGS,), nprocs=2)",
        "from accelerate import notebook_launcher as go\ngo(f, (1, FLAGS))",
    ],
)
def test_published_program_below_the_magic_launches_once(cells, call):
    if "accelerate" in call:
        need("accelerate")
    cells.ok("FLAGS = {'lr': 0.1}")
    cell = f"def f(rank=-1, flags=None): print('called', rank, len(flags))\n{call}"
    shown = cells.ok(f"%%xla_spawn -n 2 --view text\n{cell}")
    assert sum("called" in line for line in shown.lines) == 2
    assert "%%xla_spawn launched nothing: the cell has already launched a run." in shown.lines


def test_library_that_launches_is_refused_in_a_launched_function(cells, tmp_path):
    tmp_path.joinpath("self_launching.py").write_text(
        "import xla_nb\nxla_nb.install()\n"
        "from torch_xla.distributed.xla_multiprocessing import spawn\n"
        "def fit(f): return spawn(f, args=(), start_method='fork', join=False)\n"
    )
    cells.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    cells.ok("def outer(rank):\n    import self_launching\n    return self_launching.fit(inner)")
    shown = cells.run("xmp.spawn(outer, nprocs=2)")
    assert CALLED.format("xmp.spawn") in shown.error
    assert f"Cell In[{shown.number - 1}], line 3" in shown.error


ACCELERATED = """
from accelerate import notebook_launcher
def told(): print("called")
def launches(rank): notebook_launcher(told, num_processes={})
"""


def test_notebook_launcher_is_refused_on_a_rank(cells):
    need("accelerate")
    cells.ok(ACCELERATED.format(2))
    shown = cells.run("xmp.spawn(launches, nprocs=2)")
    assert CALLED.format("notebook_launcher") in shown.error


def test_notebook_launcher_with_one_process_runs_on_the_rank(cells):
    need("accelerate")
    cells.ok(ACCELERATED.format(1))
    shown = cells.ok("xmp.spawn(launches, nprocs=2)")
    assert {"[0] called", "[1] called"} <= {*shown.lines}


def test_ranks_can_still_fork_helpers(cells):
    cells.ok(
        "def pooled(rank):\n"
        "    import multiprocessing as mp\n"
        "    with mp.get_context('fork').Pool(1) as pool: return pool.apply(abs, (-rank,))"
    )
    assert cells.value("dict(xmp.spawn(pooled, nprocs=2))") == "{0: 0, 1: 1}"


# ---------------------------------------------------------------- launches of one process


ONE = """
model, history = torch.nn.Linear(1, 1), []
with torch.no_grad(): model.weight.fill_(1.0)
def train(index=0, by=2):
    history.append(0.5)
    with torch.no_grad(): model.weight.mul_(by)
"""


@pytest.fixture(scope="module")
def trained(warm_kernels):
    """A separate kernel, because the calls open its device."""
    kernel = Notebook(warm=warm_kernels)
    kernel.ok("%load_ext xla_nb")
    kernel.ok(ABOVE + ONE)
    yield kernel
    kernel.close()


@pytest.mark.parametrize(
    "call",
    [
        "xmp.spawn(train, nprocs=1)",
        "xmp.spawn(train, args=(2,), nprocs=1, join=False, start_method='fork')",
        "torch_xla.launch(train, debug_single_process=True)",
        "torch_xla.launch(train, args=(2,), debug_single_process=True)",
        "pjrt.spawn(train, nprocs=1)",
        "notebook_launcher(train, num_processes=1)",
        "notebook_launcher(train, (0, 2), num_processes=1, mixed_precision='bf16')",
    ],
)
def test_launch_of_one_process_trains_the_notebooks_model(trained, call):
    if "notebook_launcher" in call:
        need("accelerate")
        trained.ok("from accelerate import notebook_launcher")
    trained.ok(ONE)
    shown = trained.ok(f"returned = {call}\nprint(returned, history, model.weight.item())")
    assert shown.lines[-1] == "None [0.5] 2.0"
    assert not shown.stderr
    assert "opens the device" not in shown.stdout


def test_launch_after_a_one_process_launch_has_all_ranks(trained):
    trained.ok("xmp.spawn(train, nprocs=1)")
    shown = trained.ok("run = xmp.spawn(lambda index: index, nprocs=4)")
    assert trained.value("run.results") == "{0: 0, 1: 1, 2: 2, 3: 3}"
    assert not shown.stderr


def test_error_in_a_one_process_launch_is_raised_unchanged(trained):
    shown = trained.run("def fails(index): raise ValueError('boom')\nxmp.spawn(fails, nprocs=1)")
    assert (shown.ename, "boom" in shown.error) == ("ValueError", True)


CHIPS = f"""
{COLD}
import os, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from xla_nb.topology import chips
chips.count_chips = lambda *_: 4
os.environ["PJRT_DEVICE"] = "TPU"
"""
#: There is no libtpu here: xla_nb takes the machine for a TPU, torch_xla creates its CPU client.
MOCKED = """
from xla_nb.dropin import answers
answers.wish = lambda: None
os.environ["PJRT_DEVICE"] = "CPU"
def opens(index=0):
    print("open", torch_xla._XLAC._xla_runtime_is_initialized(), torch_xla.device())
"""


@pytest.fixture
def machine(warm_kernels):
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(CHIPS)
    yield kernel
    kernel.close()


def test_one_process_launch_on_a_tpu_opens_the_chips_and_warns_once(machine):
    assert "would open the TPU" in machine.run("torch_xla.device()").error
    machine.ok(MOCKED)
    shown = machine.ok("xmp.spawn(opens, nprocs=1)")
    assert shown.lines == [
        "xmp.spawn runs the function in the notebook process, which now holds the TPU; ranks "
        "cannot use it until you restart the kernel.",
        "open True xla:0",
    ]
    again = machine.ok("torch_xla.launch(opens, debug_single_process=True)")
    assert again.lines == ["open True xla:0"]
