"""Helper processes that ranks start: they know the notebook, and one that dies is told."""

import subprocess
import sys

import pytest

DYING = """
import multiprocessing, os, signal, sys
from xla_nb.rank.helpers import HelperLost, tell_of_lost_helpers
tell_of_lost_helpers()

def exits(x): os._exit(3)
def is_killed(x): os.kill(os.getpid(), signal.SIGKILL)
def cannot_start(): raise ValueError("no start")

class Shut:
    def __reduce__(self): return int, ("no number",)

fork = multiprocessing.get_context("fork")
try:
    with fork.Pool(2, *{initializer}) as pool:
        print({call})
except HelperLost as lost:
    print(lost)
"""
LOST = (
    "A process of the Pool {}, so its task is lost. Read its error, if it had one, in this rank's "
    "stderr."
)
STATUS = "exited with status {} before its function returned"


def outcome(call, initializer=""):
    script = DYING.format(call=call, initializer=f"({initializer})")
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    return process.stdout.rstrip()


@pytest.mark.parametrize(
    "call",
    [
        "pool.map(exits, range(9))",
        "pool.apply(exits, (1,))",
        "pool.starmap(exits, [(1,)])",
        "list(pool.imap(exits, range(3)))",
        "list(pool.imap_unordered(exits, range(3)))",
        "pool.map_async(exits, range(2)).get()",
    ],
)
def test_a_pool_does_not_wait_for_a_process_that_has_exited(call):
    assert outcome(call) == LOST.format(STATUS.format(3))


def test_a_pool_says_by_what_a_process_was_killed():
    killed = "was killed by SIGKILL (often out of memory; check dmesg)"
    assert outcome("pool.map(is_killed, range(2))") == LOST.format(killed)


def test_a_pool_does_not_wait_for_a_task_that_cannot_be_opened():
    assert outcome("pool.map(str, [Shut()])") == LOST.format(STATUS.format(1))


def test_a_pool_whose_processes_cannot_start_says_so():
    assert outcome("pool.map(abs, range(2))", "cannot_start,") == LOST.format(STATUS.format(1))


def test_a_pool_whose_processes_end_as_they_should_goes_on():
    assert outcome("pool.map(abs, range(9), 1)", "None, (), 1") == str(list(range(9)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "helpers",
    [
        "context.Pool(2)",
        "concurrent.futures.ProcessPoolExecutor(2, mp_context=context)",
    ],
)
def test_spawned_helpers_take_and_return_objects_of_both_cells_classes(notebook, helpers):
    notebook.ok(
        "import multiprocessing, concurrent.futures\ncontext = multiprocessing.get_context('spawn')"
        "\nclass Item:\n    def __init__(self, n): self.n = n"
    )
    notebook.ok(
        "%%xla_spawn -n 2 -o helped --timeout 90\n"
        "class Square:\n    def __init__(self, item): self.n = item.n ** 2\n"
        "def square(item): return item, Square(item)\n"
        "def f(rank):\n"
        f"    with {helpers} as pool:\n"
        "        pairs = list(pool.map(square, [Item(2), Item(3)]))\n"
        "    return [(type(i) is Item, type(s) is Square, s.n) for i, s in pairs]"
    )
    assert notebook.value("helped[1]") == "[(True, True, 4), (True, True, 9)]"


@pytest.mark.slow
def test_a_spawned_loader_uses_a_dataset_and_a_collate_function_of_the_notebook(notebook):
    notebook.ok(
        "import torch\n"
        "class Item:\n    def __init__(self, n): self.n = n\n"
        "class Items(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n    def __getitem__(self, n): return Item(n)\n"
        "def collate(items): return torch.tensor([item.n for item in items])"
    )
    notebook.ok(
        "%%xla_spawn -n 2 -o loaded --timeout 180\n"
        "def f(rank):\n"
        "    loader = torch.utils.data.DataLoader(\n"
        "        Items(), 2, num_workers=2, collate_fn=collate, multiprocessing_context='spawn')\n"
        "    return [batch.tolist() for batch in loader]",
        timeout=200,
    )
    assert notebook.value("loaded[1]") == "[[0, 1], [2, 3]]"


@pytest.mark.slow
def test_a_spawned_helper_that_cannot_open_a_value_of_the_launch_names_it(notebook):
    notebook.ok(
        "import multiprocessing\n"
        "class Shut:\n    def __getstate__(self): return 1\n"
        "    def __setstate__(self, state):\n"
        "        name = multiprocessing.current_process().name\n"
        "        if name.startswith('SpawnPool'): raise ValueError('not in a helper')\n"
        "shut = Shut()"
    )
    shown = notebook.run(
        "%%xla_spawn -n 2 --timeout 90\n"
        "def f(rank):\n"
        "    with multiprocessing.get_context('spawn').Pool(2) as pool:\n"
        "        return pool.map(abs, [1]), shut"
    )
    assert "HelperLost: A process of the Pool exited with status 1" in shown.error
    assert "Unopened: Cannot open `shut`: ValueError: not in a helper" in shown.stderr
