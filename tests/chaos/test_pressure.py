"""Real kernels under limits: a launch works or names the lacking resource; nothing hangs."""

import os
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.support.kernel import Notebook
from tests.support.ray_nodes import eventually
from xla_nb import memory

pytestmark = pytest.mark.chaos

SUM = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
def f(rank):
    return xm.all_reduce("sum", torch.ones(2, device="xla") * rank).sum().item()
"""
#: A user without other processes, with root's read access; root's processes have no limit.
ANOTHER_USER = (
    *("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"),
    "--securebits=+no_setuid_fixup",  # access(2) also checks capabilities
    *("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"),
)
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: mounts, another user")


@pytest.fixture
def under():
    """under(*command, **env) starts a kernel under a command that limits it."""
    made = []

    def make(*command, **env):
        made.append(Notebook(under=command, **env))
        made[0].ok("%load_ext xla_nb")
        return made[0]

    yield make
    for notebook in made:
        notebook.close()


def in_mounts(script):
    """A command that starts a kernel with its own mounts."""
    return "unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh"


def launched(notebook, ranks=2, cell=SUM, timeout=300):
    """Run a cell on ranks; return its output and the notices of its run."""
    options = f"-n {ranks} --view text --grace 1"
    shown = notebook.run(f"%%xla_spawn {options}\n{cell}", timeout=timeout)
    return "\n".join([shown.stdout, shown.stderr, shown.error, str(shown.data)])


def test_sixty_four_ranks_run_a_collective_and_end(under):
    notebook = under()
    notebook.ok(f"%%xla_spawn -n 64 --view none -o run\n{SUM}", timeout=500)
    assert notebook.value("set(run.results.values())") == f"{{{float(2 * sum(range(64)))}}}"
    kernel = psutil.Process(notebook.pid)
    notebook.ok("run.wait(60)")
    assert not [p for p in kernel.children(recursive=True) if "rank" in p.name()]


@pytest.mark.parametrize(("files", "ranks"), [(200, 64), (80, 20), (80, 32)])
def test_launch_is_refused_if_ranks_need_too_many_files(under, files, ranks):
    notebook = under("prlimit", f"--nofile={files}")
    refused = launched(notebook, ranks=ranks)
    assert f"Cannot start {ranks} ranks" in refused or f"Cannot set up {ranks} ranks" in refused
    assert "`ulimit -n`" in refused
    assert "2 ranks finished" in launched(notebook)


def test_launch_is_refused_if_the_notebook_has_no_free_files(under):
    notebook = under()
    assert "2 ranks finished" in launched(notebook)  # the server runs
    notebook.ok("import os, resource; before = resource.getrlimit(resource.RLIMIT_NOFILE)")
    said = []
    for free in range(1, 13):
        notebook.ok(
            "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1 + "
            f"{free}, before[1]))"
        )
        said.append(launched(notebook))
        notebook.ok("resource.setrlimit(resource.RLIMIT_NOFILE, before)")
    refused = [text for text in said if "2 ranks finished" not in text]
    assert refused
    assert [text for text in refused if "LaunchError" not in text] == []
    assert [text for text in refused if "`ulimit -n`" not in text] == []
    assert "2 ranks finished" in launched(notebook)


@as_root
@pytest.mark.parametrize("processes", [24, 32])
def test_low_process_limit_is_reported_unless_the_launch_works(under, processes, tmp_path):
    limits = "prlimit", f"--nproc={processes}"
    home = {"HOME": str(tmp_path), "XLA_NB_HOME": f"{tmp_path}/home", "USER": "somebody"}
    text = launched(under(*ANOTHER_USER, *limits, **home))
    told = "`ulimit -u`", "can't start new thread", "pthread_create() failed", "2 ranks finished"
    assert any(words in text for words in told)


@pytest.mark.parametrize("gigabytes", [1, 3, 4])
def test_low_address_space_limit_is_reported(under, gigabytes):
    text = launched(under("prlimit", f"--as={int(gigabytes * (1 << 30))}"))
    told = "`ulimit -v`", "failed to map segment", "Cannot allocate memory", "std::bad_alloc"
    assert any(words in text for words in told)


@as_root
def test_launch_is_refused_if_shared_memory_is_full(under):
    full = "mount -t tmpfs -o size=64k tmpfs /dev/shm && head -c 65536 /dev/zero > /dev/shm/full"
    notebook = under(*in_mounts(full))
    text = launched(notebook)
    assert "[Errno 28] No space left on device" in text
    assert "free space in /dev/shm" in text
    notebook.ok("import os; os.unlink('/dev/shm/full')")
    assert "2 ranks finished" in launched(notebook)


@as_root
def test_data_loader_error_names_the_lack_of_shared_memory(under):
    notebook = under(*in_mounts("mount -t tmpfs -o size=64k tmpfs /dev/shm"))
    cell = """
    from torch.utils.data import DataLoader
    def g(rank):
        return sum(b.sum().item() for b in DataLoader(range(64), num_workers=8))
    """
    assert "2 ranks finished" in launched(notebook)
    text = launched(notebook, cell=textwrap.dedent(cell))
    told = "/dev/shm is full", "shared memory", "No space left on device"
    assert any(words in text for words in told)


@pytest.fixture
def in_memory_of():
    """in_memory_of(size) returns a command for a kernel limited to `size` bytes by its own control
    group, and the file in which the system counts OOM kills there."""
    ours = memory._Group.own()
    folder = ours.folder / f"xla-nb-{os.getpid()}"

    def command(size):
        try:
            folder.mkdir()
            (folder / f"memory.{ours.ceiling}").write_text(str(size))
        except OSError as problem:
            pytest.skip(f"no control group can be made here: {problem}")
        enter = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
        return ("sh", "-c", enter, "sh"), folder / f"memory.{ours.counter}"

    yield command
    if folder.exists():
        eventually(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


@as_root
@pytest.mark.parametrize("victim", ["rank", "job", "server"])
def test_oom_kill_of_a_process_is_reported_with_the_memory_limit(in_memory_of, under, victim):
    command, counter = in_memory_of(3 << 30)
    notebook = under(*command)
    notebook.ok("%%xla_spawn -n 2 --bg -o run --grace 1\nimport time\ndef f(rank): time.sleep(600)")
    notebook.ok(
        "import time\n"
        "while len([r for r in run.state.ranks.values() if r.pid]) < 2: time.sleep(0.05)"
    )
    pid = victims(notebook)[victim]
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")  # the OOM killer's first choice
    notebook.ok(
        "kept = []\n"
        f"while 'oom_kill 0\\n' in open({str(counter)!r}).read() + '\\n':\n"
        "    kept.append(bytearray(b'x') * (1 << 20))"
    )
    text = notebook.run("run.wait(60)").error
    assert "killed by the OOM killer (the container's limit is 3.0 GiB)" in text


@as_root
def test_oom_kill_of_the_server_while_importing_torch_is_reported(in_memory_of, under):
    command, _ = in_memory_of(256 << 20)
    text = launched(under(*command))
    lack = "killed by the OOM killer (the container's limit is 256 MiB)"
    assert f"The process that starts the ranks was {lack} while importing torch_xla." in text


def victims(notebook):
    """The pids of the server, one of its jobs, and a rank of that job."""
    (server,) = [p for p in children(notebook.pid) if p.name() == "xla_nb-server"]
    (job,) = [p for p in children(server.pid) if p.name() == "xla_nb-job"]
    rank = next(p for p in children(job.pid) if "rank" in p.name())
    return {"server": server.pid, "job": job.pid, "rank": rank.pid}


def children(pid):
    return psutil.Process(pid).children()
