"""A cluster that is reachable only through Ray's client server, and that loses its head."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.kernel import Notebook
from tests.support.ray_nodes import Nodes, eventually, of_ours

pytestmark = [pytest.mark.ray, pytest.mark.chaos]
SIMULATED = "--env PJRT_DEVICE=CPU"


@pytest.fixture(scope="module")
def far(home: None) -> Iterator[tuple[Nodes, str]]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    # Ray considers the only node a TPU VM, the only one of its slice.
    nodes = Nodes(
        1,
        ray_client_server_port=port,
        resources={"TPU": 4, "slice-a": 1, "TPU-v4-8-head": 1},
        labels={"ray.io/tpu-slice-name": "slice-a", "ray.io/tpu-pod-type": "v4-8"},
    )
    yield nodes, f"ray://127.0.0.1:{port}"
    nodes.close()


@pytest.fixture(scope="module")
def notebook(far: tuple[Nodes, str]) -> Iterator[Notebook]:
    started = Notebook()
    started.ok("%load_ext xla_nb")
    yield started
    started.close()


@pytest.mark.leaves("processes")  # the host held for the next launch
def test_cell_runs_through_rays_client(notebook: Notebook, far: tuple[Nodes, str]) -> None:
    shown = notebook.ok(
        f"%%xla_spawn --on {far[1]} --hosts 1 -n 2 {SIMULATED} --view text -o through\n"
        "import torch_xla.core.xla_model as xm\n"
        "def f(rank):\n"
        "    print('here')\n"
        "    return xm.mesh_reduce('sum', rank + 1, sum)",
        timeout=200,
    )
    assert {"[0] here", "[1] here"} <= set(shown.lines)
    assert notebook.value("through.results") == "{0: 3, 1: 3}"
    assert notebook.value("through.output(1)") == r"'here\n'"


def test_tpu_vm_without_visible_chips_is_rejected(
    notebook: Notebook, far: tuple[Nodes, str]
) -> None:
    shown = notebook.run(f"%%xla_spawn --on {far[1]}\ndef f(rank): pass")
    assert "Ray counts 4 TPU chips on vm, but none is visible there" in shown.error


@pytest.mark.leaves("processes")  # those of the cluster without its head
def test_lost_head_ends_the_run(notebook: Notebook, far: tuple[Nodes, str]) -> None:
    nodes, where = far
    killed = []

    def kill(shown: object) -> None:
        if "begun" in shown.stdout and not killed:  # type: ignore[attr-defined]
            killed.append(True)
            nodes.kill_head()

    shown = notebook.run(
        f"%%xla_spawn --on {where} --hosts 1 -n 2 {SIMULATED} --view text\n"
        "import time\n"
        "def f(rank):\n"
        "    print('begun')\n"
        "    time.sleep(100)",
        timeout=90,
        during=kill,
    )
    assert shown.ename == "RunFailed"
    assert "was lost with ranks 0, 1" in shown.error
    eventually(lambda: not of_ours("xla_nb-rank", "xla_nb-job"))
