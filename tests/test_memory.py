"""Detect processes killed for lack of memory, from control groups of both versions."""

import os
import signal
import threading

import pytest

from xla_nb import memory as measured
from xla_nb.memory import OutOfMemory, Own, available

KILL = -signal.SIGKILL
MB_256 = 256 << 20


class Tree:
    """The files of a control group and of a process in it, as in proc(5) and cgroups(7)."""

    def __init__(self, monkeypatch, top, version, inside="", seen=""):
        """`seen`: the path in the process's cgroup file if it is in a container."""
        self.first = version == 1
        self.proc, groups = top / "proc", top / "cg"
        self.group = groups / ("memory" if self.first else "") / inside
        self.group.mkdir(parents=True)
        (self.proc / "self").mkdir(parents=True)
        name = "4:memory:/" if self.first else "0::/"
        self.told = self.proc / "self" / "cgroup"
        self.told.write_text(f"9:name=systemd:/elsewhere\n{name}{seen or inside}\n")
        monkeypatch.setattr(measured, "_PROC", self.proc)
        monkeypatch.setattr(measured, "_GROUPS", groups)
        self.kills(0)

    def kills(self, number):
        if self.first:
            lines = f"oom_kill_disable 0\nunder_oom 0\noom_kill {number}\n"
            (self.group / "memory.oom_control").write_text(lines)
        else:
            lines = f"low 0\nhigh 0\nmax 7\noom {number}\noom_kill {number}\noom_group_kill 0\n"
            (self.group / "memory.events").write_text(lines)

    def limits(self, text, folder=None):
        name = "memory.limit_in_bytes" if self.first else "memory.max"
        ((folder or self.group) / name).write_text(text + "\n")


@pytest.fixture(params=[1, 2])
def tree(tmp_path, monkeypatch, request):
    return Tree(monkeypatch, tmp_path, request.param, "pods/mine")


def test_a_kill_counted_by_linux_is_due_to_lack_of_memory(tree):
    tree.kills(3)  # from earlier runs
    tree.limits(str(MB_256))
    memory = OutOfMemory()
    assert memory.limit(KILL) is None
    tree.kills(4)
    assert memory.limit(KILL) == MB_256


def test_each_counted_kill_accounts_for_one_process(tree):
    tree.limits(str(MB_256))
    memory = OutOfMemory()
    tree.kills(1)
    assert [memory.limit(KILL), memory.limit(KILL)] == [MB_256, None]


@pytest.mark.parametrize("status", [1, 0, -signal.SIGSEGV])
def test_other_exit_statuses_are_not_due_to_lack_of_memory(tree, status):
    memory = OutOfMemory()
    tree.kills(1)
    assert memory.limit(status) is None
    assert memory.limit(KILL) is not None


def test_the_limit_can_be_that_of_a_parent_group(tree):
    tree.limits("max" if not tree.first else "9223372036854771712")
    tree.limits(str(MB_256), tree.group.parent)
    memory = OutOfMemory()
    tree.kills(1)
    assert memory.limit(KILL) == MB_256


def test_without_a_group_limit_the_machine_ran_out_of_memory(tree):
    tree.limits("max" if not tree.first else "9223372036854771712")
    memory = OutOfMemory()
    tree.kills(1)
    assert memory.limit(KILL) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_sees_its_own_group_as_the_root(tmp_path, monkeypatch, version):
    tree = Tree(monkeypatch, tmp_path, version, seen="docker/abc")
    tree.limits(str(MB_256))
    memory = OutOfMemory()
    tree.kills(1)
    assert memory.limit(KILL) == MB_256


def test_without_readable_files_no_limit_is_reported(tmp_path, monkeypatch):
    tree = Tree(monkeypatch, tmp_path, 2)
    (tree.group / "memory.events").unlink()
    assert OutOfMemory().limit(KILL) is None
    tree.told.write_text("nonsense\n")
    assert OutOfMemory().limit(KILL) is None
    tree.told.unlink()
    assert OutOfMemory().limit(KILL) is None


def test_the_real_control_group_can_be_read():
    assert OutOfMemory().limit(KILL) is None


def use(tree, used, cached):
    names = (
        ("usage_in_bytes", "total_inactive_file") if tree.first else ("current", "inactive_file")
    )
    (tree.group / f"memory.{names[0]}").write_text(f"{used}\n")
    (tree.group / "memory.stat").write_text(f"anon 7\n{names[1]} {cached}\n")


def test_available_memory_is_the_minimum_of_system_and_group(tree):
    (tree.proc / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:     524288 kB\n")
    use(tree, used=100 << 20, cached=40 << 20)
    assert available() == 512 << 20
    tree.limits(str(MB_256))
    assert available() == (256 - 100 + 40) << 20
    use(tree, used=300 << 20, cached=0)
    assert available() == 0


def counted(tmp_path, monkeypatch, pages):
    (tmp_path / "self").mkdir(exist_ok=True)
    monkeypatch.setattr(measured, "_PROC", tmp_path)
    (tmp_path / "self" / "statm").write_text(f"90000 {pages} 700 1 0 9 0\n")


def test_memory_is_unknown_without_smaps_rollup(tmp_path, monkeypatch):
    counted(tmp_path, monkeypatch, 1000)
    own = Own()
    own.count()
    assert own.nbytes is None


def test_between_counts_memory_grows_with_resident_pages(tmp_path, monkeypatch):
    counted(tmp_path, monkeypatch, 1000)
    (tmp_path / "self" / "smaps_rollup").write_text("Rss: 1 kB\nPss:     80 kB\n")
    own = Own()
    own.count(anew=False)
    assert own.nbytes == 80 << 10
    counted(tmp_path, monkeypatch, 1500)
    own.count()  # too soon
    assert own.nbytes == (80 << 10) + 500 * measured._PAGE


def test_a_sample_in_another_thread_waits_for_the_first_count(tmp_path, monkeypatch):
    """Otherwise a cell that fails at once would show no memory, or that of all pages."""
    counted(tmp_path, monkeypatch, 1000)
    os.mkfifo(tmp_path / "self" / "smaps_rollup")
    own, seen = Own(), []
    first = threading.Thread(target=own.count)
    first.start()
    with (tmp_path / "self" / "smaps_rollup").open("w") as rollup:  # the first count has started
        second = threading.Thread(target=lambda: seen.append((own.count(False), own.nbytes)))
        second.start()
        assert own.nbytes is None
        rollup.write("Pss:     80 kB\n")
    first.join()
    second.join()
    assert seen == [(None, 80 << 10)]
