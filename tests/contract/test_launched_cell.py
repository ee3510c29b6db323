"""`%%xla_spawn` on a cell with a function: the notebook runs the cell, then ranks call it."""

import re

import pytest

from tests.support.kernel import COLD, Notebook


def spawn(cell, options="-n 2"):
    return f"%%xla_spawn {options}\n{cell}"


@pytest.fixture
def refused(notebook):
    """Runs a cell that must fail and launch nothing; returns its output."""

    def run(cell):
        notebook.ok("import pathlib, os\nruns_there = pathlib.Path(os.environ['XLA_NB_HOME'])")
        count = "len([*runs_there.glob('runs/*')])"
        before = notebook.value(count)
        shown = notebook.run(cell)
        assert shown.status == "error"
        assert notebook.value(count) == before
        shown.error = re.sub(r"\x1b\[[\d;]*m", "", shown.error)
        return shown

    return run


# ---------------------------------------------------------------- effects on the notebook


def test_variables_of_the_cell_stay_in_the_notebook(notebook):
    notebook.ok(
        spawn(
            "import math as here_math\nhere_lr = 0.5\nclass HereNet: lr = here_lr\n"
            "here_net = HereNet()\nhere_nets = [here_net]\n"
            "def here_train(rank): return rank * here_lr, here_net in here_nets"
        )
    )
    assert notebook.value("here_lr, here_train(4), here_math.floor(2.5)") == "(0.5, (2.0, True), 2)"
    assert notebook.value("{'here_lr', 'HereNet', 'here_train'} <= globals().keys()") == "True"
    notebook.ok("import pickle\nagain = pickle.loads(pickle.dumps(here_net))")
    assert notebook.value("type(again) is HereNet") == "True"


def test_weak_reference_without_its_object_is_reported(notebook):
    shown = notebook.ok(
        spawn(
            "import weakref\nclass HereNode: ...\nhere_node = HereNode()\n"
            "here_ref = weakref.ref(here_node)\ndef here_f(rank): return here_ref()"
        )
    )
    told = "a weak reference is sent without its `HereNode`"
    assert told in shown.stdout + shown.stderr + str(shown.data)
    notebook.ok(
        "class HereOther: ...\nhere_other = HereOther()\nhere_ref = weakref.ref(here_other)"
    )
    shown = notebook.ok("%%xla\nhere_ref()")
    told = told.replace("HereNode", "HereOther")
    assert told in shown.stdout + shown.stderr + str(shown.data)
    notebook.ok("%xla_shutdown")


def test_tab_completion_offers_variables_of_the_cell(notebook):
    notebook.ok(spawn("here_offered = 1\ndef here_f(rank): return here_offered"))
    notebook.client.complete("here_off", 8)
    reply = notebook.client.get_shell_msg(timeout=60)
    while reply["msg_type"] != "complete_reply":
        reply = notebook.client.get_shell_msg(timeout=60)
    assert "here_offered" in reply["content"]["matches"]


def test_output_of_the_cell_is_shown_above_the_view(notebook):
    shown = notebook.ok(
        spawn(
            "print('made here')\nimport IPython\nIPython.display.display('shown here')\n"
            "def f(rank): print('on', rank)",
            "-n 2 --view text",
        )
    )
    kinds = [
        one["content"].get("text") or one["content"]["data"]["text/plain"]
        for one in shown.messages
        if one["msg_type"] in ("stream", "display_data", "execute_result")
    ]
    assert kinds[0] == "made here\n"
    assert kinds[1] == "'shown here'"
    assert "[0] on 0" in shown.lines
    assert shown.lines.count("made here") == 1


def test_top_level_error_is_raised_unchanged_and_nothing_launches(refused):
    shown = refused(spawn("here_first = 1\nhere_first / 0\ndef f(rank): pass"))
    assert shown.ename == "ZeroDivisionError"
    assert f"Cell In[{shown.number}], line 3" in shown.error
    assert "xla_nb" not in shown.error


def test_undefined_name_at_top_level_raises_name_error(refused):
    shown = refused(spawn("print(here_nowhere)\ndef f(rank): pass"))
    assert shown.ename == "NameError"
    assert f"Cell In[{shown.number}], line 2" in shown.error


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_error_in_the_function_names_its_line(notebook, end):
    shown = notebook.run(spawn("x = 1\n\ndef f(rank):\n    return 1 / 0" + end))
    assert f"Cell In[{shown.number}], line 5: ZeroDivisionError" in shown.error


def test_args_may_use_variables_of_the_cell(notebook):
    notebook.ok(
        spawn("here_rate = 3\ndef f(rank, by): return rank * by", "-n 2 -o r --args (here_rate,)")
    )
    assert notebook.value("r.results") == "{0: 0, 1: 3}"


def test_magic_line_may_use_variables_of_notebook_and_cell(notebook):
    notebook.ok("here_ranks = 2")
    cell = "here_wide = 3\ndef f(rank): return rank"
    notebook.ok(spawn(cell, "-n {here_ranks} -o r --env A={'b' + 'c'}"))
    assert notebook.value("r.results") == "{0: 0, 1: 1}"
    notebook.ok(spawn(cell, "-n $here_wide -o r"))
    assert notebook.value("r.results") == "{0: 0, 1: 1, 2: 2}"
    launches = "import torch_xla\ndef f(rank): return rank\nr = torch_xla.launch(f)"
    notebook.ok(spawn(launches, "-n {here_ranks}"))
    assert notebook.value("dict(r)") == "{0: 0, 1: 1}"


def test_each_execution_runs_the_cell_once(notebook):
    notebook.ok("here_count = []")
    cell = spawn("here_count.append(1)\nclass Here: pass\ndef f(rank): return Here()", "-n 1 -o r")
    notebook.ok(cell)
    assert notebook.value("len(here_count), type(r[0]) is Here") == "(1, True)"
    notebook.ok(cell)
    assert notebook.value("len(here_count), type(r[0]) is Here") == "(2, True)"


def test_edited_cell_replaces_the_former_definition(notebook):
    notebook.ok(spawn("by = 1\ndef f(rank): return rank + by", "-n 2 -o first"))
    notebook.ok(spawn("by = 10\ndef f(rank): return rank + by", "-n 2 -o second"))
    notebook.ok(spawn("def g(rank): return f(rank)", "-n 2 -o third"))
    assert notebook.value("first[1], second[1], third[1]") == "(2, 11, 11)"


# ---------------------------------------------------------------- IPython syntax


def test_ipython_syntax_works_at_top_level(notebook):
    notebook.ok(
        spawn(
            "import asyncio\nawait asyncio.sleep(0)\nhere_awaited = 'awaited'\n"
            "here_echoed = !echo echoed\n%env HERE_SET=yes\nimport os\n"
            "def f(rank): return here_awaited, list(here_echoed), os.environ['HERE_SET']",
            "-n 1 -o r",
        )
    )
    assert notebook.value("r[0]") == "('awaited', ['echoed'], 'yes')"


def test_time_magic_times_the_launch(notebook):
    shown = notebook.run(
        "%%time\n" + spawn("here_timed = 5\ndef f(rank):\n    return here_timed // rank")
    )
    assert f"Cell In[{shown.number}], line 5: ZeroDivisionError" in shown.error
    shown = notebook.ok("%%time\n" + spawn("here_timed = 6\ndef f(rank): return here_timed"))
    assert "Wall time" in shown.stdout
    assert notebook.value("here_timed") == "6"


def test_capture_magic_captures_the_launch(notebook):
    shown = notebook.ok(
        "%%capture here_captured\n"
        + spawn("print('above')\ndef f(rank): print('on', rank)", "-n 2 --view text")
    )
    assert not shown.stdout
    assert notebook.value("here_captured.stdout.startswith('above\\n')") == "True"
    assert notebook.value("'[1] on 1' in here_captured.stdout") == "True"


def test_capture_magic_captures_text_instead_of_the_panel(notebook):
    """The messages to a panel that is not displayed would fail: ipykernel cannot use the publisher
    that `%%capture` installs."""
    notebook.ok("__vsc_ipynb_file__ = 'a page'")
    cell = spawn("def f(rank): print('on', rank)", "-n 2")
    notebook.ok(f"%%capture here_captured\n{cell}")
    notebook.ok("del __vsc_ipynb_file__")
    assert notebook.value("[kind for one in here_captured.outputs for kind in one.data]") == "[]"
    assert notebook.value("'[1] on 1' in here_captured.stdout") == "True"


def test_future_imports_of_the_cell_apply_on_ranks(notebook):
    notebook.ok(
        spawn(
            "from __future__ import annotations\n"
            "def f(rank: HereMissing): return f.__annotations__['rank']",
            "-n 1 -o r",
        )
    )
    assert notebook.value("r[0]") == "'HereMissing'"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("opens", ["torch_xla.device()", "torch.ones(2, device='xla')"])
def test_opening_the_device_at_top_level_is_refused_with_its_line(refused, opens):
    shown = refused(
        spawn(f"import torch, torch_xla\nhere_device = {opens}\ndef f(rank): return rank")
    )
    assert shown.error == (
        f"UsageError: Cell In[{shown.number}], line 3, would open the XLA device in the notebook; "
        "move it into the function. Nothing was launched."
    )


def test_cell_that_catches_the_device_error_launches_nothing(refused):
    opens = "try:\n    here_device = torch_xla.device()\nexcept Exception:\n    here_device = 'cpu'"
    shown = refused(spawn(f"import torch_xla\n{opens}\ndef f(rank): return here_device"))
    assert "line 4, would open the XLA device in the notebook" in shown.error
    assert "goes on" not in shown.stdout


@pytest.mark.slow
def test_ordinary_cell_may_open_the_device_after_a_refused_cell(home):
    kernel = Notebook()  # a separate kernel, because it opens its device
    try:
        kernel.ok("%load_ext xla_nb")
        cell = "import torch_xla\nhere_device = torch_xla.device()\ndef f(rank): return rank"
        assert "would open the XLA device" in kernel.run(spawn(cell)).error
        assert kernel.ok("print(torch_xla.device())").lines[-1] == "xla:0"
        kernel.ok(spawn("def f(rank): return rank", "-n 2 -o r"))
        assert kernel.value("r.results") == "{0: 0, 1: 1}"
    finally:
        kernel.close()


@pytest.mark.parametrize("name", ["rank", "world_size", "device", "lock"])
def test_rank_only_names_at_top_level_are_refused_with_their_line(refused, name):
    shown = refused(spawn(f"here_ran = 1\nprint({name})\ndef f(rank): pass"))
    assert f"Cell In[{shown.number}], line 3: `{name}` exists only on ranks" in shown.error


def test_cell_with_invalid_options_does_not_run(notebook, refused):
    shown = refused(spawn("here_wrong = 1\ndef f(rank): pass", "-n 2 --timout 3"))
    assert "Unknown option --timout" in shown.error
    assert notebook.value("'here_wrong' in globals()") == "False"


# ---------------------------------------------------------------- launcher calls


LAUNCHERS = [
    "xmp.spawn(f, args=(2,), nprocs=1 + 3)",
    "if __name__ == '__main__':\n    xmp.spawn(f, args=(2,))",
    "xla_nb.spawn(f, (2,), n=4)",
]


@pytest.mark.parametrize("call", LAUNCHERS)
def test_launcher_call_in_the_cell_uses_magic_options_and_runs_once(notebook, call):
    shown = notebook.ok(
        spawn(
            "import torch_xla.distributed.xla_multiprocessing as xmp\n"
            f"def f(rank, by): print('called', rank * by)\n{call}",
            "-n 2 --view text -o mine",
        )
    )
    notebook.ok("mine.wait(60)")  # the launcher's own run continues in the background
    assert notebook.value("mine.ok, sorted(mine.results)") == "(True, [0, 1])"
    called = sorted(line for line in shown.lines if "called" in line)
    assert called == ["[0] called 0", "[1] called 2"]
    assert "%%xla_spawn launched nothing: the cell has already launched a run." in shown.lines


# ---------------------------------------------------------------- values


def test_locks_queues_and_arrays_of_the_cell_are_shared_with_ranks(notebook):
    notebook.ok(
        spawn(
            "import multiprocessing as mp, numpy as np\nspawning = mp.get_context('spawn')\n"
            "here_lock, here_queue = spawning.Lock(), spawning.SimpleQueue()\n"
            "here_rows = np.arange(1_000_000)\n"
            "def f(rank):\n    with here_lock: here_queue.put(rank)\n    return here_rows.sum()",
            "-n 2 -o r",
        )
    )
    assert notebook.value("sorted([here_queue.get(), here_queue.get()])") == "[0, 1]"
    assert notebook.value("bool(r[0] == r[1] == here_rows.sum())") == "True"


def test_wrapped_model_of_the_cell_moves_to_rank_devices(notebook):
    notebook.ok(
        spawn(
            "import torch, torch_xla\nimport torch_xla.distributed.xla_multiprocessing as xmp\n"
            "here_model = xmp.MpModelWrapper(torch.nn.Linear(2, 1))\n"
            "def f(rank):\n    model = here_model.to(torch_xla.device())\n"
            "    return str(next(model.parameters()).device)",
            "-n 2 -o r",
        )
    )
    assert notebook.value("r[0]") == "'xla:0'"


def test_cell_of_statements_returns_instances_of_its_classes(notebook):
    notebook.ok(
        spawn(
            "class HereOnly:\n    def __init__(self): self.rank = rank\n"
            "    def __repr__(self): return f'HereOnly({self.rank})'\nHereOnly()",
            "-n 2 -o r",
        )
    )
    assert notebook.value("r.results") == "{0: HereOnly(0), 1: HereOnly(1)}"
    assert notebook.value("'HereOnly' in globals()") == "False"


def test_live_ranks_use_definitions_of_a_launched_cell(notebook):
    notebook.ok(spawn("here_scale = 3\ndef here_scaled(rank): return rank * here_scale"))
    notebook.ok("%xla_start -n 2 --name heres")
    shown = notebook.ok("%%xla --group heres\nprint('scaled', here_scaled(rank))")
    notebook.ok("%xla_shutdown heres")
    assert {"[0] scaled 0", "[1] scaled 3"} <= {*shown.lines}


def test_secrets_in_the_magic_line_are_in_no_file(notebook):
    notebook.ok(
        spawn(
            "import os\ndef f(rank): return len(os.environ['HERE_TOKEN'])",
            "-n 1 -o r --env HERE_TOKEN=hunter2secret",
        )
    )
    assert notebook.value("r[0]") == "13"
    notebook.ok(
        "import pathlib\n"
        "here_found = [p for p in pathlib.Path(r.record.path).rglob('*') "
        "if p.is_file() and b'hunter2secret' in p.read_bytes()]"
    )
    assert notebook.value("here_found") == "[]"


# ---------------------------------------------------------------- slow imports


SLOW = """
import pathlib, time
until = time.monotonic() + 60
while not pathlib.Path({go!r}).exists() and time.monotonic() < until: time.sleep(0.01)
raise ImportError("not the real one")
"""


def test_slow_torch_xla_import_is_announced_while_running(home, tmp_path):
    go = tmp_path / "go"
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text(SLOW.format(go=str(go)))
    told = []

    def seen(shown):
        content = shown.messages[-1]["content"] if shown.messages else {}
        text = content.get("data", {}).get("text/plain", "")
        if text.startswith("importing torch_xla"):
            told.append(text)
            go.touch()

    kernel = Notebook()  # a separate kernel that has not imported it
    try:
        kernel.ok(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{COLD}")
        shown = kernel.run(spawn("import torch_xla\ndef f(rank): pass", "-n 1"), during=seen)
    finally:
        kernel.close()
    assert told[0] == "importing torch_xla in the notebook, once … 1 s"
    assert "not the real one" in shown.error
