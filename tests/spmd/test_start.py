"""SPMD starts before anything touches a device; importing the package needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys


def run(script: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ran.returncode, ran.stderr
    return ran.stdout


def test_the_package_imports_no_torch() -> None:
    run(
        "import sys, xla_nb.spmd as spmd\n"
        "from xla_nb.spmd import NotExpressible, Picture, Placed\n"
        "assert not {'torch', 'torch_xla', 'numpy'} & sys.modules.keys()\n"
        "assert set(spmd.__all__) == set(spmd._HOMES)\n"
    )


def test_a_mesh_after_the_first_use_of_a_device_is_refused() -> None:
    """torch_xla alone would go on, and crash with a segmentation fault at a later step."""
    output = run(
        "import torch_xla\n"
        "from xla_nb import spmd\n"
        "torch_xla.device()\n"
        "try: spmd.mesh({'model': 4})\n"
        "except Exception as error: print(type(error).__name__, error)\n",
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES="4",
    )
    assert output.startswith("UsageError SPMD can no longer start")
    assert "Make the mesh first" in output


def test_a_mesh_that_is_refused_leaves_the_process_as_it_was() -> None:
    output = run(
        "import os\n"
        "from xla_nb import spmd\n"
        "try: spmd.mesh({'model': 3})\n"
        "except Exception as error: print(error)\n"
        "print(os.environ.get('XLA_USE_SPMD'), spmd.mesh({'model': 4}).sizes)\n",
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES="4",
    )
    assert output.startswith("The mesh {'model': 3} needs 3 devices")
    assert output.endswith("None {'model': 4}\n")
