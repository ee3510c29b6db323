"""What notebooks of Colab and Kaggle expect of their machine is there, and said once."""

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
    """A kernel that finds nothing of Colab and Kaggle in its environment."""
    kernel = Notebook(warm=warm_kernels)
    kernel.ok("%load_ext xla_nb")
    yield kernel
    kernel.close()


def test_a_cell_that_asks_for_colabs_tpu_finds_it_and_is_told_once(kaggle):
    first = kaggle.ok(ASSERTED)
    assert first.lines == [
        "Set COLAB_TPU_ADDR=127.0.0.1:8470 because this cell reads it (Colab and Kaggle define it "
        "on TPU machines). Ranks do not get it."
    ]
    assert kaggle.ok("del os.environ['COLAB_TPU_ADDR']").lines == []
    assert kaggle.ok(ASSERTED).lines == []


def test_kaggles_list_of_processes_can_be_taken_away(kaggle):
    shown = kaggle.ok("%%time\nimport os\nos.environ.pop('TPU_PROCESS_ADDRESSES')")
    assert shown.lines[0].startswith("Set TPU_PROCESS_ADDRESSES=local")
    assert kaggle.value("'TPU_PROCESS' + '_ADDRESSES' in os.environ") == "False"


def test_addresses_are_of_the_form_that_programs_parse(kaggle):
    pattern = r"grpc://(\d{1,3}(?:\.\d{1,3}){3}):8470"
    kaggle.ok(f"import os, re\naddress = re.match({pattern!r}, os.environ['TPU_NAME'])[1]")
    assert kaggle.value("address") == "'127.0.0.1'"
    assert kaggle.value("'grpc://' + os.environ['COLAB_TPU_ADDR'] == os.environ['TPU_NAME']")
    kaggle.ok("del os.environ['TPU_NAME']")


def test_a_cell_that_sets_such_a_variable_is_told_nothing(kaggle):
    assert kaggle.ok("import os\nos.environ['TPU_NAME'] = 'mine'").lines == []
    assert kaggle.value("os.environ.pop('TPU_NAME')") == "'mine'"


def test_a_program_that_asks_for_a_tpu_gets_a_simulated_one(kaggle):
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


def test_a_device_that_the_machine_asks_for_is_left(tmp_path):
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


def test_programs_still_see_that_they_are_not_on_colab(kaggle):
    kaggle.ok(
        "try:\n    import google.colab\n    found = True\nexcept ImportError:\n    found = False"
    )
    assert kaggle.value("found") == "False"


def test_all_of_it_is_gone_once_drop_in_is_off(kaggle):
    kaggle.ok("%xla_config dropin=off")
    try:
        assert kaggle.run("import os\nos.environ['CLOUD_TPU_TASK_ID']").ename == "KeyError"
    finally:
        kaggle.ok("%xla_config dropin=on")
