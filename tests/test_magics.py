"""`%%xla_spawn` in a real kernel, as users write it."""

import re
import sys
from importlib.metadata import version

import pytest

from tests.support.kernel import Notebook

SPAWN = "%%xla_spawn -n 2"


def spawn(body, line=""):
    return f"{SPAWN} {line}\n{body}"


# ---------------------------------------------------------------- results


def test_a_function_runs_on_every_rank_and_returns_its_results(notebook):
    shown = notebook.ok(
        '%%xla_spawn -n 4 --args "(0.1,)" -o got\n'
        "import torch_xla\n"
        "def train(rank, lr, lock):\n"
        "    device = torch_xla.device()\n"
        "    with lock:\n"
        '        print(f"rank {rank} on {device}")\n'
        "    return rank, str(device), lr\n"
    )
    assert sorted(shown.lines) == [f"[{r}] rank {r} on xla:0" for r in range(4)]
    assert "4 ranks finished" in shown.result
    assert notebook.value("got.results == {r: (r, 'xla:0', 0.1) for r in range(4)}") == "True"
    assert notebook.value("got[2], got.ok, got.errors") == "((2, 'xla:0', 0.1), True, {})"
    assert notebook.value("got.output(3)") == r"'rank 3 on xla:0\n'"
    assert notebook.value("0 < got.elapsed < 60 and got.record.log(0).exists()") == "True"


def test_a_run_also_has_a_json_representation(notebook):
    shown = notebook.ok(spawn("def f(rank):\n    return rank * 2"))
    data = shown.data["application/vnd.xla-nb.run+json"]
    assert data["ok"]
    assert [rank["result"] for rank in data["ranks"]] == ["0", "2"]


def test_each_rank_has_its_own_process_even_if_it_returns_at_once(notebook):
    notebook.ok("%%xla_spawn -n 8 -o each\nimport os\ndef f(rank): return os.getpid()")
    assert notebook.value("len(set(each.results.values()))") == "8"


def test_a_cell_of_statements_runs_and_its_last_expression_is_the_result(notebook):
    notebook.ok(spawn("print(world_size, device)\nwith lock:\n    x = rank + 1\nx * 10", "-o s"))
    assert notebook.value("s.results") == "{0: 10, 1: 20}"
    assert notebook.value("s.output(0)") == r"'2 xla:0\n'"


def test_the_function_named_on_the_line_is_launched(notebook):
    notebook.ok(
        "%%xla_spawn first -n 2 -o named\n"
        "def first(rank):\n    return 'first'\n"
        "def last(rank):\n    return 'last'"
    )
    assert notebook.value("named[1]") == "'first'"


def test_a_function_from_an_earlier_cell_can_be_launched_by_name(notebook):
    notebook.ok("def earlier(rank):\n    return rank + 40")
    notebook.ok("%%xla_spawn earlier -n 2 -o e\n# nothing but a name")
    assert notebook.value("e.results") == "{0: 40, 1: 41}"


# ---------------------------------------------------------------- values from the notebook


def test_functions_classes_imports_and_values_of_earlier_cells_are_sent(notebook):
    notebook.ok(
        "import numpy as np\nfrom math import tau as full_turn\nSCALE = np.array([1.0, 2.0])\n"
        "class Base:\n    def __init__(self, k):\n        self.k = k\n"
    )
    notebook.ok(
        "class Child(Base):\n    def twice(self):\n        return 2 * self.k\n"
        "def helper(x):\n    return x * SCALE.sum()\nchild = Child(21)"
    )
    notebook.ok(
        spawn("def f(rank):\n    return child.twice(), helper(rank), full_turn > 6, child", "-o g")
    )
    assert notebook.value("g[1][:3]") == "(42, np.float64(3.0), True)"
    assert notebook.value("type(g[1][3]) is Child") == "True"


def test_a_result_keeps_the_class_as_defined_at_its_launch(notebook):
    """Like any object in a notebook, it keeps the class that it was created with."""
    cell = "class Edited:\n    def n(self): return {}\ndef f(rank):\n    return Edited()"
    notebook.ok(spawn(cell.format(1), "-o first"))
    assert notebook.value("type(first[0]) is Edited") == "True"
    notebook.ok(spawn(cell.format(2), "-o second"))
    shown = notebook.ok("print(second[0].n(), first[1].n(), type(second[0]) is Edited)")
    assert (shown.stdout, shown.stderr) == ("2 1 True\n", "")
    notebook.ok("del Edited")
    assert notebook.ok("print(second[1].n())").stdout == "2\n"


OTHERWISE_NAMED = """
import collections, dataclasses, enum, functools
Status_ = enum.Enum("JobStatus_", "OK BAD")
Row_ = collections.namedtuple("Record_", "a b")
Config_ = dataclasses.make_dataclass("Settings_", ["lr"])
def make_block_(width):
    class Block:
        size = width
    return Block
Wide_ = make_block_(8)
registered_ = {}
def register_(name):
    return lambda cls: registered_.setdefault(name, cls)
@register_("a")
class Net_: pass
@register_("b")
class Net_(Net_): pass
First_ = registered_["a"]
class Head_:
    def __init__(self, k=1): self.k = k
Head_ = functools.partial(Head_, k=3)
def all_of_them_():
    one, other = registered_["a"](), registered_["b"]()
    return Status_.OK, Row_(1, 2), Config_(0.1), Wide_(), one, other, Head_(), Status_
"""
KINDS = """
def is_so_(got):
    kinds = Row_, Config_, Wide_, registered_["a"], registered_["b"], Head_.func
    return got[0] is Status_.OK and got[7] is Status_ and [*map(type, got[1:7])] == [*kinds]
"""


def test_results_are_instances_of_notebook_classes_whatever_these_are_called(notebook):
    notebook.ok(OTHERWISE_NAMED)
    notebook.ok(KINDS)
    notebook.ok(spawn("def f(rank): return all_of_them_()", "-n 2 -o kinds_"))
    assert notebook.value("[is_so_(kinds_[rank]) for rank in range(2)]") == "[True, True]"
    notebook.ok("%xla_start --name kinds -n 2")
    notebook.ok("%%xla --group kinds\nkept_ = all_of_them_()")
    notebook.ok("%%xla --group kinds -o kinds_\nkept_")  # needs nothing from the notebook
    assert notebook.value("[is_so_(kinds_[rank]) for rank in range(2)]") == "[True, True]"
    notebook.ok("%xla_shutdown kinds")


def test_a_launch_uses_the_latest_definition(notebook):
    notebook.ok("def version():\n    return 'old'")
    notebook.ok("def version():\n    return 'new'")
    notebook.ok(spawn("def f(rank):\n    return version()", "-o v"))
    assert notebook.value("v[0]") == "'new'"


def test_a_run_uses_the_latest_version_of_an_edited_local_module(notebook, tmp_path):
    module = tmp_path / "local_helper_module.py"
    notebook.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    for word in ("one", "another"):
        module.write_text(f"WORD = {word!r}\n")
        notebook.ok(
            spawn("import local_helper_module\ndef f(rank):\n    return local_helper_module.WORD",
                  "-o m")
        )  # fmt: skip
        assert notebook.value("m[1]") == repr(word)
    notebook.ok(f"sys.path.remove({str(tmp_path)!r})")


def test_ranks_import_a_file_rewritten_since_the_notebooks_import_and_report_it(notebook, tmp_path):
    file = tmp_path / "helper_written.py"
    notebook.ok(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    notebook.ok(f"%%writefile {file}\nRATE = 1\ndef f(): return 'old', RATE")
    notebook.ok("import helper_written")
    notebook.ok(f"%%writefile {file}\nRATE = 20\ndef f(): return 'newer', RATE")
    shown = notebook.ok(spawn("def f(rank):\n    return helper_written.f()", "-o written"))
    assert notebook.value("written[1], helper_written.f()") == "(('newer', 20), ('old', 1))"
    told = "note: the file of `helper_written` has changed since the notebook imported it: "
    assert f"{told}ranks use the version that they imported" in shown.data["text/plain"]
    notebook.ok("import importlib; importlib.reload(helper_written)")
    shown = notebook.ok(spawn("def f(rank):\n    return helper_written.f()", "-o written"))
    assert notebook.value("written[1] == helper_written.f()") == "True"
    assert "was changed" not in shown.data["text/plain"]
    notebook.ok(f"sys.path.remove({str(tmp_path)!r})")


def test_ranks_have_the_notebooks_directory_and_environment_plus_env_options(notebook, tmp_path):
    notebook.ok(
        f"import os; home = os.getcwd(); os.chdir({str(tmp_path)!r}); os.environ['MY'] = '1'"
    )
    notebook.ok(
        spawn(
            "import os\ndef f(rank):\n    return os.getcwd(), os.environ['MY'], os.environ['YOUR']",
            "--env YOUR='2 and 3' -o env",
        )
    )
    notebook.ok("os.chdir(home)")
    assert notebook.value("env[0]") == repr((str(tmp_path), "1", "2 and 3"))


def test_definitions_of_a_launched_cell_are_available_in_later_cells(notebook):
    notebook.ok(
        spawn(
            "import colorsys\nRATE = 3\ndef later(rank):\n    return rank * RATE, colorsys.__name__"
        )
    )
    assert notebook.value("later(5), RATE") == "((15, 'colorsys'), 3)"


def test_arguments_can_refer_to_definitions_of_an_earlier_launched_cell(notebook):
    notebook.ok(spawn("LIMIT = 12\ndef unused(rank): pass"))
    notebook.ok(spawn("def f(rank, limit): return limit", '--args "(LIMIT,)" -o named_args'))
    assert notebook.value("named_args[0]") == "12"


def test_a_function_and_its_spawn_call_can_be_in_one_cell(notebook):
    notebook.ok("import xla_nb\ndef twin(rank): return rank\nboth = xla_nb.spawn(twin, n=2)")
    assert notebook.value("both.results") == "{0: 0, 1: 1}"


def test_a_cell_can_postpone_evaluation_of_annotations(notebook):
    notebook.ok(
        spawn(
            "from __future__ import annotations\ndef f(rank: NoSuchType) -> None: return 3", "-o a"
        )
    )
    assert notebook.value("a[1]") == "3"


@pytest.mark.slow
def test_a_launch_finds_definitions_in_a_notebook_with_hundreds_of_cells(tmp_path):
    notebook = Notebook(XLA_NB_HOME=str(tmp_path))
    try:
        notebook.ok("%load_ext xla_nb")
        notebook.ok("for number in range(600): get_ipython().run_cell(f'{number}', True)")
        notebook.ok("%%xla_spawn -n 1\ndef scaled(rank): return 10 * rank\ndef f(rank): pass")
        notebook.ok("%%xla_spawn -n 2 -o many_\ndef f(rank): return scaled(rank) + 1")
        assert notebook.value("many_.results") == "{0: 1, 1: 11}"
    finally:
        notebook.close()


def test_a_later_launch_uses_definitions_of_an_earlier_launched_cell(notebook):
    notebook.ok(spawn("FACTOR = 5\ndef scaled(rank):\n    return rank * FACTOR"))
    notebook.ok(spawn("def f(rank):\n    return scaled(rank) + 1", "-o l"))
    assert notebook.value("l[1]") == "6"


def test_results_of_a_class_defined_in_the_cell_have_the_notebooks_class(notebook):
    notebook.ok(
        spawn(
            "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n"
            "def f(rank):\n    return Point(rank)",
            "-o points",
        )
    )
    assert notebook.value("points[1] == Point(1)") == "True"


OLD_IPYTHON = int(version("ipython").split(".")[0]) < 8 and sys.version_info >= (3, 12)


@pytest.mark.skipif(OLD_IPYTHON, reason="IPython 7 cannot read `x = !command` on Python 3.12+")
def test_shell_lines_in_a_cell_run_on_the_ranks(notebook):
    notebook.ok(spawn("def f(rank):\n    got = !echo from a shell\n    return got[0]", "-o sh"))
    assert notebook.value("sh[1]") == "'from a shell'"


def test_ranks_get_the_builtin_open_instead_of_ipythons(notebook):
    notebook.ok(spawn("def f(rank):\n    return open is __builtins__['open']", "-o o"))
    assert notebook.value("o[0]") == "True"


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers_find_classes_of_the_cell(notebook, method):
    notebook.ok("OFFSET = 100")
    notebook.ok(
        spawn(
            "import torch\n"
            "class Numbers(torch.utils.data.Dataset):\n"
            "    def __len__(self): return 4\n"
            "    def __getitem__(self, i): return i + OFFSET\n"
            "def f(rank):\n"
            "    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1,\n"
            f"                                         multiprocessing_context={method!r})\n"
            "    return [batch.tolist() for batch in loader]",
            "-o loaded",
        )
    )
    assert notebook.value("loaded[1]") == "[[100, 101], [102, 103]]"


# ---------------------------------------------------------------- shared objects


def test_ranks_share_locks_of_the_notebook(notebook):
    notebook.ok(
        "import multiprocessing as mp\n"
        "queue, gate, shared_lock = mp.Queue(), mp.Barrier(2), mp.Lock()"
    )
    notebook.ok(
        spawn(
            "def f(rank):\n"
            "    with shared_lock:\n        queue.put(rank)\n"
            "    gate.wait(30)\n"
            "    return sorted([queue.get(), queue.get()]) if rank == 0 else gate.parties",
            "-o q",
        )
    )
    assert notebook.value("q.results") == "{0: [0, 1], 1: 2}"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_background_run_shares_multiprocessing_primitives_with_the_notebook(notebook, method):
    notebook.ok(
        f"import multiprocessing as mp\nctx = mp.get_context('{method}')\n"
        "asked, told, go = ctx.Queue(), ctx.Queue(), ctx.Event()\n"
        "total = ctx.Value('i', 0); lock = total.get_lock()"
    )
    notebook.ok(
        "%%xla_spawn -n 2 --bg -o shared\n"
        "def f(rank):\n"
        "    if rank == 0: told.put(asked.get(timeout=60) + ' is there')\n"
        "    go.wait(60)\n"
        "    assert not lock.acquire(block=False)\n"
        "    told.put(rank)\n"
        "    with total.get_lock(): total.value += 1\n"
    )
    notebook.ok("asked.put('who')")
    assert notebook.value("told.get(timeout=60)") == "'who is there'"
    notebook.ok("lock.acquire(); go.set()")
    assert notebook.value("{told.get(timeout=60), told.get(timeout=60)}") == "{0, 1}"
    notebook.ok("lock.release(); shared.wait(60)")
    assert notebook.value("total.value") == "2"


def test_queue_items_can_be_read_after_the_ranks_that_put_them_have_ended(notebook):
    notebook.ok("import multiprocessing as mp\nfilled = mp.get_context('spawn').Queue()")
    notebook.ok(
        spawn(
            "def f(rank):\n"
            "    for number in range(3): filled.put((rank, number, bytes(100_000)))\n"
            "    return 'done'",
            "-o putting",
        )
    )
    assert notebook.value("putting.results") == "{0: 'done', 1: 'done'}"
    notebook.ok("%%xla_spawn -n 1\ndef f(rank): pass")  # ends leftovers of other runs
    read = (
        "sorted((r, n, len(content)) for r, n, content in (filled.get(timeout=60) for _ in '6'*6))"
    )
    assert notebook.value(read) == str([(r, n, 100_000) for r in range(2) for n in range(3)])


def test_a_rank_that_overfills_an_unread_queue_fails(notebook):
    notebook.ok("import multiprocessing as mp\nlarge = mp.Queue()")
    shown = notebook.run(spawn("def f(rank):\n    large.put(bytes(2_000_000))"))
    assert "Both ranks failed (rank " in shown.error
    assert "UnreadError: This rank put more than" in shown.error
    assert "read it in a notebook thread while the ranks run" in shown.error
    assert "handlers running" not in shown.stderr


@pytest.mark.leaves("files")
def test_tensors_and_arrays_in_shared_memory_are_shared_with_the_notebook(notebook):
    notebook.ok(
        "import tempfile, numpy, torch\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "counts = torch.zeros(4).share_memory_()\n"
        "block = SharedMemory(create=True, size=16); bytes_ = numpy.ndarray(16, 'u1', block.buf)\n"
        "on_disk = numpy.memmap(tempfile.TemporaryFile(), 'f8', 'w+', shape=(600,))"
    )
    shown = notebook.ok(
        spawn(
            "def f(rank):\n"
            "    counts[rank], bytes_[rank], on_disk[rank] = 1 + rank, 10 + rank, 100 + rank\n"
            "    return type(on_disk).__name__"
        )
    )
    assert "with the notebook: every process sees every write" in shown.stderr
    assert notebook.value("counts.tolist()[:2], bytes_[:2].tolist(), on_disk[:2].tolist()") == (
        "([1.0, 2.0], [10, 11], [100.0, 101.0])"
    )
    notebook.ok("del bytes_; block.close(); block.unlink()")


def test_a_queue_created_before_loading_the_extension_is_refused(notebook):
    notebook.ok("from xla_nb.pickling import multiprocess as shared\nshared.named().turn_off()")
    made = notebook.ok("import multiprocessing as mp\nolder = mp.Queue()").number
    notebook.ok("shared.named().turn_on()")
    shown = notebook.run(spawn("def f(rank): older.put(rank)"))
    assert (
        f"Cannot send `older` (multiprocessing.queues.Queue, defined in Cell In[{made}], line 2) "
        "to ranks: it is or contains a multiprocessing Queue that only forked processes can use. "
        "Re-create it after `%load_ext xla_nb`"
    ) in shown.error
    notebook.ok("older.close()")


def test_a_manager_of_the_notebook_works_on_ranks(notebook):
    notebook.ok("import multiprocessing as mp\nmanager = mp.Manager(); board = manager.dict()")
    notebook.ok(spawn("def f(rank):\n    board[rank] = rank * 7"))
    assert notebook.value("dict(sorted(board.items()))") == "{0: 0, 1: 7}"
    notebook.ok("manager.shutdown()")


# ---------------------------------------------------------------- output


def test_an_interrupt_stops_a_run_that_prints_faster_than_it_is_shown(notebook):
    def when_it_prints(shown):
        if "] y" in shown.stdout and not asked:
            asked.append(True)
            notebook.interrupt()

    asked: list[bool] = []
    flood = spawn("import os\ndef f(rank): os.system('yes')", "--grace 0.3")  # it ignores SIGINT
    shown = notebook.run(flood, during=when_it_prints)
    assert "Stopped by an interrupt" in shown.error
    assert " more lines" in shown.stdout


def test_output_of_c_code_and_progress_bars_is_shown_line_by_line(notebook):
    shown = notebook.ok(
        spawn(
            "import os, sys\ndef f(rank):\n"
            "    os.system('echo from C')\n"
            "    for i in range(5): print(f'\\rbar {i}', end='')\n"
            "    print()\n    print('warned', file=sys.stderr)\n    print('the end', end='')"
        )
    )
    assert [line for line in shown.lines if line.startswith("[0]")][:2] == [
        "[0] from C",
        "[0] bar 4",
    ]
    assert "[1] the end" in shown.lines
    assert "[1] warned" in shown.error_lines


def test_a_flood_of_output_is_shortened_in_the_notebook_but_complete_in_the_file(notebook):
    shown = notebook.ok(
        spawn("def f(rank):\n    for i in range(5000):\n        print('line', i)", "-o flood")
    )
    assert "[0] line 4999" in shown.lines
    assert "[0] … 3,980 more lines in " in shown.stdout
    assert len(shown.lines) < 2 * 1100
    assert notebook.value("flood.output(1).count(chr(10))") == "5000"


def test_braces_in_args_are_kept_while_other_braces_are_expanded(notebook):
    notebook.ok("N, x = 2, 7")
    notebook.ok(
        '%%xla_spawn -n {N} --view text --args "({1, 2}, {x}, {x: N})" -o braces\n'
        "def f(rank, *args): return args"
    )
    assert notebook.value("braces.results[1]") == "({1, 2}, {7}, {7: 2})"
    assert notebook.value("len(braces.results)") == "2"


def test_a_model_passed_as_an_argument_is_the_one_a_global_optimizer_trains(notebook):
    notebook.ok(
        "import math, torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__(); self.layer = torch.nn.Linear(2, 1)\n"
        "    def forward(self, x): return self.layer(x)\n"
        "    def same(self, rank, layer): return self.layer is layer\n"
        "model = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n"
        "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: math.cos(n))"
    )
    notebook.ok(
        '%%xla_spawn -n 2 --view text --args "(model,)" -o trained\n'
        "def train(rank, net):\n    before = net.layer.weight.detach().clone()\n"
        "    net(torch.ones(1, 2)).sum().backward(); optimizer.step(); schedule.step()\n"
        "    return (bool((before != net.layer.weight).any()), schedule.optimizer is optimizer,\n"
        "            optimizer.param_groups[0]['lr'] < 0.5)"
    )
    assert notebook.value("trained.results[1]") == "(True, True, True)"
    notebook.ok(
        "import xla_nb\nown = xla_nb.spawn(model.same, args=(model.layer,), n=2, view='none')"
    )
    assert notebook.value("own.results") == "{0: True, 1: True}"


def test_line_numbers_include_magics_above_the_launch(notebook):
    shown = notebook.run(
        "%%time\n%%xla_spawn -n 2 --view text\ndef f(rank):\n    raise ValueError('boom')"
    )
    assert f"at Cell In[{shown.number}], line 4: ValueError: boom" in shown.error


def test_a_cell_can_launch_several_times(notebook):
    notebook.ok(
        "launch = get_ipython().run_cell_magic\n"
        "made = [launch('xla_spawn', f'-n {n} --view text', f'{n} + rank') for n in (1, 2)]"
    )
    assert notebook.value("[run.results for run in made]") == "[{0: 1}, {0: 2, 1: 3}]"


def test_each_launch_of_a_cell_has_its_own_line_numbers(notebook):
    notebook.ok(
        "launch = get_ipython().run_cell_magic\n"
        "first = launch('xla_spawn', '-n 1 --view none', '1')\n"
        "second = launch('xla_spawn', '-n 1 --view none --keep-going', '1 / 0')"
    )
    assert ", launch 1" in notebook.value("first.label")
    assert ", launch 2, line 2" in notebook.value("second.errors[0].place")
    assert "1 / 0" in notebook.value("second.errors[0].traceback")


def test_code_cannot_launch_a_cell_with_a_function(notebook):
    shown = notebook.run(
        "get_ipython().run_cell_magic('xla_spawn', '-n 1', 'ran = 1\\ndef f(rank): pass')"
    )
    assert "call xla_nb.spawn(function)" in shown.error
    assert notebook.value("'ran' in vars()") == "False"


def test_ranks_and_notebook_share_values_computed_at_top_level_of_a_launched_cell(notebook):
    notebook.ok(
        spawn(
            "import random, torch\n"
            "seed = random.random()\n"
            "model = torch.nn.Linear(2, 1)\n"
            "def f(rank): return seed, model.weight.detach().clone()",
            "-o first",
        )
    )
    assert notebook.value("first[0][0] == first[1][0] == seed") == "True"
    assert notebook.value("bool((model.weight == first[0][1]).all())") == "True"
    notebook.ok(spawn("def g(rank): return seed, model.weight.detach().clone()", "-o second"))
    assert notebook.value("second[1][0] == seed") == "True"
    assert notebook.value("bool((second[1][1] == first[0][1]).all())") == "True"


def test_exit_ends_a_rank_without_a_result(notebook):
    notebook.ok(spawn("def f(rank):\n    exit()", "-o left"))
    assert notebook.value("left.results") == "{0: None, 1: None}"


# ---------------------------------------------------------------- failures


def test_a_failure_names_rank_cell_and_line_and_shows_the_source_line(notebook):
    shown = notebook.run(spawn("def f(rank):\n    x = 1\n    raise ValueError('boom')", "-o bad"))
    assert shown.status == "error"
    assert shown.ename == "RunFailed"
    place = f"Cell In[{shown.number}], line 4"
    assert "RunFailed: Both ranks failed (rank " in shown.error
    assert f" first) at {place}: ValueError: boom" in shown.error
    assert "raise ValueError('boom')" in shown.result
    assert shown.result.count("Traceback") == 1
    assert "ranks 0, 1:" in shown.result
    assert "xla_nb/" not in (shown.error + shown.result).replace("xla_nb/runs", "")
    assert (
        notebook.value("bad.ok, sorted(bad.errors), bad.errors[0].message")
        == "(False, [0, 1], 'boom')"
    )


def test_a_failure_is_shown_before_the_other_ranks_have_stopped(notebook, tmp_path):
    shown = notebook.run(
        spawn(
            f"import time, pathlib\nflag = pathlib.Path({str(tmp_path / 'asleep')!r})\n"
            "def f(rank):\n    while rank == 1:\n"
            "        if flag.exists(): raise ValueError('early')\n    try:\n"
            "        while True: flag.touch(); time.sleep(0.05)\n"
            "    finally:\n        print('woken')",
            "--grace 2",
        )
    )
    assert "Rank 1 failed at" in shown.error
    assert f"rank 0: stopped at Cell In[{shown.number}], line 8" in shown.result
    assert shown.seen("ValueError: early") < shown.seen("woken")


def test_keep_going_returns_the_failed_run(notebook):
    shown = notebook.ok(
        spawn("def f(rank):\n    assert rank == 0\n    return 'kept'", "--keep-going -o k")
    )
    assert "Rank 1 failed" in shown.result
    assert notebook.value("k.results, list(k.errors)") == "({0: 'kept'}, [1])"


def test_a_killed_rank_is_reported_with_its_signal(notebook):
    shown = notebook.run(
        spawn(
            "import os, signal\ndef f(rank):\n    print('last words')\n"
            "    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)",
            "-o killed",
        )
    )
    assert "Rank 1 was killed by SIGKILL" in shown.error
    assert notebook.value("killed.output(1)") == r"'last words\n'"


def test_an_early_exit_is_distinguished_from_a_normal_return(notebook):
    shown = notebook.run(
        spawn("import os, sys\ndef f(rank):\n    sys.exit(0) if rank else os._exit(0)")
    )
    assert "Rank 0 exited with status 0 before finishing" in shown.error
    assert "Rank 1 failed" not in shown.error


def test_statements_that_exit_successfully_return_none(notebook):
    notebook.ok("%%xla_spawn -n 2 -o exited\nimport sys\nif rank: sys.exit()\nrank")
    assert notebook.value("exited.results") == "{0: 0, 1: None}"
    shown = notebook.run("%%xla_spawn -n 2\nimport sys\nif rank: sys.exit(2)\nrank")
    assert "Rank 1 failed at " in shown.error
    assert "SystemExit: 2" in shown.error


def test_a_result_that_cannot_be_pickled_fails_only_its_rank(notebook):
    shown = notebook.run(
        spawn("def f(rank):\n    return (i for i in 'ab') if rank else 'fine'", "-o half")
    )
    assert (
        "Rank 1 failed: ResultError: Cannot send the result (builtins.generator) to" in shown.error
    )
    assert notebook.value("half.results") == "{0: 'fine'}"


def test_an_interrupt_stops_every_rank_and_reports_where_they_were(notebook):
    interrupted = []

    def when_all_run(shown):
        if {"[0] running", "[1] running"} <= {*shown.lines} and not interrupted:
            interrupted.append(True)
            notebook.interrupt()

    shown = notebook.run(
        spawn(
            "import itertools, time\ndef f(rank):\n    try:\n"
            "        for n in itertools.count(): time.sleep(0.05) if n else print('running')\n"
            "    finally:\n        print('tidied')",
            "-o stopped",
        ),
        during=when_all_run,
    )
    assert "RunFailed: Stopped by an interrupt" in shown.error
    assert f"ranks 0, 1: stopped at Cell In[{shown.number}], line 5" in shown.result
    assert shown.printed.count("tidied") == 2
    assert notebook.value("stopped.done") == "True"


def test_a_rank_that_ignores_signals_is_ended_anyway(notebook):
    def when_running(shown):
        if {"[0] running", "[1] running"} <= {*shown.lines} and not done:
            done.append(True)
            notebook.interrupt()

    done: list[bool] = []
    shown = notebook.run(
        spawn(
            "import signal, time\ndef f(rank):\n"
            "    for number in (signal.SIGINT, signal.SIGTERM):\n"
            "        signal.signal(number, signal.SIG_IGN)\n"
            "    print('running', flush=True); time.sleep(600)",
            "-o deaf --grace 0.2",
        ),
        during=when_running,
    )
    assert f"ranks 0, 1: stopped at Cell In[{shown.number}], line 6" in shown.result
    assert notebook.value("deaf.done") == "True"


WAITS = """
import multiprocessing, os, queue, select, socket, subprocess, threading, time
def f(rank):
    held = threading.Lock(); held.acquire()
    shared = multiprocessing.Lock(); shared.acquire()
    one, two = socket.socketpair()
    waits = [
        lambda: time.sleep(600),
        lambda: queue.Queue().get(),
        lambda: held.acquire(),
        lambda: shared.acquire(),
        lambda: one.recv(1),
        lambda: subprocess.run(["sleep", "600"]),
        lambda: select.select([one], [], []),
        lambda: threading.Event().wait(),
        lambda: multiprocessing.Queue().get(),
    ]
    print("up", flush=True)
    try:
        waits[rank]()
    finally:
        time.sleep(1.2)
        print("tidied", flush=True)
"""


def test_finally_gets_the_grace_period_in_any_blocking_system_call(notebook):
    notebook.ok(f"%%xla_spawn -n 9 --bg -o waiters --grace 60\n{WAITS}")
    notebook.ok(
        "while not waiters.done and not all('up' in waiters.output(r) for r in range(9)): "
        "__import__('time').sleep(0.02)"
    )
    notebook.ok("waiters.stop()\ntry: waiters.wait(60)\nexcept xla_nb.RunFailed: pass")
    outputs = notebook.value("[waiters.output(rank) for rank in range(9)]")
    assert outputs == repr(["up\ntidied\n"] * 9)
    assert "may take up to 60 s to clean up" in notebook.value("waiters.state.notices[-1].text")


def test_only_an_interrupt_that_python_loses_is_repeated(notebook):
    notebook.ok(
        "%%xla_spawn -n 2 --bg -o unheard --grace 60\nimport os, signal, time\ndef f(rank):\n"
        "    heard = signal.getsignal(signal.SIGINT)\n"
        "    def loses(*about): signal.signal(signal.SIGINT, heard)\n"
        "    if rank: signal.signal(signal.SIGINT, loses)\n"
        "    try:\n        print('up', flush=True); time.sleep(600)\n"
        "    finally:\n        os.kill(os.getpid(), signal.SIGINT); time.sleep(0.5)\n"
        "        print('tidied', flush=True)"
    )
    notebook.ok("while not all(map(unheard.output, (0, 1))): __import__('time').sleep(0.02)")
    notebook.ok("unheard.stop()\ntry: unheard.wait(50)\nexcept xla_nb.RunFailed: pass")
    assert notebook.value("[unheard.output(rank) for rank in (0, 1)]") == repr(["up\ntidied\n"] * 2)


def test_a_custom_signal_handler_receives_one_interrupt(notebook):
    notebook.ok(
        "%%xla_spawn -n 1 --bg -o minds --grace 60\nimport signal, time\ndef f(rank):\n"
        "    got = []\n    signal.signal(signal.SIGINT, lambda *about: got.append(1))\n"
        "    print('up', flush=True)\n    while not got: time.sleep(0.01)\n"
        "    time.sleep(1.5)\n    print(len(got), flush=True)"
    )
    notebook.ok("while not minds.output(0): __import__('time').sleep(0.02)")
    notebook.ok("minds.stop()\ntry: minds.wait(50)\nexcept xla_nb.RunFailed: pass")
    assert notebook.value("minds.output(0)") == repr("up\n1\n")


def test_a_crash_during_cleanup_is_reported_with_its_cause(notebook):
    crashing = "os.kill(os.getpid(), signal.SIGSEGV) if rank else os._exit(7)"
    notebook.ok(
        "%%xla_spawn -n 2 --bg -o crashing\nimport os, signal, time\ndef f(rank):\n    try:\n"
        f"        print('up', flush=True); time.sleep(600)\n    finally:\n        {crashing}"
    )
    notebook.ok("while not all(map(crashing.output, (0, 1))): __import__('time').sleep(0.02)")
    shown = notebook.run("crashing.stop('Enough'); crashing.wait(60)")
    assert "RunFailed: Enough" in shown.error
    assert "rank 0: exited with status 7 before finishing" in shown.error
    assert "rank 1: crashed with SIGSEGV" in shown.error


def test_an_error_during_a_stop_shows_no_internal_frames(notebook):
    notebook.ok(
        "%%xla_spawn -n 1 --bg -o unclean\nimport time\nprint('up', flush=True)\ntry:\n"
        "    time.sleep(600)\nexcept BaseException as error:\n"
        "    raise ValueError('unclean') from error"
    )
    notebook.ok("while not unclean.output(0): __import__('time').sleep(0.02)")
    shown = notebook.run("unclean.stop('Enough'); unclean.wait(60)")
    assert "RunFailed: Enough; rank 0 failed while it stopped" in shown.error
    assert re.search(r"    time\.sleep\(600\)\n( +[~^]+\n)?KeyboardInterrupt\n", shown.error)
    assert "in _interrupt" not in shown.error


def test_a_second_interrupt_ends_ranks_that_are_slow_to_stop(notebook):
    sent = []

    def interrupt(shown):
        did = ("running", "tidying")[min(len(sent), 1)]
        if len(sent) < 2 and {f"[0] {did}", f"[1] {did}"} <= {*shown.lines}:
            sent.append(True)
            notebook.interrupt()

    shown = notebook.run(
        spawn(
            "import time\ndef f(rank):\n    try:\n"
            "        print('running', flush=True); time.sleep(600)\n"
            "    finally:\n        print('tidying', flush=True); time.sleep(600)",
            "--grace 600",
        ),
        during=interrupt,
    )
    assert "Stopped again: sent SIGTERM to ranks 0, 1 (" in shown.stderr
    assert "RunFailed: Stopped by an interrupt" in shown.error


def test_a_process_forked_by_a_rank_is_not_mistaken_for_the_rank(notebook):
    notebook.ok(
        spawn(
            "import os, sys\ndef f(rank):\n    child = os.fork()\n    if child == 0:\n"
            "        if rank: raise ValueError('in the child')\n        sys.exit(7)\n"
            "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])",
            "-o forked",
        )
    )
    assert notebook.value("forked.results, forked.errors") == "({0: 7, 1: 1}, {})"
    assert "in the child" in notebook.value("forked.output(1, 'err')")


def test_a_rank_that_closes_its_stdout_ends_normally(notebook):
    body = "import sys\ndef f(rank):\n    sys.stdout.close()\n    return rank"
    shown = notebook.ok(spawn(body, "-o closed"))
    assert notebook.value("closed.results") == "{0: 0, 1: 1}"
    assert shown.stderr == ""


def test_threads_ended_with_their_rank_are_reported(notebook):
    body = (
        "import threading, time\ndef f(rank):\n"
        "    if rank: threading.Thread(target=time.sleep, args=(600,)).start()"
    )
    shown = notebook.ok(spawn(body))
    assert "The ranks left threads, processes or `atexit` handlers running" in shown.stderr


def test_stopping_a_run_repeatedly_does_not_affect_other_runs(notebook):
    notebook.ok(
        spawn("import time\ndef f(rank):\n    try: time.sleep(600)\n"
              "    finally: time.sleep(600)", "--bg --grace 600 -o stayer")
    )  # fmt: skip
    notebook.ok(spawn("import time\ndef f(rank):\n    time.sleep(1); return rank", "--bg -o goer"))
    notebook.ok(
        "while not all(r.pid for run in (stayer, goer) for r in run.state.ranks.values()): pass\n"
        "for _ in range(9): stayer.stop()\ngoer.wait(60)"
    )
    assert notebook.value("goer.results") == "{0: 0, 1: 1}"


def test_a_rank_interrupted_from_outside_is_reported_as_the_cause(notebook):
    notebook.ok(
        spawn(
            "import time\nimport torch_xla.core.xla_model as xm\ndef f(rank):\n"
            "    if rank: xm.rendezvous('never')\n    print('up', flush=True)\n"
            "    while True: time.sleep(0.05)  # a long one might begin just as the signal comes",
            "--bg -o struck",
        )
    )
    notebook.ok(
        "import os, signal\nwhile not struck.done and not (\n"
        "    struck.output(0) and (seen := struck.sample(1)) and seen.activity == 'waiting'\n"
        "): __import__('time').sleep(0.02)\n"
        "os.kill(struck.state.ranks[0].pid, signal.SIGINT)"
    )
    notebook.ok("try: struck.wait(60)\nexcept xla_nb.RunFailed as failed: told = str(failed)")
    told = notebook.value("told")
    assert "Rank 0 was interrupted (SIGINT) at Cell In[" in told.splitlines()[0]
    assert "1 other failed because of it" in told.splitlines()[0]


def test_a_run_stops_at_its_time_limit(notebook):
    shown = notebook.run(
        spawn("import time\ndef f(rank):\n    while True: time.sleep(0.05)", "--timeout 0.5s")
    )
    assert "RunFailed: Timed out after 0.5 s (timeout)" in shown.error


# ---------------------------------------------------------------- in the background


def test_a_background_run_returns_at_once_and_supports_wait(notebook):
    notebook.ok("import pathlib, tempfile\ngate_file = pathlib.Path(tempfile.mkdtemp()) / 'go'")
    shown = notebook.ok(
        spawn(
            "import time\ndef f(rank):\n"
            "    while not gate_file.exists(): time.sleep(0.01)\n    return 9",
            "--bg -o back",
        )
    )
    assert "finished" not in shown.result
    notebook.ok("gate_file.touch(); back.wait(60)")
    assert notebook.value("back.results") == "{0: 9, 1: 9}"
    notebook.ok("import shutil; shutil.rmtree(gate_file.parent)")


def test_a_background_run_can_be_stopped(notebook):
    notebook.ok(spawn("import time\ndef f(rank):\n    while True: time.sleep(0.01)", "--bg -o bg"))
    notebook.ok("bg.stop()\ntry: bg.wait(60)\nexcept xla_nb.RunFailed as e: why = str(e)")
    assert "Stopped by run.stop()" in notebook.value("why")


def test_two_concurrent_runs_do_not_interfere(notebook, tmp_path):
    for name, other in ("ab", "ba"):
        notebook.ok(
            spawn(
                f"import time, pathlib\nmeeting = pathlib.Path({str(tmp_path)!r})\n"
                f"def f(rank):\n    (meeting / '{name}').touch()\n"
                f"    while not (meeting / '{other}').exists(): time.sleep(0.01)\n"
                f"    return '{name}'",
                f"--bg -o {name} --timeout 60",
            )
        )
    notebook.ok("a.wait(100), b.wait(100)")
    assert notebook.value("a.results, b.results") == "({0: 'a', 1: 'a'}, {0: 'b', 1: 'b'})"


# ---------------------------------------------------------------- wrong input

WRONG = {
    "an unknown option": (
        "%%xla_spawn --bogus\ndef f(rank): pass",
        "Unknown option --bogus",
    ),
    "no ranks": (
        "%%xla_spawn -n 0\ndef f(rank): pass",
        "-n must be a whole number of at least 1, not '0'.",
    ),
    "a negative number": (
        "%%xla_spawn -n -3\ndef f(rank): pass",
        "-n must be a whole number of at least 1, not '-3'.",
    ),
    "a number of ranks that is not a number": (
        "%%xla_spawn -n many\ndef f(rank): pass",
        "-n must be a whole number of at least 1, not 'many'.",
    ),
    "args that are not a tuple": (
        '%%xla_spawn --args "0.1"\ndef f(rank, x): pass',
        '"(0.1,)"',
    ),
    "args that raise": (
        '%%xla_spawn --args "1/0,"\ndef f(rank, x): pass',
        "ZeroDivisionError",
    ),
    "an open quote": ('%%xla_spawn --args "(1,\ndef f(rank, x): pass', "missing closing quote"),
    "an unknown function": ("%%xla_spawn nobody\ndef f(rank): pass", "no function named nobody"),
    "an entry point that is not a function": ("%%xla_spawn f\nf = 3", "Cannot launch f: "),
    "too few arguments": ("%%xla_spawn\ndef f(rank, x): pass", "missing a required argument: 'x'"),
    "too many arguments": ('%%xla_spawn --args "(1, 2)"\ndef f(rank): pass', "too many"),
    "a syntax error": ("%%xla_spawn\ndef f(rank:\n    pass", "line 2"),
    "an undefined name": ("%%xla_spawn\ndef f(rank):\n    return nowhere_to_be_found", "line 3"),
    "an invalid time": (
        "%%xla_spawn --timeout soon\ndef f(rank): pass",
        "Invalid --timeout 'soon'. Use 90, 5m or 2h.",
    ),
    "an unknown engine": (
        "%%xla_spawn --on nowhere\ndef f(rank): pass",
        "Unknown --on 'nowhere'. Choose local, ray or ray://HOST:PORT.",
    ),
    "several hosts on one machine": (
        "%%xla_spawn --hosts 2\ndef f(rank): pass",
        "--hosts 2 needs --on ray: this machine is one host.",
    ),
    "no hosts": (
        "%%xla_spawn --on ray --hosts 0\ndef f(rank): pass",
        "--hosts must be a whole number of at least 1",
    ),
    "an invalid wait": (
        "%%xla_spawn --on ray --wait soon\ndef f(rank): pass",
        "Invalid --wait 'soon'.",
    ),
    "an invalid assignment": (
        "%%xla_spawn --env FOO\ndef f(rank): pass",
        "--env needs NAME=VALUE: the name of a variable, `=` and its value.",
    ),
    "a target that is a keyword": (
        "%%xla_spawn -o class\ndef f(rank): pass",
        "-o needs a variable name; 'class' is not one.",
    ),
    "an unknown view": (
        "%%xla_spawn --view pannel\ndef f(rank): pass",
        "Unknown --view 'pannel'. Choose panel, text or none.",
    ),
    "a target that is not a name": (
        "%%xla_spawn -o 1x\ndef f(rank): pass",
        "-o needs a variable name; '1x' is not one.",
    ),
    "a magic that ranks do not have": ("%%xla_spawn\ndef f(rank):\n    %timeit 1", "timeit"),
}


@pytest.mark.parametrize("what", WRONG)
def test_invalid_input_raises_a_short_error_that_names_the_fix(notebook, what):
    cell, said = WRONG[what]
    shown = notebook.run(cell)
    assert shown.status == "error"
    assert said in shown.error
    assert "Traceback" not in shown.error
    assert "site-packages" not in shown.error


def test_an_open_file_is_refused_with_its_name_and_the_cell_that_defined_it(notebook):
    made = notebook.ok("handle = open('/etc/hostname')").number
    shown = notebook.run(spawn("def f(rank):\n    return handle.read()"))
    assert "`handle` (_io.TextIOWrapper" in shown.error
    assert f"Cell In[{made}]" in shown.error
    assert "Open it inside the function" in shown.error
    notebook.ok("handle.close(); del handle")


def test_opening_a_device_at_top_level_is_refused_with_its_line(notebook):
    shown = notebook.run(
        spawn("import torch_xla\ndevice = torch_xla.device()\ndef f(rank):\n    return device")
    )
    assert f"Cell In[{shown.number}], line 3, would open the XLA device" in shown.error


def test_launching_from_a_rank_is_refused(notebook):
    shown = notebook.run(
        spawn("import xla_nb\ndef g(i): return i\ndef f(rank):\n    return xla_nb.spawn(g)")
    )
    assert "`%%xla_spawn` already launches this cell" in shown.error


# ---------------------------------------------------------------- settings and help


def test_config_shows_sets_and_resets_defaults(notebook):
    assert "grace       5.0" in notebook.ok("%xla_config").stdout
    assert "n           3" in notebook.ok("%xla_config n=3").stdout
    notebook.ok("%%xla_spawn -o three\ndef f(rank): return rank")
    assert notebook.value("len(three.results)") == "3"
    assert "n           None" in notebook.ok("%xla_config reset").stdout


@pytest.mark.parametrize(
    "wrong", ["speed=3", "n=many", "n", "timeout=soon", "keep_going=2", "view=pannel"]
)
def test_an_invalid_setting_is_refused(notebook, wrong):
    shown = notebook.run(f"%xla_config {wrong}")
    assert shown.ename == "UsageError"
    notebook.ok("%xla_config reset")


@pytest.mark.parametrize(("text", "value"), [("no", "False"), ("yes", "True"), ("False", "False")])
def test_a_boolean_setting_accepts_words(notebook, text, value):
    assert f"keep_going  {value}" in notebook.ok(f"%xla_config keep_going={text}").stdout
    notebook.ok("%xla_config reset")


@pytest.mark.parametrize(("view", "lines"), [("--view text", 2), ("--view none", 0), ("", 0)])
def test_a_background_run_prints_its_output_only_with_the_text_view(notebook, view, lines):
    shown = notebook.ok(
        "import threading\n"
        f"get_ipython().run_cell_magic('xla_spawn', '-n 2 --bg {view} -o behind',\n"
        "    'print(\"from behind\", rank)')\n"
        "behind.wait(60)\n"
        "for thread in threading.enumerate():\n"
        "    if thread.name == f'{behind.name}-view': thread.join(60)"
    )
    assert shown.printed.count("] from behind") == lines


def test_help_lists_all_options(notebook):
    notebook.client.execute("%%xla_spawn?")
    reply = notebook.client.get_shell_msg(timeout=30)
    text = reply["content"]["payload"][0]["data"]["text/plain"]
    options = "-n N,--args EXPR,--env NAME,--timeout TIME,--grace TIME,--keep-going,--bg,-o NAME"
    assert [option for option in options.split(",") if option not in text] == []


@pytest.mark.slow
@pytest.mark.leaves("processes")  # a new fork server for later tests
def test_the_extension_can_be_reloaded(notebook):
    notebook.ok("%reload_ext xla_nb")
    notebook.ok(spawn("def f(rank): return rank", "-o again"))
    assert notebook.value("again.results") == "{0: 0, 1: 1}"


# ---------------------------------------------------------------- process state


def test_ranks_continue_the_notebooks_random_sequences(notebook):
    body = (
        "import random, numpy as np, torch\ndef f(rank):\n"
        "    return random.random(), float(np.random.rand()), float(torch.rand(1))"
    )
    notebook.ok("import random, numpy as np; random.seed(3); np.random.seed(3)")
    notebook.ok(spawn(body, "-o drawn"))
    notebook.ok("random.seed(3); np.random.seed(3)")
    assert notebook.value("[r[:2] for r in drawn.results.values()] == "
                          "[(random.random(), float(np.random.rand()))] * 2") == "True"  # fmt: skip


def test_two_launches_without_a_seed_draw_different_numbers(notebook):
    for name in ("one", "other"):
        notebook.ok(
            spawn("import torch\ndef f(rank): return float(torch.rand(1))", f"-o drawn_{name}")
        )
    assert notebook.value("drawn_one[0] == drawn_other[0]") == "False"


def test_logging_can_be_configured_on_ranks_as_in_a_script(notebook):
    notebook.ok("import logging\nlogging.getLogger().handlers.clear()")  # left by another test
    shown = notebook.ok(
        spawn(
            "import logging\ndef f(rank):\n    logging.basicConfig(level=logging.INFO)\n"
            "    logging.info('heard')"
        )
    )
    assert "[0] INFO:root:heard" in shown.error_lines


def test_output_of_the_cells_top_level_is_shown(notebook):
    shown = notebook.ok(spawn("print('loading the data')\ndef f(rank): pass"))
    assert shown.stdout == "loading the data\n"


def test_a_rank_that_raises_keyboard_interrupt_itself_fails(notebook):
    shown = notebook.run(spawn("def f(rank):\n    raise KeyboardInterrupt"))
    assert "Both ranks failed (rank" in shown.error
    assert "KeyboardInterrupt" in shown.error


def test_a_rank_stopped_in_a_collective_runs_its_cleanup(notebook):
    notebook.ok(
        spawn(
            "import time\nimport torch_xla.core.xla_model as xm\ndef f(rank):\n    try:\n"
            "        print('here', flush=True)\n"
            "        while rank: time.sleep(0.05)\n        xm.rendezvous('never')\n"
            "    finally:\n        print('tidied')",
            "--bg -o waits",
        )
    )
    notebook.ok(
        "while not waits.done and not (\n"
        "    waits.output(1) and (seen := waits.sample(0)) and seen.activity == 'waiting'\n"
        "): __import__('time').sleep(0.02)"
    )
    notebook.ok("waits.stop()\ntry: waits.wait(60)\nexcept xla_nb.RunFailed: pass")
    assert notebook.value("[waits.output(rank) for rank in (0, 1)]") == repr(["here\ntidied\n"] * 2)


@pytest.mark.parametrize("body", ["# later", "class A:\n    pass", "import os"])
def test_a_cell_that_runs_nothing_is_refused(notebook, body):
    assert "nothing for ranks to run" in notebook.run(spawn(body)).error


def test_launching_from_a_deleted_working_directory_is_refused(notebook):
    notebook.ok(
        "import os, tempfile; home = os.getcwd(); lost = tempfile.mkdtemp(); os.chdir(lost)"
    )
    notebook.ok("os.rmdir(lost)")
    shown = notebook.run(spawn("def f(rank): pass"))
    notebook.ok("os.chdir(home)")
    assert "working directory no longer exists" in shown.error
    assert "Traceback" not in shown.error
