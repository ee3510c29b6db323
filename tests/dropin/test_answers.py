"""What the notebook's process is told of the TPU that its next launch would simulate."""

import pytest

ASKED = "tpu.num_available_chips(), tpu.num_available_devices(), tpu.get_tpu_type()"


OPENED = "torch_xla._XLAC._xla_runtime_is_initialized()"


@pytest.fixture
def asking(notebook):
    notebook.ok("import torch_xla\nfrom torch_xla._internal import tpu")
    yield notebook
    notebook.ok("%xla_config reset")


def test_the_default_host_has_four_chips(asking):
    assert asking.value(ASKED) == "(4, 4, 'v4')"


def test_a_type_has_its_own_chips(asking):
    asking.ok("%xla_config simulate=v5litepod-8")
    assert asking.value(ASKED) == "(8, 8, 'v5litepod')"


def test_a_launch_of_fewer_ranks_has_as_many_devices(asking):
    asking.ok("%xla_config simulate=v5litepod-8 n=2")
    assert asking.value(ASKED) == "(8, 2, 'v5litepod')"


def test_there_is_no_tpu_for_ranks_that_are_told_of_a_cpu(asking):
    asking.ok("%xla_config simulate=cpu")
    assert asking.value("tpu.num_available_chips()") == "0"


def test_there_is_none_once_drop_in_is_off(asking):
    asking.ok("%xla_config dropin=off")
    assert asking.value("tpu.num_available_chips()") == "0"
    asking.ok("%xla_config dropin=on")
    assert asking.value("tpu.num_available_chips()") == "4"


def test_jax_that_finds_no_chips_takes_no_answer_away(asking):
    """It sets TPU_SKIP_MDS_QUERY while it is imported; torch_xla then reads variables alone."""
    asking.ok("import os\nos.environ['TPU_SKIP_MDS_QUERY'] = '1'")
    assert asking.value(ASKED) == "(4, 4, 'v4')"
    asking.ok("del os.environ['TPU_SKIP_MDS_QUERY']")


def test_asking_opens_no_device(asking):
    before = asking.value(OPENED)
    asking.value(ASKED)
    assert asking.value(OPENED) == before
