"""What notebooks of Colab and Kaggle expect of their machine is there, and said once."""

import base64
import io
import os
import subprocess
import sys
from importlib import metadata

import pytest

from tests.support.kernel import Notebook

ASSERTED = "import os\nassert os.environ['COLAB_TPU_ADDR'], 'Make sure to select TPU'"
DEVICE = """
import os
os.environ['PJRT_DEVICE'] = 'TPU'
import torch_xla.distributed.xla_multiprocessing as xmp
run = xmp.spawn(lambda index: os.environ['PJRT_DEVICE'], nprocs=2)
"""


#: Installs nothing.
SAYS = "#!/bin/sh\necho would $*\n"


@pytest.fixture(scope="module")
def kaggle(tmp_path_factory):
    """A kernel that finds nothing of Colab and Kaggle in its environment, and no true pip."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("pip", "pip3.11", "python"):
        (folder / name).write_text(SAYS)
        (folder / name).chmod(0o755)
    kernel = Notebook(PATH=f"{folder}:{os.environ['PATH']}")
    kernel.ok("%load_ext xla_nb")
    yield kernel
    kernel.close()


def test_a_cell_that_asks_for_colabs_tpu_finds_it_and_is_told_once(kaggle):
    first = kaggle.ok(ASSERTED)
    assert first.lines == [
        "COLAB_TPU_ADDR=127.0.0.1:8470 is set, which this cell asks for: TPU machines of Colab or "
        "Kaggle have it. Ranks do without."
    ]
    assert kaggle.ok("del os.environ['COLAB_TPU_ADDR']").lines == []
    assert kaggle.ok(ASSERTED).lines == []


def test_kaggles_list_of_processes_can_be_taken_away(kaggle):
    shown = kaggle.ok("%%time\nimport os\nos.environ.pop('TPU_PROCESS_ADDRESSES')")
    assert shown.lines[0].startswith("TPU_PROCESS_ADDRESSES=local is set")
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
    assert shown.lines[0].startswith("PJRT_DEVICE=TPU is taken back: this machine has no TPU chips")
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


def test_an_image_of_opencv_is_displayed_in_its_colours(kaggle):
    pytest.importorskip("PIL")
    shown = kaggle.ok(
        "from google.colab.patches import cv2_imshow\nimport numpy as np\n"
        "cv2_imshow(np.array([[[255, 0, 300], [0, 7, 0]]]))"
    )
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(shown.data["image/png"])))
    assert [image.getpixel((x, 0)) for x in range(2)] == [(255, 0, 255), (0, 7, 0)]


def test_programs_still_see_that_they_are_not_on_colab(kaggle):
    kaggle.ok(
        "try:\n    import google.colab\n    found = True\nexcept ImportError:\n    found = False"
    )
    assert kaggle.value("found") == "False"


HERE = metadata.version("torch"), metadata.version("torch_xla")
WHEEL = "https://x.y/torch_xla-1.9-cp37-cp37m-linux_x86_64.whl"
PAIR = "-q 'torch~=2.6.0' 'torch_xla[tpu]~=2.6.0' -f https://x.y/libtpu.html"
INSTALLS = {
    f"pip install cloud-tpu-client==0.10 {WHEEL}": f"install torch_xla 1.9 in place of {HERE[1]}",
    f"python -m pip install {PAIR}": f"install torch ~=2.6.0 in place of {HERE[0]} and "
    f"install torch_xla ~=2.6.0 in place of {HERE[1]}",
    "pip3.11 -q install Torch==1.0": f"install torch ==1.0 in place of {HERE[0]}",
    "pip install --pre torch torchvision": f"install torch anew in place of {HERE[0]}",
    "pip uninstall -y torch torchvision": f"take away torch {HERE[0]}",
    "python pytorch-xla-env-setup.py --version nightly": "install a torch_xla of its own choice",
}


@pytest.mark.parametrize(("command", "replaced"), INSTALLS.items())
def test_what_another_torch_would_replace_is_said_and_can_be_skipped(kaggle, command, replaced):
    shown = kaggle.ok(f"!{command}")
    assert f"This line is to {replaced};" in shown.stdout
    assert "\nwould " in shown.stdout
    kaggle.ok("%xla_config setup_cells=skip")
    shown = kaggle.ok(f"!{command}")
    assert shown.lines == [f"Skipped, since it would {replaced}: {command}"]
    kaggle.ok("%xla_config reset")


@pytest.mark.parametrize(
    "line", ['!pip install "$WHEEL"', "!pip install torch=={V}", "%pip install $P"]
)
def test_what_a_line_installs_is_read_with_its_variables(kaggle, line):
    kaggle.ok(f"WHEEL, V, P = {WHEEL!r}, '1.0', 'torch==1.0'")
    assert "This line is to install torch" in kaggle.ok(line).stdout


IN_A_FUNCTION = """
def shown(version, command="own", system="own", self="own"):
    !echo $version {version} $command $system $self '$HOME' $$HOME $command
shown(1.5)
"""


def test_a_shell_line_has_the_variables_of_the_function_that_it_is_in(kaggle):
    shown = kaggle.ok(IN_A_FUNCTION)
    assert shown.stdout.strip() == f"1.5 1.5 own own own $HOME {os.environ['HOME']} own"
    shown = kaggle.ok("command, script = 'own', 'too'\n!echo $command $script {command}")
    assert shown.stdout.strip() == "own too own"


def test_packages_that_replace_nothing_are_installed_without_a_word(kaggle):
    shown = kaggle.ok("!pip install torch_xla transformers 'torch>=2.0' torchmetrics==0.1")
    assert shown.stdout.startswith("would install")
    assert kaggle.ok("!echo pip install torch==1.0").stdout.startswith("pip install")


def test_a_script_that_launches_in_a_process_of_its_own_is_told_once_what_to_do(kaggle, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch_xla\ntorch_xla.launch(print)\n")
    shown = kaggle.ok(f"!python -u {script} --epochs 1")
    assert shown.lines[0].startswith(f"`{script}` runs in a process of its own, where torch_xla")
    assert "or `import xla_nb; xla_nb.install()` at its top.\n" in shown.stdout
    assert f"would -u {script} --epochs 1" in shown.stdout
    again = kaggle.ok(f"!cd / && python {script}")
    assert "of its own" not in again.stdout and f"would {script}" in again.stdout


STARTS = {
    "%%bash\nset -e\nfor seed in 1; do\n  python {0}\ndone": "{0}",
    "%%script bash\ncd {1}; python {0}": "{0}",
    "!python -m {2}": "{2}.py",
    "!WANDB=off python -u -m {2} --epochs 1": "{2}.py",
    "!torchrun --nproc_per_node 4 {0}": "{0}",
    "!python -m torch.distributed.run --nproc_per_node=4 {0}": "{0}",
    "!accelerate launch --tpu {0} --epochs 1": "{0}",
    "x = !python {0}": "{0}",
    "%sx python {0}": "{0}",
}


@pytest.mark.parametrize("cell", STARTS)
def test_however_such_a_script_is_started_it_is_told(kaggle, tmp_path, cell):
    kaggle.ok(f"%cd -q {tmp_path}")
    name = f"program_{list(STARTS).index(cell)}"
    script = tmp_path / f"{name}.py"
    script.write_text("import torch_xla\ntorch_xla.launch(print)\n")
    shown = kaggle.run(cell.format(script, tmp_path, name))  # nor is there a torchrun
    told = STARTS[cell].format(script, tmp_path, name)
    assert shown.lines[0].startswith(f"`{told}` runs in a process of its own, where torch_xla")
    kaggle.ok("%cd -q /")


def test_what_a_cell_of_bash_would_replace_is_said(kaggle):
    shown = kaggle.ok("%%bash\ncd /\npip install torch==1.0")
    assert shown.lines[0].startswith(f"This cell is to install torch ==1.0 in place of {HERE[0]};")
    assert "would install torch==1.0" in shown.stdout


@pytest.mark.parametrize(
    "text", ["import xla_nb\nxla_nb.install()\ntorch_xla.launch(print)", "print(1)", None]
)
def test_other_scripts_are_told_nothing(kaggle, tmp_path, text):
    script = tmp_path / "other.py"
    if text:
        script.write_text(text)
    shown = kaggle.ok(f"!python {script}")
    assert "of its own" not in shown.stdout and f"would {script}" in shown.stdout


def test_all_of_it_is_gone_once_drop_in_is_off(kaggle):
    kaggle.ok("%xla_config dropin=off")
    try:
        assert kaggle.run("import os\nos.environ['CLOUD_TPU_TASK_ID']").ename == "KeyError"
        missing = kaggle.run("from google.colab.patches import cv2_imshow")
        assert missing.ename == "ModuleNotFoundError"
        assert kaggle.ok("!pip install torch_xla==1.9").stdout.startswith("would install")
    finally:
        kaggle.ok("%xla_config dropin=on")
