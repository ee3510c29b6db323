"""Output on a full disk: a real process with a limit on its file sizes."""

import subprocess
import sys
import textwrap

import pytest

from xla_nb.record.files import Record

HEAD = """
import os, resource, sys
from pathlib import Path
from xla_nb.record import output
from xla_nb.record.files import Record
told = []
def capture():
    output.capture(Record(Path({folder!r})), 3, told.append)
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""


@pytest.fixture
def printed(tmp_path):
    """Run lines as rank 3; return its log."""

    def printed(lines, *options):
        code = HEAD.format(folder=str(tmp_path)) + textwrap.dedent(lines)
        process = subprocess.run(
            [sys.executable, *options, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert process.returncode == 0, process.stderr
        return Record(tmp_path).log(3).read_text()

    return printed


@pytest.mark.parametrize("options", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_output_that_fits_is_kept_and_the_process_continues(printed, options):
    lines = """
    output.install()
    capture()
    limit(10)
    for _ in range(5):
        print("0123456")
    assert len(told) == 1, told
    assert told[0].startswith("Cannot write all of its output: File too large")
    """
    assert printed(lines, *options) == "0123456\n01"


def test_gap_in_the_output_is_marked(printed):
    lines = """
    output.install()
    capture()
    limit(4)
    print("0123456")
    print("lost")
    limit(resource.RLIM_INFINITY)
    print("after")
    """
    assert printed(lines) == "0123\n… output is missing here: File too large …\nafter\n"


def test_streams_bound_by_imports_write_to_the_log(printed):
    lines = """
    output.install()
    bound = sys.stdout
    capture()
    print("here", file=bound)
    assert sys.stdout is sys.__stdout__
    assert sys.stdout.fileno() == 1 and sys.stdout.name == "<stdout>"
    """
    assert printed(lines) == "here\n"


def test_log_that_cannot_be_opened_is_reported(printed, tmp_path):
    (tmp_path / "rank-3.out").write_text("before\n")
    lines = """
    import errno
    output.install()
    opened = os.open
    def full(path, *rest):
        if str(path).endswith("rank-3.out"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *rest)
    os.open = full
    capture()
    print("nowhere")
    assert len(told) == 1, told
    """
    assert printed(lines) == "before\n"


def test_other_errors_of_a_stream_are_raised(printed):
    lines = """
    output.install()
    capture()
    os.close(1)
    try:
        print("closed")
    except OSError as problem:
        os.dup2(2, 1)
        print(problem.errno, file=sys.stderr)
    else:
        raise AssertionError
    """
    printed(lines)
