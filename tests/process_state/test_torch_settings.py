"""torch settings that ranks take from the notebook."""

import pytest
import torch

from tests.support.python import printed
from xla_nb.process_state import torch_settings
from xla_nb.process_state.torch_settings import TorchSettings

SHOWN = """
def shown():
    tensor = torch.ones(1, requires_grad=True)
    return [
        (tensor * 2).requires_grad,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.nn.functional.linear(torch.ones(1), torch.ones(1, 1)).dtype,
        torch.is_autocast_enabled("xla"),
    ]
"""
SENT = f"""
import pickle, torch
from xla_nb.process_state.settings import ProcessState
{SHOWN}
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_float32_matmul_precision("medium")
torch.autograd.set_detect_anomaly(True)
torch.autocast("cpu", dtype=torch.float16).__enter__()
print(shown(), pickle.dumps(ProcessState()).hex(), sep="\\n")
"""
TAKEN = f"""
import pickle, sys, torch
{SHOWN}
pickle.loads(bytes.fromhex(sys.argv[1])).take_on()
print(shown())
"""


def test_ranks_take_torch_modes_from_the_notebook():
    here, state = printed(SENT)
    assert here == "[False, True, True, 'medium', True, torch.float16, False]"
    assert printed(TAKEN, state) == [here]


def test_notebook_without_torch_has_no_settings_and_does_not_import_it():
    code = (
        "import sys; from xla_nb.process_state import torch_settings as s\n"
        "print(s.TorchSettings.of_this_process(), s.left_out(), 'torch' in sys.modules)"
    )
    assert printed(code) == ["None [] False"]


def test_default_device_is_omitted_with_a_note():
    assert torch_settings.left_out() == []
    with torch.device("cpu"):
        assert torch_settings.left_out() == []
    with torch.device("meta"):
        (note,) = torch_settings.left_out()
    assert "the CPU on ranks, not the notebook's `meta`: call torch.set_default_device" in note


@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_per_backend_precision_is_omitted():
    code = (
        "import torch; torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "from xla_nb.process_state.torch_settings import TorchSettings as S\n"
        "S.of_this_process().take_on(); print(torch.backends.cuda.matmul.fp32_precision)"
    )
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch 2.9
        assert printed(code) == ["tf32"]
    assert TorchSettings.of_this_process().matmul == "highest"
