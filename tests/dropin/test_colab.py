"""Variables that Colab and Kaggle notebooks expect are set on demand, with one message each."""

import os
import subprocess
import sys

import pytest

from tests.support.kernel import Notebook

ASSERTED = "import os\nassert os.environ['COLAB_TPU_ADDR'], 'Make sure to select TPU'"
DEVICE = """
import os
os.environ['PJRT_DEVICE'] = 'TPU'
import torch_xla.distributed.xla_multiprocessing as xmp
run = xmp.spawn(lambda index: os.environ['PJRT_DEVICE'], nprocs=2)
"""


@pytest.fixture(scope="module")
def kaggle(warm_kernels):
    """A kernel without variables of Colab and Kaggle in its environment."""
    kernel = Notebook(warm=warm_kernels)
    kernel.ok("%load_ext xla_nb")
    yield kernel
    kernel.close()


def test_colab_tpu_address_is_set_on_read_and_reported_once(kaggle):
    first = kaggle.ok(ASSERTED)
    assert first.lines == [
        "Set COLAB_TPU_ADDR=127.0.0.1:8470 because this cell reads it (Colab and Kaggle define it "
        "on TPU machines). Ranks do not get it."
    ]
    assert kaggle.ok("del os.environ['COLAB_TPU_ADDR']").lines == []
    assert kaggle.ok(ASSERTED).lines == []


def test_kaggle_process_addresses_can_be_removed(kaggle):
    shown = kaggle.ok("%%time\nimport os\nos.environ.pop('TPU_PROCESS_ADDRESSES')")
    assert shown.lines[0].startswith("Set TPU_PROCESS_ADDRESSES=local")
    assert kaggle.value("'TPU_PROCESS' + '_ADDRESSES' in os.environ") == "False"


def test_addresses_have_the_format_that_programs_parse(kaggle):
    pattern = r"grpc://(\d{1,3}(?:\.\d{1,3}){3}):8470"
    kaggle.ok(f"import os, re\naddress = re.match({pattern!r}, os.environ['TPU_NAME'])[1]")
    assert kaggle.value("address") == "'127.0.0.1'"
    assert kaggle.value("'grpc://' + os.environ['COLAB_TPU_ADDR'] == os.environ['TPU_NAME']")
    kaggle.ok("del os.environ['TPU_NAME']")


def test_setting_such_a_variable_prints_nothing(kaggle):
    assert kaggle.ok("import os\nos.environ['TPU_NAME'] = 'mine'").lines == []
    assert kaggle.value("os.environ.pop('TPU_NAME')") == "'mine'"


def test_program_requesting_a_tpu_gets_a_simulated_tpu(kaggle):
    shown = kaggle.ok(DEVICE)
    assert shown.lines[0].startswith("Ignoring PJRT_DEVICE=TPU: this machine has no TPU chips")
    assert kaggle.value("run.results") == "{0: 'TPU', 1: 'TPU'}"
    assert not any("PJRT_DEVICE" in line for line in kaggle.ok(DEVICE).lines)


IN_IPYTHON = """
get_ipython().run_line_magic('load_ext', 'xla_nb')
get_ipython().run_cell('1')
import os
print('is', os.environ['PJRT_DEVICE'])
"""


def test_device_set_by_the_machine_is_kept(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "-c", IN_IPYTHON],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PJRT_DEVICE": "TPU", "IPYTHONDIR": str(tmp_path)},
    )
    assert "is TPU" in ran.stdout
    assert "taken back" not in ran.stdout


def test_google_colab_is_still_not_importable(kaggle):
    kaggle.ok(
        "try:\n    import google.colab\n    found = True\nexcept ImportError:\n    found = False"
    )
    assert kaggle.value("found") == "False"


def test_disabled_dropin_sets_no_variables(kaggle):
    kaggle.ok("%xla_config dropin=off")
    try:
        assert kaggle.run("import os\nos.environ['CLOUD_TPU_TASK_ID']").ename == "KeyError"
    finally:
        kaggle.ok("%xla_config dropin=on")
