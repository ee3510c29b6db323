"""The check for leftovers in conftest.py, on tests with and without leftovers."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, subprocess, tempfile, threading, time
import pytest

def test_processes():
    subprocess.Popen(["sleep", "60"])
    subprocess.run(["setsid", "--fork", "sleep", "61"])
    os.fork() or os._exit(0)
def test_others():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    os.open("/dev/null", os.O_RDONLY)
    os.close(tempfile.mkstemp()[0])

def test_clean(): pass
def test_late():
    threading.Thread(target=time.sleep, args=(0.2,)).start()
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
    "processes": ["sleep 60", "sleep 61", "(a zombie: nobody waited for it)"],
    "others": ["threads: <Thread(", "files: ", "/dev/null", "temporary: tmp"],
}


def test_leftovers_of_tests_are_found(tmp_path: Path) -> None:
    here = Path(__file__).parent
    guard = (here / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(guard.replace("PATIENCE = 60.0", "PATIENCE = 1.0"))
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
        env={**os.environ, "PYTHONPATH": str(here.parent)},  # for the imports of conftest.py
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    sections = done.stdout.split(" ERROR at teardown of test_")[1:]
    found = {section.partition(" ")[0]: section for section in sections}
    assert set(found) == set(LEFT), done.stdout + done.stderr
    for name, things in LEFT.items():
        for thing in things:
            assert thing in found[name]
