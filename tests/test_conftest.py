"""The guard of conftest.py, on tests that leave things behind and on tests that do not."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, subprocess, tempfile, threading, time
import pytest

def test_child(): subprocess.Popen(["sleep", "60"])
def test_orphan(): subprocess.run(["setsid", "--fork", "sleep", "61"])
def test_zombie(): os.fork() or os._exit(0)
def test_thread(): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def test_file(): os.open("/dev/null", os.O_RDONLY)
def test_temporary(): os.close(tempfile.mkstemp()[0])

def test_clean(): pass
def test_late():
    threading.Thread(target=time.sleep, args=(0.5,)).start()
    tempfile.TemporaryFile()  # closed when it is collected
@pytest.mark.leaves("files")
def test_exempt(): os.open("/dev/null", os.O_RDONLY)
@pytest.fixture(scope="module")
def shared():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield
        process.kill()
def test_shared(shared): pass
"""
LEFT = {
    "child": "processes: ",
    "orphan": "processes: ",
    "zombie": "(a zombie: nobody waited for it)",
    "thread": "threads: <Thread(",
    "file": "/dev/null",
    "temporary": "temporary: tmp",
}


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    here = Path(__file__).parent
    guard = (here / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(guard.replace("PATIENCE = 5.0", "PATIENCE = 1.0"))
    (tmp_path / "test_leaky.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = leaves: see conftest.py\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            tmp_path / "base",
            tmp_path,
        ],
        env={**os.environ, "PYTHONPATH": str(here.parent)},  # for what conftest.py imports
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    sections = done.stdout.split(" ERROR at teardown of test_")[1:]
    found = {section.partition(" ")[0]: section for section in sections}
    assert set(found) == set(LEFT), done.stdout + done.stderr
    for name, said in LEFT.items():
        assert said in found[name]
