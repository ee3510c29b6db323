"""Launches in Ray tasks and actors run on their workers."""

import os
import subprocess
import sys
import tempfile

import pytest

from tests.support.installed import need

pytestmark = [pytest.mark.ray, pytest.mark.slow]

#: As in a notebook: nested functions, a closure, a lock, and workers set up by a hook.
PROGRAM = """
import multiprocessing
import ray

ray.init(
    num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
    runtime_env={"worker_process_setup_hook": "xla_nb.install"},
)
SCALE = 3

def scaled(x):
    return x * SCALE

@ray.remote
def train(n):
    import torch, torch_xla, torch_xla.core.xla_model as xm
    import torch_xla.distributed.xla_multiprocessing as xmp
    lock = multiprocessing.Manager().Lock()
    def _mp_fn(index, lock):
        with lock:
            value = torch.ones(1, device=torch_xla.device()) * scaled(index)
        return xm.all_reduce("sum", value).item()
    results = xmp.spawn(_mp_fn, args=(lock,), nprocs=n, start_method="fork")
    assert results[0] == dict(results.items())[0]
    return results

@ray.remote
class Trainer:
    def fail(self):
        import torch_xla
        def _mp_fn(index):
            return 1 // (index - 1)
        return torch_xla.launch(_mp_fn)

if __name__ == "__main__":
    print("found", ray.get(train.remote(4)))
    try:
        ray.get(Trainer.remote().fail.remote())
    except Exception as error:
        print("raised", "Rank 1 failed" in str(error), "ZeroDivisionError" in str(error))
    ray.shutdown()
"""


def test_tasks_and_actors_launch_nested_functions(tmp_path):
    need("ray")
    (tmp_path / "program.py").write_text(PROGRAM)
    # Ray kills its workers and their children with SIGKILL, so their files stay in TMPDIR.
    with tempfile.TemporaryDirectory() as short:  # it contains sockets
        ran = subprocess.run(
            [sys.executable, "program.py"],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": short},
        )
    assert "found {0: 18.0, 1: 18.0, 2: 18.0, 3: 18.0}" in ran.stdout, ran.stderr
    assert "raised True True" in ran.stdout
