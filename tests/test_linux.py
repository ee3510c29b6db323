"""Process settings and process trees on Linux."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from xla_nb import linux

FAMILY = """
import os, signal
from xla_nb import linux

reader, writer = os.pipe()
parent = os.fork()
if parent == 0:
    os.close(reader)
    if os.fork() == 0:
        linux.die_with_parent()
        os.write(writer, b"up")
        signal.pause()
    signal.pause()
os.close(writer)
assert os.read(reader, 2) == b"up"
os.kill(parent, signal.SIGKILL)
os.waitpid(parent, 0)
assert os.read(reader, 1) == b""  # nobody holds the other end
"""


def test_die_with_parent_ends_the_child_when_the_parent_is_killed():
    done = subprocess.run([sys.executable, "-c", FAMILY], check=False, timeout=20)
    assert done.returncode == 0


def test_die_with_parent_exits_if_the_parent_is_already_gone():
    """The parent ends between the two calls of getppid()."""
    script = """
    import os
    from xla_nb import linux
    parents = iter([1234567, os.getppid()])
    os.getppid = lambda: next(parents)
    linux.die_with_parent()
    print("lives on")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_adopt_orphans_makes_the_process_the_parent_of_orphans():
    script = """
    import os, signal
    from xla_nb import linux
    linux.adopt_orphans()
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        child = os.fork()
        if child == 0:
            signal.pause()
        os.write(writer, str(child).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    orphan = int(os.read(reader, 20))
    os.kill(orphan, signal.SIGKILL)
    assert os.waitpid(orphan, 0) == (orphan, signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == 0


def test_the_process_name_is_set_and_cut_to_15_bytes():
    script = """
    from pathlib import Path
    from xla_nb import linux
    linux.name_process("xla_nb-rank-12345")
    print(Path("/proc/self/comm").read_text(), end="")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
    )
    assert done.stdout == b"xla_nb-rank-123\n"


def test_watch_parent_returns_none_if_the_parent_has_ended():
    watched = linux.watch_parent(os.getppid())
    os.close(watched)
    assert linux.watch_parent(os.getpid()) is None


@pytest.mark.parametrize(
    ("find", "option"),
    [(linux.in_group, {"process_group": 0}), (linux.in_session, {"start_new_session": True})],
)
def test_processes_of_a_group_or_session_are_found(find, option):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, **option)
    with child:
        assert find(child.pid) == [child.pid]
    assert find(child.pid) == []


#: A process that creates a shared memory segment, which its resource tracker unlinks, and waits.
MAKER = (
    "import signal\n"
    "from multiprocessing import resource_tracker, shared_memory\n"
    "memory = shared_memory.SharedMemory(create=True, size=1000)\n"
    "print(memory.name, resource_tracker._resource_tracker._pid, flush=True)\n"
    "signal.pause()"
)
#: A process that looks like a resource tracker and does not end.
STUCK = "import signal; signal.pause()  # x.resource_tracker import main"


def test_end_all_lets_the_resource_tracker_unlink_the_groups_segments():
    command = [sys.executable, "-c", MAKER]
    with subprocess.Popen(command, stdout=-1, text=True, process_group=0) as maker:
        name, tracker = maker.stdout.readline().split()
        assert Path("/dev/shm", name).exists()
        linux.end_all(lambda: linux.in_group(maker.pid), 60)
    assert maker.returncode == -signal.SIGKILL
    assert not linux.is_alive(int(tracker))
    assert not Path("/dev/shm", name).exists()


def test_end_all_kills_processes_found_only_after_the_time_limit():
    """Children of a process are found once it has ended, which may take long."""
    slow = subprocess.Popen([sys.executable, "-c", ""])
    slow.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as left:
        over = time.monotonic() + 0.5

        def find():
            if time.monotonic() < over:
                return [slow.pid]
            return [left.pid] if left.poll() is None else []

        linux.end_all(find, 0.4)
        assert left.wait(10) == -signal.SIGKILL


def test_end_all_looks_again_after_finding_no_process():
    """When a process ends, its children get another parent: a single look may miss both."""
    left = subprocess.Popen(["sleep", "600"])
    looks = iter([[], [left.pid]])
    linux.end_all(lambda: next(looks, []))
    assert left.wait(10) == -signal.SIGKILL


def test_end_all_kills_a_resource_tracker_at_the_time_limit():
    with subprocess.Popen([sys.executable, "-c", STUCK], process_group=0) as stuck:
        linux.end_all(lambda: linux.in_group(stuck.pid), 0.1)
    assert stuck.returncode == -signal.SIGKILL


def test_a_child_is_reaped_once_it_has_ended():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
    assert not linux.reaped(child.pid)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert linux.reaped(child.pid)
    assert linux.reaped(child.pid)
    child.wait()


def test_children_are_found_even_if_a_thread_has_just_ended(monkeypatch):
    glob = Path.glob
    gone = Path("/proc/self/task/0/children")
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [gone, *glob(path, pattern)])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        assert child.pid in linux.children()
        child.communicate()


def test_a_process_that_is_just_starting_is_recognized_by_its_command():
    """For some processes Linux has no command line yet when `Popen` returns."""
    command = ["sh", "-c", "cat  # .resource_tracker import main"]
    for _ in range(300):
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            assert linux.is_tracker(child.pid)
            child.communicate()


GATHERED = """
import re
from pathlib import Path
from xla_nb import linux

def large():
    return int(re.search(r"AnonHugePages: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

filled = [bytes(1000) + bytes([number % 256]) for number in range(50_000)]
before = large()
gathered = linux.gather_pages()
print(gathered, (large() - before) << 10, filled[-1][-1] == 49_999 % 256)
"""


def test_gather_pages_moves_the_heap_into_large_pages():
    printed = subprocess.run(
        [sys.executable, "-c", GATHERED], capture_output=True, text=True, check=True
    ).stdout
    gathered, large, whole = printed.split()
    assert whole == "True"
    if int(gathered) == 0:
        pytest.skip("this system has no large pages")
    assert int(gathered) >= 32 << 20
    assert int(large) >= int(gathered) // 2  # the system may already have used large pages
