"""SPMD starts before anything touches a device; importing the package needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


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


def test_importing_the_package_does_not_import_torch() -> None:
    run(
        "import sys, xla_nb.spmd as spmd\n"
        "from xla_nb.spmd import Picture, Placed\n"
        "assert not {'torch', 'torch_xla', 'numpy'} & sys.modules.keys()\n"
    )


@pytest.mark.slow
def test_mesh_must_precede_device_use_and_a_refused_mesh_changes_nothing() -> None:
    """torch_xla alone would continue and crash with a segmentation fault later."""
    late, refused, made = run(
        "import os, torch_xla\n"
        "from xla_nb import spmd\n"
        "spmd.mesh\n"
        "def refused(axes):\n"
        "    try: spmd.mesh(axes)\n"
        "    except spmd.meshes.UsageError as error: print(error, flush=True)\n"
        "if not os.fork():\n"
        "    torch_xla.device()\n"
        "    refused({'model': 4})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "refused({'model': 3})\n"
        "print(os.environ.get('XLA_USE_SPMD'), spmd.mesh({'model': 4}).sizes)\n",
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES="4",
    ).splitlines()
    assert late.startswith("SPMD can no longer start")
    assert "make the mesh before you use devices" in late
    assert refused.startswith("The mesh {'model': 3} does not cover the 4 devices")
    assert made == "None {'model': 4}"
