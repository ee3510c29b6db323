"""What the runtimes plan, and that planning needs no torch."""

import subprocess
import sys

import pytest

from xla_nb import runtimes, topology
from xla_nb.errors import UsageError
from xla_nb.runtimes import Machine, spmd, xla

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


def test_an_unknown_runtime_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="xla, spmd, torchax"):
        runtimes.named("cuda")


def test_xla_simulates_without_a_tpu():
    assert xla.plan(LAPTOP, None).ranks == xla.SIMULATED
    assert xla.plan(LAPTOP, 7).ranks == 7


def test_xla_sets_the_bounds_of_a_tpu():
    assert xla.plan(V5E, 4).sets == topology.bounds("v5litepod-8", 8, 4)


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"coords": [0, 1, 0], "core_on_chip": 1}, "xla:0 (chip 0,1,0 core 1)"),
        ({}, "xla:0"),
        ({"name": "CPU:0"}, "xla:0"),
    ],
)
def test_a_device_is_told_with_its_chip_and_core(attributes, shown):
    assert xla.described("xla:0", attributes) == shown


def test_spmd_has_as_many_virtual_devices_as_asked():
    plan = spmd.plan(LAPTOP, 6)
    assert plan.ranks == 6
    assert plan.sets == dict.fromkeys(
        ("CPU_NUM_DEVICES", "XLA_THREAD_POOL_SIZE", "PJRT_NPROC"), "6"
    )


def test_spmd_takes_all_chips_and_refuses_a_part_of_them():
    assert spmd.plan(V5E, None) == spmd.plan(V5E, 8) == runtimes.Plan(None)
    with pytest.raises(UsageError, match=r"-n 4: .*one process owns all devices.*leave -n out"):
        spmd.plan(V5E, 4)
