"""A rank's process: its output and its rank number."""

import os
import subprocess
import sys
import textwrap

import pytest

from xla_nb.rank import entries, program
from xla_nb.record.files import Record

# ---------------------------------------------------------------- output


@pytest.fixture
def captured(tmp_path):
    """Run lines in a process as rank 3; returns its two logs and all uncaptured output."""
    record = Record(tmp_path)

    def captured(lines):
        head = (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from xla_nb.record import output\n"
            "from xla_nb.record.files import Record\n"
            f"capture = lambda: output.capture(Record(Path({str(tmp_path)!r})), 3, len)\n"
        )
        process = subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(lines)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
        assert process.returncode == 0, process.stderr
        logs = (record.log(3, stream).read_text() for stream in ("out", "err"))
        return *logs, process.stdout + process.stderr

    return captured


def test_output_of_python_and_c_code_is_captured(captured):
    lines = """
    capture()
    print("python", flush=True)
    print("python", file=sys.stderr, flush=True)
    os.write(1, b"c\\n")
    os.write(2, b"c\\n")
    os.system("echo shell; echo shell >&2")
    """
    assert captured(lines) == ("python\nc\nshell\n",) * 2 + ("",)


def test_earlier_output_is_not_captured(captured):
    lines = """
    sys.stdout.write("before")
    sys.stderr.write("before")
    capture()
    print("after")
    """
    assert captured(lines) == ("after\n", "", "beforebefore")


def test_output_of_two_processes_is_appended_in_whole_lines(captured, tmp_path):
    (tmp_path / "rank-3.out").write_text("there before\n")
    lines = """
    capture()
    if os.fork() == 0:
        for _ in range(500):
            os.write(1, b"child\\n")
        os._exit(0)
    for _ in range(500):
        os.write(1, b"parent\\n")
    os.wait()
    """
    written = captured(lines)[0].splitlines()
    assert written[0] == "there before"
    assert sorted(written[1:]) == ["child"] * 500 + ["parent"] * 500


def test_only_the_owner_can_read_the_logs(captured, tmp_path):
    captured("os.umask(0)\ncapture()\n")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"rank-3.out": 0o600, "rank-3.err": 0o600}


def test_capturing_leaves_no_additional_file_open(captured):
    lines = """
    before = set(os.listdir("/proc/self/fd"))
    capture()
    print(set(os.listdir("/proc/self/fd")) == before)
    """
    assert captured(lines)[0] == "True\n"


# ---------------------------------------------------------------- is this a rank?


def test_process_outside_a_run_is_not_a_rank():
    assert not entries.is_rank()


def test_process_forked_by_a_rank_counts_as_a_rank(monkeypatch):
    monkeypatch.setattr(entries._here, "magic", None)
    entries.refuse_launches("%%xla_spawn")
    child = os.fork()
    if child == 0:
        os._exit(entries.is_rank())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


# ---------------------------------------------------------------- rank numbers


A_RANK = """
import sys
from pathlib import Path
from types import SimpleNamespace as Some
from xla_nb.rank import process
from xla_nb.rank.crashes import Crashes
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.program import Loaded
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.runtimes import RankInfo

class Runtime:
    ranks = {ranks}
    join = lambda self, local_rank, processes: print("joins", flush=True)
    rank_info = lambda self, rank: RankInfo(8, "device", "device")
    leave = lambda self, why: None
    consequence = lambda self, error: None
    waiting = waited = memory = lambda self: None

threads = Some(get_num_threads=lambda: 1, set_num_threads=lambda count: None)
sys.modules["torch"] = threads
request = Some(
    record={record!r}, entry="f", takes_lock=False, mute=False, turn=None,
    magic="",
)
namespace = {{ARGUMENTS: (), "f": lambda rank: print("is", rank)}}
sender, table = Some(send=lambda event: None), Some(body=None, sources=())
loaded = Loaded(request, sender, namespace, table)
process.inherit(process.Inherited(
    loaded, Runtime.ranks, SharedLock(), Runtime(), Crashes(1)
))
process.enter(0, {processes})
del sys.modules["torch"]
process.main({index})
"""


@pytest.fixture
def logs(tmp_path):
    """Run the first process of the second host as rank `index`; returns the logs by name."""

    def logs(ranks, processes, index):
        code = A_RANK.format(ranks=ranks, processes=processes, index=index, record=str(tmp_path))
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert process.returncode == 0, process.stderr.decode()
        return {path.stem: path.read_text() for path in sorted(tmp_path.glob("*.out"))}

    return logs


def test_rank_with_the_expected_number_logs_to_one_file(logs):
    assert logs(4, 4, 4) == {"rank-4": "joins\nis 4\n"}


@pytest.mark.parametrize("index", [5, 2], ids=["same host", "another host"])
def test_renumbered_rank_logs_under_its_new_number(logs, index):
    assert logs(4, 4, index) == {"rank-4": "joins\n", f"rank-{index}": f"is {index}\n"}


def test_ranks_sharing_a_process_share_its_log(logs):
    assert logs(4, 2, 5) == {"rank-4": "joins\nis 5\n"}


def test_rank_thread_starting_after_a_stop_does_not_call_the_entry():
    loaded = program.Loaded(None, None, {}, None, stopping=True)
    with pytest.raises(KeyboardInterrupt):
        program.OnRank(loaded, 0, None, None, None)._returned(None)
