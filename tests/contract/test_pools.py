"""A rank's process ends like a script: with its pools, threads and exit handlers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel import Notebook, Shown

LEFT = "threads, processes or `atexit` handlers running; they were killed after 3 s"


def everything(shown: Shown) -> str:
    return shown.stdout + shown.stderr + shown.result + str(shown.data)


def test_idle_pools_left_open_by_ranks_are_not_reported(notebook: Notebook) -> None:
    shown = notebook.ok(
        "%%xla_spawn -n 2 -o pooled\n"
        "import concurrent.futures, multiprocessing, threading, time\n"
        "from joblib import Parallel, delayed\n"
        "def f(rank):\n"
        "    global processes, pool, threads\n"
        "    processes = concurrent.futures.ProcessPoolExecutor(2)\n"
        "    threads = concurrent.futures.ThreadPoolExecutor(2)\n"
        "    pool = multiprocessing.Pool(2)\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "    return [\n"
        "        sum(Parallel(n_jobs=2)(delayed(abs)(-i) for i in range(4))),\n"
        "        *processes.map(abs, [-1]), *threads.map(abs, [-2]), *pool.map(abs, [-3]),\n"
        "    ]"
    )
    assert notebook.value("pooled.results") == "{0: [6, 1, 2, 3], 1: [6, 1, 2, 3]}"
    assert shown.stderr == ""
    assert LEFT not in everything(shown)


def test_exit_handlers_run_in_reverse_order_and_show_output_and_errors(
    notebook: Notebook,
) -> None:
    shown = notebook.ok(
        "%%xla_spawn -n 2 -o handled\n"
        "import atexit\n"
        "def f(rank):\n"
        "    atexit.register(print, 'registered first')\n"
        "    atexit.register(print, 'registered last')\n"
        "    atexit.register(lambda: 1 / 0)\n"
        "    return rank"
    )
    assert [line for line in shown.lines if line.startswith("[1]")] == [
        "[1] registered last",
        "[1] registered first",
    ]
    assert "Exception ignored in atexit callback" in shown.stderr
    assert "line 6, in <lambda>" in shown.stderr
    assert "ZeroDivisionError: division by zero" in shown.stderr
    assert "registered last" in shown.result
    assert "2 ranks finished" in shown.result
    assert notebook.value("handled.results, handled.errors") == "({0: 0, 1: 1}, {})"


def test_exit_handlers_of_a_failed_rank_run(notebook: Notebook) -> None:
    shown = notebook.run(
        "%%xla_spawn -n 1\n"
        "import atexit\n"
        "def f(rank):\n    atexit.register(print, 'at the end')\n    raise ValueError('boom')"
    )
    assert "[0] at the end" in shown.lines
    assert "Rank 0 failed at" in shown.error
    assert "ValueError: boom" in shown.error


def test_forked_processes_of_a_rank_do_not_run_its_exit_handlers(notebook: Notebook) -> None:
    shown = notebook.ok(
        "%%xla_spawn -n 1\n"
        "import atexit, os, sys\n"
        "def f(rank):\n"
        "    atexit.register(print, 'once')\n"
        "    if os.fork() == 0: return\n"
        "    if os.fork() == 0: sys.exit(4)\n"
        "    os.wait(), os.wait()"
    )
    assert shown.lines.count("[0] once") == 1


def test_cleanup_at_exit_runs_on_ranks(notebook: Notebook, tmp_path: Path) -> None:
    """Each rank deletes its own temporary folder, but no rank deletes a shared folder."""
    shown = notebook.ok(
        "%%xla_spawn -n 2 -o tidied\n"
        "import logging, logging.handlers, tempfile\n"
        f"shared = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})\n"
        "def f(rank):\n"
        "    global own\n"
        f"    own = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})\n"
        "    target = logging.StreamHandler()\n"
        "    logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=target))\n"
        "    logging.warning('collected')\n"
        "    return shared.name"
    )
    # There may have been another handler already.
    collected = [line for line in shown.error_lines if line.endswith("] collected")]
    assert sorted(collected) == ["[0] collected", "[1] collected"]
    assert [str(path) for path in tmp_path.iterdir()] == [notebook.value("tidied[0]").strip("'")]


@pytest.mark.parametrize(
    "work",
    [
        "atexit.register(time.sleep, 600)",
        pytest.param(
            "concurrent.futures.ProcessPoolExecutor(1).submit(time.sleep, 600)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_unfinished_work_at_exit_is_reported_and_killed(notebook: Notebook, work: str) -> None:
    shown = notebook.ok(
        f"%%xla_spawn -n 1\nimport atexit, concurrent.futures, time\ndef f(rank):\n    {work}"
    )
    assert "The ranks left " + LEFT in shown.stderr


def test_pool_on_live_ranks_lives_until_the_ranks_end(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok("%xla_start --name pools -n 2")
    first = notebook.ok(
        "%%xla --group pools\n"
        "import atexit, concurrent.futures, os, pathlib\n"
        "the_pool = concurrent.futures.ProcessPoolExecutor(1)\n"
        f"ending_mark = pathlib.Path({str(tmp_path)!r}, str(rank))\n"
        "atexit.register(ending_mark.write_text, 'ended')\n"
        "the_pool.submit(os.getpid).result()"
    )
    second = notebook.ok(
        "%%xla --group pools -o lived\n"
        "the_pool.submit(os.getpid).result() in the_pool._processes, ending_mark.exists()"
    )
    assert notebook.value("lived.results") == "{0: (True, False), 1: (True, False)}"
    for shown in (first, second, notebook.ok("%xla_shutdown pools")):
        assert shown.stderr == ""
        assert LEFT not in everything(shown)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["ended", "ended"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "helpers",
    [
        "context.Pool(2)",
        "concurrent.futures.ProcessPoolExecutor(2, mp_context=context)",
    ],
)
def test_spawned_helpers_exchange_instances_of_cell_classes(
    notebook: Notebook, helpers: str
) -> None:
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
def test_spawned_loader_uses_dataset_and_collate_fn_of_the_notebook(
    notebook: Notebook,
) -> None:
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
