"""Plans of the runtimes, made without torch, and runs of each runtime."""

import ast
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from xla_nb.errors import UsageError
from xla_nb.runtimes import Machine, spmd, xla
from xla_nb.runtimes import torchax as torchax_runtime
from xla_nb.topology.chips import SIMULATED, process_bounds

V5E = Machine("TPU", 8, "v5litepod-8")
LAPTOP = Machine("CPU", 0, None)


def test_planning_imports_no_torch():
    code = (
        "import sys; from xla_nb import runtimes\n"
        "for name in runtimes.NAMES: runtimes.named(name)\n"
        "print([m for m in ('torch', 'torch_xla', 'jax', 'torchax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_xla_simulates_without_a_tpu():
    assert xla.plan(LAPTOP, None).ranks == SIMULATED
    assert xla.plan(LAPTOP, 7).ranks == 7


def test_xla_sets_the_bounds_of_a_tpu():
    assert xla.plan(V5E, 4).sets == process_bounds("v5litepod-8", 8, 4)


@pytest.mark.parametrize("runtime", [xla, torchax_runtime])
@pytest.mark.parametrize("n", [None, 8])
def test_every_host_of_several_uses_all_its_chips(runtime, n):
    assert runtime.plan(replace(V5E, hosts=2), n).sets == {}


@pytest.mark.parametrize("runtime", [xla, torchax_runtime])
def test_some_of_a_hosts_chips_are_rejected_on_several_hosts(runtime):
    message = "-n 4 .*: a run on 2 TPU hosts uses all .* v5litepod-8 has 8 ranks. Omit -n"
    with pytest.raises(UsageError, match=message):
        runtime.plan(replace(V5E, hosts=2), 4)


def test_hosts_without_a_tpu_can_have_any_number_of_ranks():
    assert xla.plan(replace(LAPTOP, hosts=2), 3).ranks == 3


def test_part_of_a_slice_and_chips_with_two_devices_can_be_rejected():
    pod, v3 = Machine("TPU", 4, "v4-32"), Machine("TPU", 4, "v3-8")
    with pytest.raises(UsageError, match="works on one host only"):
        spmd.plan(pod, None)
    with pytest.raises(UsageError, match="works on one host only"):
        torchax_runtime.plan(pod, None)
    with pytest.raises(UsageError, match="a chip of a v3-8 has two"):
        torchax_runtime.plan(v3, None)
    assert spmd.plan(v3, 8).ranks is None


def test_jax_platforms_chooses_the_platform():
    assert torchax_runtime.plan(V5E, None).ranks == 8
    machine = replace(V5E, user_env={"JAX_PLATFORMS": "cpu"})
    assert torchax_runtime.plan(machine, None).ranks == SIMULATED
    message = r"Unknown platform JAX_PLATFORMS=metal\. Choose cpu, cuda, gpu or tpu"
    with pytest.raises(UsageError, match=message):
        torchax_runtime.plan(replace(LAPTOP, env={"JAX_PLATFORMS": "metal"}), None)


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"coords": [0, 1, 0], "core_on_chip": 1}, "xla:0 (chip 0,1,0 core 1)"),
        ({}, "xla:0"),
        ({"name": "CPU:0"}, "xla:0"),
    ],
)
def test_device_is_shown_with_its_chip_and_core(attributes, shown):
    assert xla.described("xla:0", attributes) == shown


def test_n_is_the_number_of_virtual_devices_under_spmd():
    plan = spmd.plan(LAPTOP, 6)
    assert plan.ranks == 6
    six = [name for name, value in plan.sets.items() if value == "6"]
    assert six == ["CPU_NUM_DEVICES", "XLA_THREAD_POOL_SIZE", "PJRT_NPROC"]


def test_spmd_uses_all_chips_and_rejects_fewer():
    assert spmd.plan(V5E, None) == spmd.plan(V5E, 8)
    assert spmd.plan(V5E, 8).ranks is None
    with pytest.raises(UsageError, match=r"-n 4: .*one process owns all devices.*remove -n"):
        spmd.plan(V5E, 4)


def test_spmd_rejects_another_number_of_devices_in_the_environment():
    machine = replace(LAPTOP, user_env={"CPU_NUM_DEVICES": "2"})
    with pytest.raises(UsageError, match=r"--env CPU_NUM_DEVICES=2 .*Use -n"):
        spmd.plan(machine, None)


# ---------------------------------------------------------------- launches


def test_spmd_runs_one_process_with_all_devices(kernel):
    kernel.ok(
        "%%xla_spawn -n 4 --runtime spmd --view text -o devices\n"
        "import torch_xla.runtime as xr\n"
        "xr.is_spmd(), xr.global_runtime_device_count(), rank, world_size, str(device)"
    )
    assert kernel.value("devices.results") == "{0: (True, 4, 0, 1, 'xla:0')}"
    assert kernel.value("devices.state.ranks[0].devices") == str(
        ("CPU:0", "CPU:1", "CPU:2", "CPU:3")
    )
    shown = kernel.ok(
        "from xla_nb.views import observer\n"
        "print([card.device for card in observer.observe(devices).cards])"
    )
    assert shown.stdout.strip() == str(["CPU:0, CPU:1, CPU:2, CPU:3"])


def test_tensor_parallel_program_for_cuda_trains_as_in_the_notebook(kernel):
    """It uses torch names that the notebook imported before any rank existed."""
    kernel.ok(
        "import torch\n"
        "from torch import nn\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "from torch.distributed.tensor.experimental import local_map\n"
        "from torch.distributed.tensor.parallel import *\n"
        "net = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))\n"
        "x = torch.randn(4, 6, 8)\n"
        "mesh = init_device_mesh('xla', (2, 2), mesh_dim_names=('d', 't'))\n"
        "net(x).square().mean().backward()\n"
        "wanted = [p.grad.clone() for p in net.parameters()]\n"
        "net.zero_grad()"
    )
    shown = kernel.run(
        "%%xla_spawn -n 4 --runtime spmd --view text -o trained\n"
        "def train(rank):\n"
        "    plan = {'0': SequenceParallel(), '1': ColwiseParallel(input_layouts=Shard(1)),\n"
        "            '3': RowwiseParallel(output_layouts=Shard(1))}\n"
        "    model = parallelize_module(net, mesh['t'], plan)\n"
        "    model(distribute_tensor(x, mesh['d'], [Shard(0)])).square().mean().backward()\n"
        "    shards = [str(p.placements) for p in model.parameters()]\n"
        "    return [p.grad.full_tensor().cpu() for p in model.parameters()], shards"
    )
    assert shown.status == "ok", shown.error
    close = "all(torch.allclose(a, b, atol=1e-5) for a, b in zip(trained[0][0], wanted))"
    assert kernel.value(close) == "True"
    assert kernel.value("trained[0][1][2]") == "'(Shard(dim=0),)'"
    for call, words in (
        ("init_device_mesh('cuda', (4,))", "UsageError: A 'cuda' mesh needs a process"),
        ("mesh.get_group()", "UsageError: mesh.get_group() does not work under SPMD"),
        ("local_map(torch.sum, out_placements=[])", "UsageError: local_map: the function works on"),
    ):
        shown = kernel.run(f"%%xla_spawn -n 4 --runtime spmd --view text\n{call}")
        assert words in shown.error


@pytest.fixture(scope="module")
def torchax(kernel):
    """The kernel with a fork server for torchax, which stays as long as the kernel."""
    kernel.ok(
        "from xla_nb import api\n"
        "from xla_nb.runtimes import torchax as runtime\n"
        "api.engine().warm(runtime.IMPORTS)"
    )
    kernel.ok("%%xla_spawn -n 1 --runtime torchax --view none\nrank")
    return kernel


def test_torchax_ranks_form_one_jax_world(torchax):
    torchax.ok(
        "%%xla_spawn -n 3 --runtime torchax --view text -o world\n"
        "import jax, torch, torchax\n"
        "from xla_nb import torchax as xt\n"
        "def main(rank):\n"
        "    mine = xt.shard_local(torch.full((1, 2), float(rank)), xt.mesh())\n"
        "    total = float(jax.jit(lambda x: x.sum())(mine.jax()))\n"
        "    return jax.process_index(), jax.process_count(), total, torch.ones(2, device='jax')\n"
    )
    value = "[(*r[:3], type(r[3]).__name__, str(r[3].device)) for r in world.results.values()]"
    assert torchax.value(value) == str([(r, 3, 6.0, "Tensor", "cpu") for r in range(3)])


def test_killed_torchax_rank_is_named_and_does_not_abort_others(torchax):
    shown = torchax.run(
        "%%xla_spawn -n 3 --runtime torchax --view text -o broken --keep-going\n"
        "import jax, os, signal\n"
        "from xla_nb import torchax as xt\n"
        "import numpy as np\n"
        "def main(rank):\n"
        "    if rank == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    x = xt.shard_local(np.ones((1, 2)), xt.mesh())\n"
        "    float(jax.jit(lambda x: x.sum())(x))\n"
    )
    assert "Rank 1 was killed by SIGKILL" in shown.result.splitlines()[0]
    assert "SIGABRT" not in shown.stdout + shown.result
    phases = ast.literal_eval(torchax.value("[r.phase for r in broken.state.ranks.values()]"))
    assert phases[1] == "died"
    assert {phases[0], phases[2]} <= {"failed", "stopped"}


def test_rank_that_returned_without_a_collective_leads_and_is_marked(kernel):
    kernel.ok(
        "%%xla_spawn -n 3 -o left --keep-going --view text\n"
        "import torch, torch_xla, torch_xla.core.xla_model as xm\n"
        "def main(rank):\n"
        "    if rank == 1:\n"
        "        return\n"
        "    xm.all_reduce('sum', [torch.ones(2, device=torch_xla.device())])\n"
    )
    kernel.ok("from xla_nb.views.observer import observe\nseen = observe(left)")
    assert kernel.value("[card.phase for card in seen.cards]") == "['failed', 'early', 'failed']"
    told = kernel.value("seen.headline")  # of the ranks waiting when the first one failed
    assert re.match(r"'Rank 1 returned while rank(s 0, 2 were| \d was) in all_reduce \(Cell", told)
    assert told.endswith(", line 6)'")


def test_error_of_a_torchax_rank_names_the_rank_that_had_returned(torchax):
    shown = torchax.run(
        "%%xla_spawn -n 2 --runtime torchax --view text\n"
        "import jax\n"
        "from xla_nb import torchax as xt\n"
        "import numpy as np\n"
        "def main(rank):\n"
        "    if rank == 1:\n"
        "        return\n"
        "    x = xt.shard_local(np.ones((1, 2)), xt.mesh())\n"
        "    float(jax.jit(lambda x: x.sum())(x))\n"
    )
    assert "(rank 1 had already returned)" in shown.error


def test_value_that_opens_jax_before_the_ranks_exist_is_rejected(torchax):
    torchax.ok(
        "class Devices:\n"
        "    n = 0\n"
        "    def __setstate__(self, state):\n"
        "        import jax; jax.devices()\n"
        "devices_held = Devices(); devices_held.n = 1"
    )
    shown = torchax.run(
        "%%xla_spawn -n 2 --runtime torchax --view text\ndef f(rank): return devices_held.n"
    )
    assert (
        "A value from the notebook, or a module that it needs, opens JAX's devices" in shown.error
    )


def test_jax_reads_the_variables_of_each_launch(torchax):
    torchax.ok(
        "%%xla_spawn -n 1 --runtime torchax --env JAX_ENABLE_X64=1 --view none -o wide\n"
        "import jax\n"
        "jax.numpy.arange(3.0).dtype.name"
    )
    assert torchax.value("wide.results") == "{0: 'float64'}"
    torchax.ok(
        "%%xla_spawn -n 1 --runtime torchax --view none -o narrow\n"
        "import jax\n"
        "jax.numpy.arange(3.0).dtype.name"
    )
    assert torchax.value("narrow.results") == "{0: 'float32'}"


def test_module_that_the_fork_server_cannot_import_is_named(kernel):
    shown = kernel.run(
        "from types import SimpleNamespace\n"
        "from xla_nb import api\n"
        "from xla_nb.runtimes.fit import Fit\n"
        "request = SimpleNamespace(run='r', lives=False, turn=None)\n"
        "fit = Fit('CPU', 1, {}, ('no_such_module',))\n"
        "api.engine().start(request, fit, 0, lambda seconds, what: None)"
    )
    assert (
        "Cannot import the ranks' packages (ModuleNotFoundError: No module named 'no_such"
        in shown.error
    )
    assert kernel.ok("%%xla_spawn -n 2 --view text -o after\nrank").status == "ok"


@pytest.mark.slow
def test_first_backward_pass_on_many_devices_is_correct(kernel):
    shown = kernel.ok(
        "import xla_nb\n"
        "def backward(index):\n"
        "    import torch\n"
        "    w = torch.ones(3, device='xla', requires_grad=True)\n"
        "    (w * 2).sum().backward()\n"
        "    return w.grad.cpu().tolist()\n"
        "for _ in range(8):  # it once failed in one of five\n"
        "    print(xla_nb.spawn(backward, n=32, runtime='spmd', view='none').results)"
    )
    assert shown.stdout == "{0: [2.0, 2.0, 2.0]}\n" * 8
