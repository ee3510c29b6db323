"""The notebook process sees the TPU that its next launch would simulate."""

import os
import subprocess
import sys
import types

import pytest

from xla_nb.dropin import answers
from xla_nb.topology import chips

ASKED = "tpu.num_available_chips(), tpu.num_available_devices(), tpu.get_tpu_type()"


OPENED = "torch_xla._XLAC._xla_runtime_is_initialized()"


@pytest.fixture
def asking(notebook):
    notebook.ok("import torch_xla\nfrom torch_xla._internal import tpu")
    yield notebook
    notebook.ok("%xla_config reset")


def test_default_host_has_four_chips(asking):
    assert asking.value(ASKED) == "(4, 4, 'v4')"


def test_accelerator_type_sets_the_number_of_chips(asking):
    asking.ok("%xla_config simulate=v5litepod-8")
    assert asking.value(ASKED) == "(8, 8, 'v5litepod')"


def test_number_of_ranks_sets_the_number_of_devices(asking):
    asking.ok("%xla_config simulate=v5litepod-8 n=2")
    assert asking.value(ASKED) == "(8, 2, 'v5litepod')"


def test_simulated_cpu_has_no_chips(asking):
    asking.ok("%xla_config simulate=cpu")
    assert asking.value("tpu.num_available_chips()") == "0"


def test_disabled_dropin_has_no_chips(asking):
    asking.ok("%xla_config dropin=off")
    assert asking.value("tpu.num_available_chips()") == "0"
    asking.ok("%xla_config dropin=on")
    assert asking.value("tpu.num_available_chips()") == "4"


def test_jax_without_chips_does_not_change_the_answers(asking):
    """JAX sets TPU_SKIP_MDS_QUERY on import; torch_xla then reads only environment variables."""
    asking.ok("import os\nos.environ['TPU_SKIP_MDS_QUERY'] = '1'")
    assert asking.value(ASKED) == "(4, 4, 'v4')"
    asking.ok("del os.environ['TPU_SKIP_MDS_QUERY']")


def test_asking_opens_no_device(asking):
    before = asking.value(OPENED)
    asking.value(ASKED)
    assert asking.value(OPENED) == before


def test_launch_may_have_any_number_of_devices_unless_configured(asking):
    asking.ok("from xla_nb.dropin.answers import can_simulate")
    can = "[can_simulate(devices) for devices in (8, 3, 0, True, '8', [1])]"
    assert asking.value(can) == "[True, True, False, False, False, False]"
    asking.ok("%xla_config simulate=v5litepod-4")
    assert asking.value("can_simulate(8), can_simulate(4)") == "(False, True)"
    asking.ok("%xla_config simulate=None n=2")
    assert asking.value("can_simulate(8), can_simulate(2)") == "(False, False)"
    asking.ok("%xla_config on=ray n=None")
    assert asking.value("can_simulate(8)") == "False"
    asking.ok("%xla_config on=local dropin=off")
    assert asking.value("can_simulate(8)") == "False"


IMPORTED = """
import os
import xla_nb
xla_nb.install()
import torch_xla
print(os.environ["PJRT_DEVICE"])
"""


@pytest.mark.slow
def test_notebook_device_is_chosen_silently(monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=120
    )
    assert (ended.stdout, ended.stderr) == ("CPU\n", "")


@pytest.mark.parametrize(
    ("environ", "count"),
    [({"PJRT_DEVICE": "TPU"}, 0), ({}, 4)],
)
def test_other_device_choices_are_left_to_torch_xla(monkeypatch, environ, count):
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(chips, "count_chips", lambda: count)
    asked = []
    monkeypatch.setattr(answers, "_answers", lambda: Originals(asked))
    answers.select_device()
    assert asked == ["_maybe_select_default_device"]
    assert os.environ.get("PJRT_DEVICE") == environ.get("PJRT_DEVICE")


class Originals:
    def __init__(self, asked):
        self.asked = asked

    def original(self, name):
        return lambda: self.asked.append(name)


def test_repeated_dropin_wraps_the_lightning_check_once(monkeypatch):
    checked = []
    module = types.ModuleType("lightning.fabric.accelerators.xla")
    module._check_tpu_devices_valid = checked.append
    module.XLAAccelerator = type(
        "XLAAccelerator", (), dict.fromkeys(("auto_device_count", "is_available"), len)
    )
    monkeypatch.setattr(answers, "can_simulate", lambda devices: checked.append("could") or False)
    for _ in range(3):
        answers._adapt(module)
    module._check_tpu_devices_valid(8)
    assert checked == ["could", 8]
