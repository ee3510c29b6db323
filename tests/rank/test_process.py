"""What a rank's process does with itself, and how it tells what it returned."""

import os
import subprocess
import sys
import textwrap
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from xla_nb.protocol.order import HostGroup
from xla_nb.rank import process

# ---------------------------------------------------------------- a result in a line


class Tensor:
    """Like an array of any library: its shape is a kind of tuple, its repr is long."""

    shape = namedtuple("Size", "rows columns")(2, 3)
    dtype = "torch.bfloat16"

    def __repr__(self):
        return "tensor([[...]])"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (3, "3"),
        ("a", "'a'"),
        ([1, (2, 3)], "[1, (2, 3)]"),
        ({"loss": 0.25}, "{'loss': 0.25}"),
    ],
)
def test_a_small_value_is_shown_as_it_is(value, shown):
    assert process.preview(value) == shown


def test_an_array_is_shown_by_its_shape_and_type():
    assert process.preview(np.zeros((2, 3), np.float32)) == "ndarray (2, 3) float32"


def test_a_tensor_of_any_library_is_shown_by_its_shape_and_type():
    assert process.preview(Tensor()) == "Tensor (2, 3) torch.bfloat16"


def test_arrays_inside_a_value_are_shown_by_shape_and_type_too():
    value = {"loss": 0.5, "grads": [np.zeros(4), Tensor()]}
    shown = "{'grads': [ndarray (4,) float64, Tensor (2, 3) torch.bfloat16], 'loss': 0.5}"
    assert process.preview(value) == shown


def test_an_array_of_one_number_is_shown_as_the_number():
    assert process.preview(np.float32(0.5)) == "np.float32(0.5)"
    assert process.preview(np.array(2)) == "array(2)"


def test_a_long_text_is_shown_from_both_ends():
    shown = process.preview("a" * 1000 + "z" * 1000)
    assert shown.startswith("'aaa")
    assert shown.endswith("zzz'")
    assert len(shown) <= 80


def test_of_a_long_list_the_first_items_are_shown():
    assert process.preview(list(range(1000))) == "[0, 1, 2, 3, 4, 5, ...]"


def test_a_preview_has_at_most_80_characters():
    whole = ["x" * 36, "y" * 36]
    assert process.preview(whole) == repr(whole)
    assert len(repr(whole)) == 80
    shown = process.preview(["x" * 36, "y" * 37])
    assert shown == repr(whole)[:77] + "yy…"


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: {"key": it}, lambda it: (it,) * 5])
def test_a_long_repr_is_cut_wherever_it_is(wrap):
    class Long:
        def __repr__(self):
            return "r" * 500

    assert len(process.preview(wrap(Long()))) <= 80


def test_a_repr_of_several_lines_is_shown_in_one():
    class Lines:
        def __repr__(self):
            return "one\n  two\n"

    assert process.preview(Lines()) == "one two"


def test_a_value_whose_repr_fails_is_named():
    class Odd:
        def __repr__(self):
            raise ValueError

    assert "Odd instance" in process.preview(Odd())


def test_a_value_that_fails_when_it_is_looked_at_is_named():
    class Odd:
        @property
        def shape(self):
            raise RuntimeError("not materialised")

    assert process.preview(Odd()) == "<Odd: its repr() raised RuntimeError>"


def test_a_value_that_holds_itself_is_shown():
    value = []
    value.append(value)
    assert len(process.preview(value)) <= 80


# ---------------------------------------------------------------- its output


@pytest.fixture
def captured(tmp_path):
    """Run lines in a process that has captured its output; gives its stdout, stderr, the rest."""

    def captured(lines):
        before = "import os, sys\nfrom pathlib import Path\nfrom xla_nb.rank import process\n"
        capture = f"process.capture(Path({str(tmp_path)!r}), 'rank-3')\n"
        done = subprocess.run(
            [sys.executable, "-c", before + textwrap.dedent(lines).replace("capture()\n", capture)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
        assert done.returncode == 0, done.stderr
        out, err = ((tmp_path / f"rank-3.{kind}").read_text() for kind in ("out", "err"))
        return out, err, done.stdout + done.stderr

    return captured


def test_what_python_and_c_write_lies_in_the_files(captured):
    lines = """
    capture()
    print("python", flush=True)
    print("python", file=sys.stderr, flush=True)
    os.write(1, b"c\\n")
    os.write(2, b"c\\n")
    os.system("echo shell; echo shell >&2")
    """
    assert captured(lines) == ("python\nc\nshell\n",) * 2 + ("",)


def test_what_was_printed_before_lies_where_it_went_then(captured):
    lines = """
    sys.stdout.write("before")
    sys.stderr.write("before")
    capture()
    print("after")
    """
    assert captured(lines) == ("after\n", "", "beforebefore")


def test_what_two_processes_write_to_a_file_is_all_there(captured, tmp_path):
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


def test_the_files_are_the_owners_alone(captured, tmp_path):
    captured("os.umask(0)\ncapture()\n")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"rank-3.out": 0o600, "rank-3.err": 0o600}


def test_no_file_is_left_open_beside_stdout_and_stderr(captured):
    lines = """
    before = set(os.listdir("/proc/self/fd"))
    capture()
    print(set(os.listdir("/proc/self/fd")) == before)
    """
    assert captured(lines)[0] == "True\n"


# ---------------------------------------------------------------- its place


def test_a_process_that_inherited_nothing_is_no_rank():
    assert not process.is_rank()


def test_what_a_rank_forks_is_a_rank_too(monkeypatch):
    monkeypatch.setattr(process, "_inherited", [])
    process.inherit("what a job has")
    child = os.fork()
    if child == 0:
        os._exit(process.is_rank())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


# ---------------------------------------------------------------- on several hosts


@pytest.mark.parametrize(("index", "first"), [(0, 0), (2, 8)])
def test_ranks_are_numbered_host_by_host(index, first):
    order = SimpleNamespace(host_group=HostGroup(3, index, ("10.0.0.1", 1234)))
    runtime = SimpleNamespace(ranks=4)
    job = process.Inherited(order, None, {}, None, None, runtime, None, None)
    assert job.first == first


A_RANK = """
import random, sys
from pathlib import Path
from types import SimpleNamespace as Some
from xla_nb.rank import process
from xla_nb.protocol.order import ARGUMENTS, HostGroup
from xla_nb.runtimes import RankInfo

class Runtime:
    ranks = {ranks}
    join = lambda self, local_rank, processes: print("joins", flush=True)
    place = lambda self, rank: RankInfo(0, 8, "device", "device")
    leave = lambda self, why: None
    consequence = lambda self, error: None
    waiting = memory = lambda self: None

threads = Some(get_num_threads=lambda: 1, set_num_threads=lambda count: None)
sys.modules["torch"] = threads
order = Some(
    record={record!r}, host_group=HostGroup(2, 1), entry="f", takes_lock=False,
    by_name=frozenset(),
)
namespace = {{ARGUMENTS: (), "f": lambda rank: print("is", rank)}}
latch = Some(arrive=lambda: None, wait=lambda: None)
sender, table = Some(send=lambda event: None), Some(body=None, sources=())
process.inherit(process.Inherited(
    order, sender, namespace, table, None, Runtime(), latch, random.getstate()
))
process.enter(0, {processes})
del sys.modules["torch"]
process.main({index})
"""


@pytest.fixture
def printed(tmp_path):
    """What a process of the second host prints, by the files in which it lies: it is the first of
    so many, and `index` of all ranks."""

    def printed(ranks, processes, index):
        code = A_RANK.format(ranks=ranks, processes=processes, index=index, record=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return {path.stem: path.read_text() for path in sorted(tmp_path.glob("*.out"))}

    return printed


def test_a_rank_that_has_the_expected_number_prints_into_one_file(printed):
    assert printed(4, 4, 4) == {"rank-4": "joins\nis 4\n"}


@pytest.mark.parametrize("index", [5, 2], ids=["another of its host's", "another host's"])
def test_a_rank_that_the_runtime_numbers_otherwise_prints_under_its_own_number(printed, index):
    assert printed(4, 4, index) == {"rank-4": "joins\n", f"rank-{index}": f"is {index}\n"}


def test_ranks_that_are_threads_of_a_process_share_its_output(printed):
    assert printed(4, 2, 5) == {"rank-4": "joins\nis 5\n"}
