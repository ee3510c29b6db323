"""On a TPU machine a cell is stopped before it opens the device in the notebook's own process."""

import pytest

from tests.support.kernel import Notebook

#: The machine has four chips, as far as xla_nb looks.
CHIPS = """
%load_ext xla_nb
import os, torch, torch_xla
from xla_nb.topology import chips
chips.count_chips = lambda *_: 4
os.environ["PJRT_DEVICE"] = "TPU"
is_open = torch_xla._XLAC._xla_runtime_is_initialized
"""
ABOVE = """
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr, torch_xla.distributed.spmd as xs
import torch_xla.debug.metrics as met
"""
OPENING = (
    "torch_xla.device()",
    "torch_xla.devices()",
    "torch_xla.real_devices()",
    "torch_xla.device_count()",
    "torch_xla.sync()",
    "torch_xla.manual_seed(1)",
    "torch_xla.compile(lambda: 1)()",
    "torch_xla.step().__enter__()",
    "xr.world_size()",
    "xr.global_ordinal()",
    "xr.local_ordinal()",
    "xr.process_count()",
    "xr.process_index()",
    "xr.global_device_count()",
    "xr.global_runtime_device_count()",
    "xr.addressable_device_count()",
    "xr.addressable_runtime_device_count()",
    "xr.runtime_device_attributes('xla:0')",
    "xr.global_runtime_device_attributes()",
    "xm.xla_device()",
    "xm.mark_step()",
    "xm.master_print('x')",
    "xm.is_master_ordinal()",
    "xm.get_xla_supported_devices()",
    "xm.xla_real_devices(['xla:0'])",
    "xm.xla_device_hw('xla:0')",
    "xm.get_memory_info('xla:0')",
    "xm.get_rng_state()",
    "xm.wait_device_ops()",
    "xm.rendezvous('a')",
    "xm.mesh_reduce('a', 1, sum)",
    "xm.all_reduce('sum', [torch.ones(1)])",
    "xm.save({}, '/nowhere')",
    "xm.send_cpu_data_to_device([torch.ones(1)], 'xla:0')",
    "xs.Mesh([0], (1,))",
    "met.metrics_report()",
)


@pytest.fixture(scope="module")
def machine():
    kernel = Notebook()
    kernel.ok(CHIPS)
    kernel.ok(ABOVE)
    yield kernel
    kernel.close()


def test_every_function_of_torch_xla_that_opens_it_is_stopped_before(machine):
    for opening in OPENING:
        shown = machine.run(opening)
        assert shown.ename == "UsageError", opening
        assert machine.value("is_open()") == "False", opening


def test_the_error_names_the_line_and_the_fix(machine):
    machine.ok("def setup():\n    return xm.xla_device()\n")
    shown = machine.run("import json\ndevice = setup()\n")
    number = shown.number - 1
    assert shown.error.startswith(
        f"UsageError: Cell In[{number}], line 2, is about to open the TPU in the notebook's own "
        "process: no rank could have its chips until the kernel is restarted.\n"
        "  return xm.xla_device()\nMove it into the function that ranks run."
    )


@pytest.mark.parametrize(
    "line",
    [
        "x = torch.ones(2).to('xla')",
        "x = torch.ones(2, device='xla:0')",
        "with torch.no_grad():\n    x = torch.ones(2).to(device)",
        "x = torch.nn.Linear(2, 1).to(device, torch.bfloat16)",
        "x = torch.ones(2).to(Config.device)",
        "x = torch.load('nowhere', map_location='xla:0')",
        "torch.set_default_device('xla')",
        "with torch.device('xla'):\n    x = torch.ones(2)",
    ],
)
def test_a_cell_that_moves_a_value_there_is_not_executed(machine, line):
    machine.ok("device = torch.device('xla')\nclass Config:\n    device = 'xla'")
    shown = machine.run(f"import sys\n{line}")
    assert "This cell was not executed: its line" in shown.error
    assert machine.value("is_open()") == "False"


def test_what_is_never_executed_is_not_looked_into(machine):
    machine.ok("if False:\n    torch.ones(2).to('xla')\nelse:\n    x = 1")
    assert machine.value("x, is_open()") == "(1, False)"


def test_a_timed_cell_is_looked_into_too(machine):
    shown = machine.run("%%time\nx = 1\nx = torch.ones(2).to('xla')")
    assert "its line 3 is about to open" in shown.error
    assert machine.value("is_open()") == "False"


def test_what_functions_for_ranks_say_is_left_to_them(machine):
    machine.ok("def f(index):\n    device = torch_xla.device()\n    return torch.ones(2).to('xla')")
    machine.ok("g = lambda index: torch.ones(2, device='xla')")
    assert machine.value("is_open()") == "False"


def test_a_move_is_seen_under_timing_magics(machine):
    for cell in ('%%time\ntorch.ones(1).to("xla")', '%time torch.ones(1).to("xla")'):
        assert "is about to open the TPU" in machine.run(cell).error, cell
    assert machine.value("is_open()") == "False"


def test_a_move_to_a_device_that_the_same_cell_names_is_seen(machine):
    for device in ('"xla"', 'torch.device("xla")', 'torch.device("xla", 0)'):
        shown = machine.run(f"chosen = {device}\ntorch.ones(1).to(chosen)")
        assert "its line 2 is about to open the TPU" in shown.error, device
    assert machine.value("is_open()") == "False"


def test_a_name_that_the_cell_binds_anew_is_not_taken_for_the_device(machine):
    machine.ok('device = "xla"')
    machine.ok('device = "cuda" if False else "cpu"\ntorch.ones(1).to(device)')
    machine.ok('device = "xla"')
    machine.ok('for device in ["cpu"]:\n    torch.ones(1, device=device)')
    machine.ok('device = "cpu"\nif False:\n    device = "xla"\ntorch.ones(1).to(device)')


def test_what_only_carries_the_device_is_not_stopped(machine):
    machine.ok("import functools, argparse")
    machine.ok('settings = dict(device="xla")')
    machine.ok('make = functools.partial(torch.ones, device="xla")')
    machine.ok('asked = argparse.Namespace(device="xla")')


def test_a_library_that_opens_it_is_stopped_too(machine):
    pytest.importorskip("accelerate")
    shown = machine.run("import accelerate\naccelerate.Accelerator()")
    assert "  accelerate.Accelerator()" in shown.error
    assert machine.value("is_open()") == "False"


def test_a_process_of_the_notebooks_own_is_not_stopped(machine):
    machine.ok(
        "import multiprocessing\n"
        "def child(queue):\n"
        "    os.environ['PJRT_DEVICE'] = 'CPU'\n"
        "    queue.put(str(torch_xla.device()))\n"
        "queue = multiprocessing.Queue()\nprocess = multiprocessing.Process(target=child, "
        "args=(queue,))\nprocess.start()\nfound = queue.get(timeout=60)\nprocess.join(60)"
    )
    assert machine.value("found") == "'xla:0'"


def test_a_simulated_host_is_only_told_once(machine):
    machine.ok("%xla_config simulate=v4-8\nos.environ['PJRT_DEVICE'] = 'CPU'")
    try:
        shown = machine.ok("x = torch.ones(2)\nnumber = torch_xla._XLAC._xla_num_devices()")
        assert (
            f"Cell In[{shown.number}], line 2, opens the device in the notebook's own process.\n"
            "  number = torch_xla._XLAC._xla_num_devices()\n"
        ) in shown.stdout
        assert "On a TPU it would be stopped" in shown.stdout
    finally:
        machine.ok("%xla_config reset")
        machine.ok("os.environ['PJRT_DEVICE'] = 'TPU'")


@pytest.fixture
def openable():
    """A kernel that takes its device for a TPU, and can open it."""
    kernel = Notebook()
    kernel.ok(CHIPS)
    kernel.ok("os.environ['PJRT_DEVICE'] = 'CPU'\nchips.choose_device = lambda *_: 'TPU'")
    yield kernel
    kernel.close()


def test_a_word_in_the_cell_allows_it(openable):
    assert openable.run("torch_xla.device()").ename == "UsageError"
    openable.ok("torch_xla.device()  # xla: allow")
    openable.ok("torch_xla.device()")  # it is open now


def test_a_setting_allows_it(openable):
    assert openable.run("x = torch.ones(2).to('xla')").status == "error"
    openable.ok("%xla_config guard=off")
    openable.ok("x = torch.ones(2).to('xla')")
