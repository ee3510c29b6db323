"""The fork server and its processes: clean, restarted if it dies, killed with the kernel."""

import contextlib
import os
import signal
import time
from types import SimpleNamespace

import psutil
import pytest

from tests.support.kernel import Notebook
from tests.support.stopping import halt
from xla_nb.engines import local
from xla_nb.errors import LaunchError
from xla_nb.runtimes.fit import Fit

SPAWN = "%%xla_spawn -n 2 "


def processes_of(pid):
    """The descendants of a process, except the spare job of a fork server."""
    found = psutil.Process(pid).children(recursive=True)
    return [process for process in found if name_of(process) not in ("", "xla_nb-spare")]


def name_of(process):
    """The process's name, or "" if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def survivors(processes, seconds=60):
    """The processes that are still alive after `seconds`."""
    return psutil.wait_procs(processes, timeout=seconds)[1]


def server_pid(notebook):
    notebook.ok("from xla_nb import api; from xla_nb.runtimes import xla as xla_runtime")
    return int(notebook.value("api.engine()._servers[xla_runtime.IMPORTS].child.process.pid"))


def spare_of(server):
    deadline = time.monotonic() + 60  # forked when the last job has ended
    while not (spares := [p for p in server.children() if name_of(p) == "xla_nb-spare"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (spare,) = spares
    return spare


def test_fork_server_runs_in_its_own_session(notebook):
    pid = server_pid(notebook)
    assert os.getsid(pid) == pid


def test_fork_server_imports_the_ranks_packages(notebook):
    notebook.ok(
        f"{SPAWN}-o warm\ndef f(rank):\n"
        "    import sys\n"
        "    loaded = list(sys.modules)\n"
        "    server = loaded[:loaded.index('xla_nb.rank.job')]\n"
        "    return 'xla_nb.runtimes.xla' in server"
    )
    assert notebook.value("warm[0], warm[1]") == "(True, True)"


@pytest.mark.slow
@pytest.mark.leaves("processes")  # a new fork server for the next tests
def test_dead_fork_server_is_restarted(notebook):
    pid = server_pid(notebook)
    server = psutil.Process(pid)
    server.kill()
    with contextlib.suppress(psutil.NoSuchProcess):  # if already reaped
        while server.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    notebook.ok(SPAWN + "-o after\ndef f(rank): return rank")
    assert notebook.value("after.results") == "{0: 0, 1: 1}"
    assert server_pid(notebook) != pid


def running(notebook, name, body, *, options="--grace 0"):
    """Start a run of two ranks in the background; wait until both have printed `up`."""
    notebook.ok(f"{SPAWN}--bg -o {name} {options}\n{body}")
    notebook.ok(
        f"while not {name}.done and not all('up' in {name}.output(r) for r in (0, 1)): "
        "__import__('time').sleep(0.02)"
    )


def ended(notebook, name):
    """The error with which the run ended."""
    notebook.ok(f"try: {name}.wait(60)\nexcept xla_nb.RunFailed as failed: told = str(failed)")
    return notebook.value("told")


SLEEPS = "import time\ndef f(rank):\n    print('up', flush=True); time.sleep(600)"
FORKS = (
    "import os, time\ndef f(rank):\n    if os.fork() == 0:\n        time.sleep(600)\n"
    "    print('up', flush=True); time.sleep(600)"
)


@pytest.mark.leaves("processes")  # a new fork server for the next tests
@pytest.mark.parametrize(
    ("body", "number"),
    [
        (FORKS, signal.SIGKILL),
        pytest.param(SLEEPS, signal.SIGTERM, marks=pytest.mark.slow),
    ],
    ids=["forked processes", "by SIGTERM"],
)
def test_run_ends_with_the_cause_when_its_fork_server_is_killed(notebook, body, number):
    pid = server_pid(notebook)
    running(notebook, "orphaned", body)
    everything = processes_of(pid)
    os.kill(pid, number)
    told = ended(notebook, "orphaned")
    server = "the process that starts and ends ranks"
    assert f"Ranks 0, 1 were lost: {server} was killed by {number.name}" in told
    assert survivors(everything) == []
    notebook.ok(SPAWN + "\ndef f(rank): return rank")


def test_run_ends_with_the_cause_when_its_job_is_killed(notebook):
    server = psutil.Process(server_pid(notebook))
    running(notebook, "jobless", FORKS)
    (job,) = [child for child in server.children() if name_of(child) == "xla_nb-job"]
    everything = job.children(recursive=True)
    job.kill()
    assert "Ranks 0, 1 were lost: their job was killed by SIGKILL" in ended(notebook, "jobless")
    assert survivors(everything) == []


def test_suspended_fork_server_is_resumed_by_a_launch(notebook):
    halt(server_pid(notebook))
    notebook.ok(SPAWN + "-o unstopped\ndef f(rank): return rank")
    assert notebook.value("unstopped.results") == "{0: 0, 1: 1}"


def test_stopped_run_ends_at_once_even_if_its_processes_are_suspended(notebook):
    server = psutil.Process(server_pid(notebook))
    running(notebook, "frozen", SLEEPS)
    everything = processes_of(server.pid)
    for process in (*everything, server):
        process.suspend()
    notebook.ok("frozen.stop()")
    assert "Stopped by run.stop()" in ended(notebook, "frozen")
    assert survivors(everything) == []


def test_suspended_spare_job_is_resumed_by_a_launch(notebook):
    spare_of(psutil.Process(server_pid(notebook))).suspend()
    notebook.ok(SPAWN + "-o moved\ndef f(rank): return rank")
    assert notebook.value("moved.results") == "{0: 0, 1: 1}"


def test_processes_are_named_after_their_role(notebook):
    notebook.ok(
        SPAWN + "-o names\nimport pathlib, os\ndef f(rank):\n"
        "    return [pathlib.Path(f'/proc/{p}/comm').read_text().strip()\n"
        "            for p in (os.getpid(), os.getppid())]"
    )
    assert notebook.value("names[1]") == "['xla_nb-rank-1', 'xla_nb-job']"


def test_killed_spare_job_is_replaced(notebook):
    server = psutil.Process(server_pid(notebook))
    spare = spare_of(server)
    spare.kill()
    assert survivors([spare]) == []
    notebook.ok(SPAWN + "-o unspared\ndef f(rank): return rank")
    assert notebook.value("unspared.results") == "{0: 0, 1: 1}"


def test_processes_left_running_are_killed_with_the_run_and_reported(notebook):
    pid = server_pid(notebook)
    shown = notebook.ok(
        SPAWN + "\nimport subprocess\ndef f(rank):\n"
        "    subprocess.Popen(['sleep', '600'])\n"
        "    subprocess.Popen('(setsid sleep 600 &)', shell=True).wait()\n"
    )
    deadline = time.monotonic() + 60
    while left := processes_of(pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert (
        "The ranks left threads, processes or `atexit` handlers running; they were killed after "
        "3 s. Wait for them in the function (`thread.join()`, `process.wait()`)."
    ) in shown.stderr.replace("\n", " ")


LATER = {
    "shell": "subprocess.Popen('sleep 1; echo late', shell=True)",
    "session": "subprocess.Popen('sleep 1; echo late', shell=True, start_new_session=True)",
    "fork": "if os.fork() == 0: late()",
    "daemon": "if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: late()\n"
    "        os._exit(0)",
}


@pytest.mark.parametrize("start", LATER.values(), ids=LATER)
def test_processes_started_by_ranks_get_time_to_end(notebook, start):
    shown = notebook.ok(
        SPAWN + "-o later\nimport os, subprocess, time\n"
        "def late():\n    time.sleep(1); print('late', flush=True); os._exit(0)\n"
        f"def f(rank):\n    {start}"
    )
    assert notebook.value("[later.output(r) for r in (0, 1)]") == repr(["late\n"] * 2)
    assert "handlers running" not in shown.stderr


def test_helper_processes_neither_delay_the_end_nor_are_reported(notebook):
    """A queue without a reader, resource trackers, a Manager and a Pool left open,
    and persistent workers of a data loader."""
    notebook.ok("import multiprocessing\nunread = multiprocessing.Queue()")
    shown = notebook.ok(
        SPAWN + "-o helped\nimport multiprocessing, torch\nfrom multiprocessing import "
        "shared_memory\ndef f(rank):\n"
        "    global kept, batches\n"
        "    unread.put(b'x' * 200_000)\n"
        "    memory = shared_memory.SharedMemory(create=True, size=1000)\n"
        "    kept = multiprocessing.Manager(), multiprocessing.Pool(1)\n"
        "    batches = iter(torch.utils.data.DataLoader(\n"
        "        range(8), num_workers=1, persistent_workers=True))\n"
        "    return next(batches).item()"
    )
    assert notebook.value("helped.results") == "{0: 0, 1: 0}"
    assert "handlers running" not in shown.stderr
    assert notebook.value("[len(unread.get(timeout=60)) for _ in 'ab']") == "[200000, 200000]"
    notebook.ok("unread.close(); unread.join_thread()")


def test_killing_the_kernel_ends_every_process():
    notebook = Notebook()
    notebook.ok("%load_ext xla_nb", timeout=60)
    notebook.ok(
        "%%xla_spawn -n 2 --bg -o run\nimport subprocess, time\ndef f(rank):\n"
        "    subprocess.Popen(['sleep', '600'])\n"
        "    subprocess.Popen('(setsid sleep 600 &)', shell=True).wait()\n"
        "    print('up', flush=True)\n    time.sleep(600)"
    )
    notebook.ok("%xla_start -n 2 --name live\n%xla_start -n 1 --name kept")
    notebook.ok("%%xla --group live --bg\nimport time\nprint('up', flush=True)\ntime.sleep(600)")
    notebook.ok("while not all(run.output(r) for r in (0, 1)): __import__('time').sleep(0.02)")
    assert psutil.Process(server_pid(notebook)).ppid() == notebook.pid
    everything = processes_of(notebook.pid)
    # The fork server; a job, two ranks and four sleeps; a job and two ranks; a job and one rank.
    assert len(everything) >= 13
    notebook.ok("import os, time\nforked = os.fork()\nif not forked: time.sleep(600)")
    forked = psutil.Process(int(notebook.value("forked")))
    os.kill(notebook.pid, signal.SIGKILL)
    assert survivors(everything) == []  # although the notebook's own fork is still alive
    forked.kill()
    notebook.kill()


@pytest.mark.slow
def test_killing_the_kernel_during_the_import_ends_the_fork_server():
    notebook = Notebook()
    notebook.ok("%load_ext xla_nb", timeout=60)
    everything = processes_of(notebook.pid)
    assert everything
    notebook.kill()
    assert survivors(everything) == []


@pytest.mark.slow
def test_notebook_that_used_threads_device_and_memory_can_launch():
    notebook = Notebook()
    try:
        notebook.ok("%load_ext xla_nb")
        notebook.ok(
            "import numpy as np, torch, torch_xla\n"
            "a = torch.randn(1500, 1500); a = a @ a\n"
            "device = torch_xla.device(); t = torch.ones(3, device=device).sum().item()\n"
            "ballast = np.ones(2**28)",
            timeout=120,
        )
        notebook.ok(
            "%%xla_spawn -n 2 -o run --timeout 60\nimport torch\ndef f(rank):\n"
            "    b = torch.randn(1500, 1500)\n    return float((b @ b).shape[0])"
        )
        assert notebook.value("run.results") == "{0: 1500.0, 1: 1500.0}"
        notebook.ok("%%xla_spawn -n 2 -o run\ndef f(rank):\n    return str(device)")
        assert notebook.value("run.results") == "{0: 'xla:0', 1: 'xla:0'}"
        shown = notebook.run(
            "on_device = torch.ones(2, device=device)\nget_ipython().run_cell_magic("
            "'xla_spawn', '-n 2', 'on_device')"
        )
        assert "an XLA tensor" in shown.error
        assert "on_device.cpu()" in shown.error
    finally:
        notebook.close()


def test_missing_torch_xla_error_names_the_package_to_install(tmp_path):
    stand_in = "raise ModuleNotFoundError(\"No module named 'torch_xla'\", name='torch_xla')"
    (tmp_path / "torch_xla.py").write_text(stand_in)
    notebook = Notebook(PYTHONPATH=str(tmp_path))
    try:
        notebook.ok("%load_ext xla_nb")
        shown = notebook.run("%%xla_spawn -n 2\ndef f(rank): pass")
        assert shown.ename == "LaunchError"
        assert "pip install 'xla_nb[xla]'" in shown.error
    finally:
        notebook.close()


def test_variables_that_break_launches_are_removed_with_a_notice(notebook):
    notebook.ok("import os; os.environ.update(XLA_USE_SPMD='1', TPU_NUM_DEVICES='4')")
    shown = notebook.ok(
        SPAWN + "-o cleaned\nimport os\ndef f(rank): return 'XLA_USE_SPMD' in os.environ"
    )
    notebook.ok("del os.environ['XLA_USE_SPMD'], os.environ['TPU_NUM_DEVICES']")
    assert notebook.value("cleaned[0]") == "False"
    assert "removed XLA_USE_SPMD=1" in shown.stderr
    assert "removed TPU_NUM_DEVICES=4" in shown.stderr


TOLD = (
    "-o told\n"
    "import torch_xla.runtime as xr\n"
    "from torch_xla._internal import tpu\n"
    "def f(rank): return xr.device_type(), xr.world_size(), tpu.get_tpu_type()"
)


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("", "--simulate v6e-8 "),
        ("%xla_config simulate=v6e-8", ""),
        ("import os; os.environ['XLA_NB_SIMULATE'] = 'v6e-8'", ""),
        ("%xla_config simulate=v4-8", "--env XLA_NB_SIMULATE=v6e-8 "),
    ],
)
def test_simulated_tpu_can_be_chosen(notebook, before, options):
    notebook.ok(before)
    notebook.ok("%%xla_spawn --view none " + options + TOLD)
    notebook.ok("%xla_config reset\nimport os; os.environ.pop('XLA_NB_SIMULATE', None)")
    assert notebook.value("set(told.results.values())") == "{('TPU', 8, 'v6e')}"


def test_simulated_is_true_before_a_simulated_launch(notebook):
    assert notebook.value("__import__('xla_nb').simulated()") == "True"


def test_closing_a_notebook_during_the_import_leaves_no_torch_folder():
    notebook = Notebook()
    notebook.ok("%load_ext xla_nb")
    notebook.close()


@pytest.mark.slow
def test_interrupt_during_the_import_is_one_paragraph():
    notebook = Notebook()
    try:
        notebook.ok("%load_ext xla_nb")

        def when_waiting(shown):
            if "importing the ranks' packages" in shown.result and not interrupted:
                interrupted.append(True)
                notebook.interrupt()

        interrupted: list[bool] = []
        shown = notebook.run("%%xla_spawn -n 2\ndef f(rank): pass", during=when_waiting)
        assert "LaunchError: Launch interrupted before any rank started" in shown.error
        assert "Traceback" not in shown.error
    finally:
        notebook.close()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("MemoryError", ""),
        ("ImportError", "libtorch_cpu.so: failed to map segment from shared object"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ],
)
def test_packages_that_do_not_fit_in_memory_are_not_reported_as_missing(kind, problem):
    told = local._import_failed(kind, problem)
    assert "`ulimit -v`" in told
    assert "pip" not in told


# ---------------------------------------------------------------- chips of live ranks


@pytest.fixture
def beside():
    """Request a launch on device `mine` beside live ranks on device `theirs`."""

    def beside(mine, theirs, is_over=False):
        engine = local.LocalEngine()
        feed = SimpleNamespace(is_over=is_over)
        engine._live["live"] = SimpleNamespace(feed=feed, fit=Fit(theirs, 2, {}, ()))
        engine._refuse_taken_chips(Fit(mine, 2, {}, ()))

    return beside


def test_launch_on_the_tpu_is_rejected_while_live_ranks_hold_it(beside):
    with pytest.raises(LaunchError, match="Live ranks hold this machine's TPU chips"):
        beside("TPU", "TPU")
    beside("TPU", "TPU", is_over=True)


@pytest.mark.parametrize("both", [("CPU", "CPU"), ("CPU", "TPU"), ("TPU", "CPU")])
def test_launches_on_a_simulated_host_share_no_chips(beside, both):
    beside(*both)


def test_missing_temporary_folder_is_named_in_the_error(tmp_path, monkeypatch):
    told = pytest.raises(LaunchError, match=r"cannot write a temporary file: .*gone.*Set TMPDIR")
    with monkeypatch.context() as patch, told:
        patch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        local.LocalEngine().warm(())
