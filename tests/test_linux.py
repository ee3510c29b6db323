"""What a process asks of Linux for itself."""

import subprocess
import sys
import textwrap

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
assert os.read(reader, 1) == b""  # nobody holds the other end any more
"""


def test_what_dies_with_its_parent_does():
    done = subprocess.run([sys.executable, "-c", FAMILY], check=False, timeout=20)
    assert done.returncode == 0


def test_what_comes_too_late_to_die_with_its_parent_ends():
    """The parent is gone between the two looks at who it is."""
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


def test_orphans_are_adopted():
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


def test_a_process_is_seen_by_its_name():
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
