"""On a TPU machine a cell is stopped before it opens the device in the notebook process."""

import pytest

from tests.support.installed import need
from tests.support.kernel import COLD, Notebook

#: Makes xla_nb find four chips.
CHIPS = f"""
{COLD}
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
def machine(warm_kernels):
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(CHIPS)
    kernel.ok(ABOVE)
    yield kernel
    kernel.close()


def test_every_torch_xla_function_that_opens_the_device_is_stopped(machine):
    for opening in OPENING:
        shown = machine.run(opening)
        assert shown.ename == "UsageError", opening
        assert machine.value("is_open()") == "False", opening


def test_error_names_the_line_and_the_fix(machine):
    machine.ok("def setup():\n    return xm.xla_device()\n")
    shown = machine.run("import json\ndevice = setup()\n")
    number = shown.number - 1
    assert shown.error.startswith(
        f"UsageError: Cell In[{number}], line 2, would open the TPU in the notebook process; ranks "
        "could not use it until you restart the kernel.\n"
        "  return xm.xla_device()\nMove it into the function that ranks run."
    )


@pytest.mark.parametrize(
    "line",
    [
        "x = torch.ones(2).to('xla')",
        "x = torch.ones(2, device='xla:0')",
        "x = torch.tensor([1.0], device='xla')",
        "x = torch.arange(4, device='xla')",
        "x = torch.ones(2).new_zeros(3, device='xla')",
        "x = torch.nn.Linear(2, 1).to(settings['device'], torch.bfloat16)",
        "x = torch.ones(2).to('xla:0')",
        "x = torch.ones(2).to(Config.device)",
        "torch.set_default_device('xla'); torch.ones(2)",
        "with torch.device('xla'): x = torch.ones(2)",
        "x = moved(torch.ones(2))",
        "x = torch.as_tensor([1.0], device=torch.device('xla'))",
        "x = (lambda: torch.ones(2).to('xla'))()",
        "x = torch.vmap(lambda y: y.to('xla'))(torch.ones(2, 2))",
    ],
)
def test_line_creating_a_device_tensor_is_stopped(machine, line):
    machine.ok(
        "settings = {'device': torch.device('xla')}\nclass Config: device = 'xla'\n"
        "def moved(x):\n    return x.to(settings['device'])\n"
    )
    shown = machine.run(f"import sys\n{line}")
    machine.ok("torch.set_default_device(None)")
    assert shown.ename == "UsageError"
    if "moved" not in line:
        assert f"Cell In[{shown.number}], line 2, would open" in shown.error
        assert f"\n  {line}\n" in shown.error
    assert machine.value("is_open()") == "False"


def test_torch_works_unchanged_under_the_guard(machine):
    machine.ok(
        "f = lambda x: x.to(torch.float64) + torch.tensor(1.0)\n"
        "x = torch.ones(2)\n"
        "compiled = torch.compile(f, backend='eager', fullgraph=True)(x)\n"
        "@torch.jit.script\n"
        "def scripted(x):\n    return x.to(torch.float64) + torch.tensor(1.0)\n"
        "import pickle; same = pickle.loads(pickle.dumps(torch.tensor)) is torch.tensor"
    )
    assert machine.value("compiled.tolist(), scripted(x).tolist()") == "([2.0, 2.0], [2.0, 2.0])"
    assert machine.value("same, is_open()") == "(True, False)"


def test_script_run_by_magic_is_stopped_with_its_line(machine, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch\nx = torch.ones(2)\nx = x.to('xla')\n")
    shown = machine.run(f"%run {script}")
    assert f"{script}, line 3, would open the TPU" in shown.error
    assert "\n  x = x.to('xla')\n" in shown.error
    assert machine.value("is_open()") == "False"


def test_timed_cell_is_stopped(machine):
    shown = machine.run("%%time\nx = 1\nx = torch.ones(2).to('xla')")
    assert f"Cell In[{shown.number}], line 1, would open" in shown.error


@pytest.mark.parametrize("magic", ["%time", "%timeit -n1 -r1", "%prun"])
def test_timed_line_is_stopped(machine, magic):
    shown = machine.run(f"x = 1\n{magic} torch.ones(2).to('xla')")
    assert f"Cell In[{shown.number}], line 2, would open" in shown.error
    assert machine.value("is_open()") == "False"


def test_code_that_only_names_the_device_is_not_stopped(machine):
    machine.ok("def f(index):\n    device = torch_xla.device()\n    return torch.ones(2).to('xla')")
    machine.ok("g = lambda index: torch.ones(2, device='xla')")
    machine.ok("import functools\nmake = functools.partial(torch.ones, device='xla')")
    machine.ok("device = 'cuda' if False else 'cpu'\nx = torch.ones(2).to(device)")
    machine.ok("if False:\n    torch.ones(2).to('xla')\nx = torch.ones(2) + torch.empty(2)")
    assert machine.value("is_open()") == "False"


def test_caught_guard_error_is_still_printed(machine):
    shown = machine.ok(
        "try:\n    device = torch_xla.device()\nexcept Exception:\n    device = 'cpu'"
    )
    assert "line 2, would open the TPU" in shown.lines[0]
    assert shown.lines[-1] == "Your code caught this error and continued without the TPU."
    assert machine.ok("1").lines == []


def test_shown_guard_error_is_not_printed_again(machine, tmp_path):
    script = tmp_path / "opens.py"
    script.write_text("import torch_xla\ntorch_xla.device()\n")
    for cell in ("torch_xla.device()", f"%run {script}"):
        assert "goes on without" not in machine.run(cell).stdout


def test_library_that_opens_the_device_is_stopped(machine):
    need("accelerate")
    shown = machine.run("import accelerate\naccelerate.Accelerator()")
    assert "  accelerate.Accelerator()" in shown.error
    assert machine.value("is_open()") == "False"


@pytest.mark.leaves("processes")  # multiprocessing's resource tracker
def test_child_process_of_the_notebook_is_not_stopped(machine):
    machine.ok(
        "import multiprocessing\n"
        "def child(queue):\n"
        "    os.environ['PJRT_DEVICE'] = 'CPU'\n"
        "    queue.put(str(torch_xla.device()))\n"
        "queue = multiprocessing.Queue()\nprocess = multiprocessing.Process(target=child, "
        "args=(queue,))\nprocess.start()\nfound = queue.get(timeout=60)\nprocess.join(60)"
    )
    assert machine.value("found") == "'xla:0'"


def test_simulated_host_only_warns_once(machine):
    machine.ok("%xla_config simulate=v4-8\nos.environ['PJRT_DEVICE'] = 'CPU'")
    try:
        shown = machine.ok("x = torch.ones(2)\nnumber = torch_xla._XLAC._xla_num_devices()")
        assert (
            f"Cell In[{shown.number}], line 2, opens the device in the notebook process.\n"
            "  number = torch_xla._XLAC._xla_num_devices()\n"
        ) in shown.stdout
        assert "On a TPU this would be an error" in shown.stdout
        assert machine.ok("print(torch.ones(2).to('xla').sum().item())").stdout == "2.0\n"
    finally:
        machine.ok("%xla_config reset")
        machine.ok("os.environ['PJRT_DEVICE'] = 'TPU'")


@pytest.fixture
def openable(warm_kernels):
    """A kernel that takes its device for a TPU and can open it."""
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(CHIPS)
    kernel.ok("os.environ['PJRT_DEVICE'] = 'CPU'\nchips.choose_device = lambda *_: 'TPU'")
    yield kernel
    kernel.close()


def test_allow_comment_in_the_cell_permits_opening(openable):
    assert openable.run("torch_xla.device()").ename == "UsageError"
    openable.ok("torch_xla.device()  # xla: allow")
    openable.ok("torch_xla.device()")  # already open


@pytest.mark.slow
def test_guard_setting_permits_opening(openable):
    assert openable.run("x = torch.ones(2).to('xla')").status == "error"
    openable.ok("%xla_config guard=off")
    openable.ok("w = torch.ones(2, requires_grad=True)\nx = w.to('xla')\nx.sum().backward()")
    assert openable.value("x.device.type, w.grad.tolist()") == "('xla', [1.0, 1.0])"


def test_undetected_opening_is_reported_below_the_cell(openable):
    lines = "import threading\nt = threading.Thread(target=lambda: torch.ones(2).to('xla'))\n"
    shown = openable.ok(f"{lines}t.start(); t.join()")
    assert "This cell opened the TPU in the notebook process" in shown.stdout
    assert openable.ok("torch.ones(2).to('xla')").stdout == ""
