"""Launchers of torch_xla and accelerate launch through xla_nb."""

import subprocess
import sys

import pytest

from tests.support.installed import need
from tests.support.kernel import Notebook

#: Names bound before the extension is loaded, as at the top of a published notebook.
ABOVE = """
import multiprocessing as mp
import torch, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla.distributed.xla_multiprocessing import spawn as my_spawn
"""
ARTICLE = """
lock = mp.Manager().Lock()
FLAGS = {"lr": 0.5}
def _mp_fn(index, lock):
    global FLAGS
    import torch_xla.core.xla_model as xm
    FLAGS = dict(FLAGS, index=index)
    with lock:
        value = torch.ones(1, device=torch_xla.device()) * index
    return xm.all_reduce("sum", value).item() * FLAGS["lr"]
if __name__ == "__main__":
    results = xmp.spawn(_mp_fn, args=(lock,), start_method='fork')
for index, result in results.items():
    print(index, result)
"""
LIBRARY = """
import types
library = types.ModuleType("library")
exec("def fit(f): import torch_xla; return torch_xla.launch(f)", vars(library))
"""


@pytest.fixture(scope="module")
def published(warm_kernels):
    """A kernel that imported torch_xla before it loaded the extension."""
    kernel = Notebook(warm=warm_kernels)
    kernel.ok(ABOVE)
    kernel.ok("%load_ext xla_nb")
    yield kernel
    kernel.close()


@pytest.mark.leaves("processes")  # the manager lives as long as the notebook's lock
def test_published_cell_launches_and_its_results_act_like_a_dict(published):
    shown = published.ok(ARTICLE)
    assert shown.lines[-4:] == [f"{index} 3.0" for index in range(4)]
    asked = "len(results), list(results), list(results.keys()), set(results.values()), results[2]"
    assert published.value(asked) == "(4, [0, 1, 2, 3], [0, 1, 2, 3], {3.0}, 3.0)"
    assert published.value("results.get(2), results.get(9), results.get(9, 'x')") == (
        "(3.0, None, 'x')"
    )
    assert published.value("results == dict.fromkeys(range(4), 3.0), results == 3") == (
        "(True, False)"
    )


def test_dropin_launch_keeps_default_of_lock_parameter(published):
    published.ok("def alone(index, lock=None): return lock is None")
    assert published.value("xmp.spawn(alone, nprocs=2).results") == "{0: True, 1: True}"
    published.ok("import xla_nb")
    assert (
        published.value("xla_nb.spawn(alone, n=2, view='none').results") == "{0: False, 1: False}"
    )


def test_launcher_imported_before_the_extension_launches(published):
    published.ok("run = my_spawn(lambda index, a: index * a, args=(3,), nprocs=2)")
    assert published.value("run.results") == "{0: 0, 1: 3}"


def test_torch_xla_launch_returns_results_of_ranks(published):
    published.ok("run = torch_xla.launch(lambda index: index, start_method='spawn')")
    assert published.value("run.results") == "{0: 0, 1: 1, 2: 2, 3: 3}"


def test_eight_ranks_are_simulated(published):
    published.ok("run = xmp.spawn(lambda index: index, nprocs=8)")
    assert published.value("len(run)") == "8"


def test_too_many_ranks_are_reported_once(published):
    published.ok("%xla_config simulate=v4-8")
    first = published.ok("run = xmp.spawn(lambda index: index, nprocs=8)")
    assert first.lines[0] == "xmp.spawn asked for 8 ranks; running the 4 that this host has."
    assert published.value("len(run)") == "4"
    again = published.ok("run = xmp.spawn(lambda index: index, nprocs=8)")
    assert "asks for" not in again.stdout
    published.ok("%xla_config simulate=None")


@pytest.mark.parametrize("number", ["'all'", "0", "8.0"])
def test_invalid_number_of_ranks_is_refused(published, number):
    shown = published.run(f"xmp.spawn(print, nprocs={number})")
    told = f"xmp.spawn: the number of ranks must be a whole number of at least 1, not {number}."
    assert shown.error.endswith(f"UsageError: {told}")


@pytest.mark.parametrize("args", ["5", "{'lr': 0.1}", "'abc'"])
def test_missing_comma_in_args_is_reported(published, args):
    shown = published.run(f"xmp.spawn(print, args=({args}), nprocs=2)")
    assert f"args must be a tuple, not {args}. Write args=({args},)." in shown.error


def test_args_none_is_refused_with_the_fix(published):
    shown = published.run("xmp.spawn(print, args=None, nprocs=2)")
    assert "args must be a tuple, not None. Write args=()." in shown.error


def test_spawn_with_join_false_returns_immediately(published):
    published.ok(
        "import pathlib, tempfile, time\nmark = pathlib.Path(tempfile.mkdtemp()) / 'go'\n"
        "def waits(index):\n"
        "    while not mark.exists(): time.sleep(0.01)\n"
        "    return index\n"
        "run = xmp.spawn(waits, nprocs=2, join=False)\nbefore = run.done"
    )
    published.ok("mark.touch(); run.wait(); mark.unlink(); mark.parent.rmdir()")
    assert published.value("before, run.results") == "(False, {0: 0, 1: 1})"


def test_spawn_with_join_false_shows_output_and_failure(published):
    shown = published.ok(
        "def fails(index):\n    print('rank', index)\n    raise ValueError('late')\n"
        "run = xmp.spawn(fails, nprocs=2, join=False)\n"
        "try: run.wait()\nexcept Exception: pass"
    )
    assert "[0] rank 0" in shown.lines
    assert "Both ranks failed (rank " in shown.result


def test_pjrt_launchers_launch_through_xla_nb(published):
    published.ok("from torch_xla._internal import pjrt")
    published.ok("found = pjrt.run_multiprocess(lambda a, b=1: (a, b), 5, b=2)")
    assert published.value("found == dict.fromkeys(range(4), (5, 2))") == "True"
    published.ok("def both(a): return a\nfound = pjrt.run_multiprocess(both, 6)")
    assert ", both(6)  " in published.ok("%xla_runs 1").text
    published.ok("run = pjrt.spawn(lambda index, a: a, nprocs=2, args=(7,))")
    assert published.value("run.results") == "{0: 7, 1: 7}"


def test_launch_from_a_library_returns_none(published):
    published.ok(LIBRARY)
    shown = published.ok("print(library.fit(lambda index: print('rank', index)))")
    assert {f"[{r}] rank {r}" for r in range(4)} <= {*shown.lines}
    assert shown.lines[-1] == "None"


def test_failed_rank_raises_in_the_launching_library(published):
    published.ok(LIBRARY)
    shown = published.run("def fails(index): 1 / index\nlibrary.fit(fails)")
    assert shown.ename == "RunFailed"
    assert "Rank 0 failed" in shown.error


IN_A_LOOP = """
def forever(index):
    import time
    print("begun", flush=True)
    time.sleep(600)
launches = []
for rate in 0.1, 0.2:
    launches.append(rate)
    try:
        xmp.spawn(forever, nprocs=2)
    except Exception:
        continue
"""


def test_interrupt_ends_a_loop_that_ignores_failures(published):
    interrupts = []

    def during(shown):
        if "begun" in shown.stdout and not interrupts:
            interrupts.append(published.interrupt())

    shown = published.run(IN_A_LOOP, during=during)
    assert shown.error.startswith("Interrupted: Stopped by an interrupt")
    assert published.value("launches") == "[0.1]"


def test_unsendable_result_becomes_none_and_is_reported_once(published):
    shown = published.ok(
        "run = xmp.spawn(lambda index: iter(range(9)) if index else (n for n in 'ab'), nprocs=4)"
    )
    assert published.value("run[0], list(run[3]) == list(range(9))") == "(None, True)"
    assert shown.stderr == (
        "Cannot send a result (builtins.generator) to the notebook: it is or contains a generator. "
        "It was replaced by None. Return a list of its items.\n"
    )


def test_object_shared_by_function_and_arguments_stays_shared(published):
    published.ok(
        "class Trainer:\n"
        "    def __init__(self): self.box = [1]\n"
        "    def fit(self, index, box): return self.box is box\n"
        "trainer = Trainer()\nrun = xmp.spawn(trainer.fit, args=(trainer.box,))"
    )
    assert published.value("set(run.values())") == "{True}"


def test_device_in_a_value_becomes_the_ranks_device(published):
    published.ok("device = torch.device('xla:0')\nmodel = torch.nn.Linear(2, 1)")
    published.ok("run = xmp.spawn(lambda index: str(model.to(device).weight.device), nprocs=2)")
    assert published.value("run.results") == "{0: 'xla:0', 1: 'xla:0'}"
    published.ok("devices = [torch.device('xla', i) for i in range(4)]")  # as in Lightning
    published.ok("run = xmp.spawn(lambda index: len(devices), nprocs=2)")
    assert published.value("run.results") == "{0: 4, 1: 4}"


CAUGHT = """
def f(index): raise {raised}
try:
    xmp.spawn(f, nprocs=2)
except {kind} as error:
    caught = type(error).__name__, str(error).splitlines()[0].partition(": ")[2], error.run.ok
"""


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        ("ValueError('bad')", "ValueError", "ValueError: bad"),
        ("RuntimeError('bad')", "RuntimeError", "RuntimeError: bad"),
        ("KeyError('k')", "LookupError", "KeyError: 'k'"),
        ("FileNotFoundError(2, 'gone', 'f')", "OSError", "FileNotFoundError: [Errno 2] gone: 'f'"),
        ("StopIteration(3)", "Exception", "StopIteration: 3"),
        (
            "ExceptionGroup('g', [ValueError(1)])",
            "Exception",
            "ExceptionGroup: g (1 sub-exception)",
        ),
    ],
)
def test_program_catches_exceptions_of_its_function(published, raised, kind, told):
    published.ok(CAUGHT.format(raised=raised, kind=kind))
    assert published.value(f"caught == ('RunFailed', {told!r}, False), caught")[:6] == "(True,"


OWN = """
class MyError(Exception):
    __slots__ = ("best",)
    def __init__(self, rank, loss):
        super().__init__(f"stopped at {loss}")
        self.rank, self.best = rank, loss
def f(index):
    if index: raise MyError(index, 0.5)
"""


def test_program_catches_its_own_exception_with_attributes(published):
    published.ok(OWN)
    published.ok("try: xmp.spawn(f, nprocs=2)\nexcept MyError as error: caught = error")
    asked = "caught.rank, caught.best, caught.args"
    assert published.value(asked) == "(1, 0.5, ('stopped at 0.5',))"
    assert published.value("str(caught)").startswith("'Rank 1 failed at Cell In[")


def test_program_catches_its_own_exception_from_join(published):
    published.ok(OWN)
    published.ok("context = xmp.spawn(f, nprocs=2, join=False)")
    published.ok("try: context.join()\nexcept MyError as error: best = error.best")
    assert published.value("best") == "0.5"


@pytest.mark.parametrize(
    ("raised", "kind", "held"),
    [
        ("json.JSONDecodeError('bad', 'text', 2)", "json.JSONDecodeError", "pos == 2"),
        ("torch.OutOfMemoryError('full')", "torch.OutOfMemoryError", "args == ('full',)"),
        ("FileNotFoundError(2, 'gone', 'f')", "OSError", "filename == 'f'"),
    ],
)
def test_program_catches_library_exceptions_with_attributes(published, raised, kind, held):
    published.ok(f"import json\ndef f(index): raise {raised}")
    published.ok(f"try: xmp.spawn(f, nprocs=2)\nexcept {kind} as error: held = error.{held}")
    assert published.value("held") == "True"


NO_SUBCLASS = """
import threading
class Final(Exception):
    def __init_subclass__(cls): raise TypeError("final")
class Holding(Exception):
    def __init__(self): self.lock = threading.Lock()
"""


@pytest.mark.parametrize("kind", ["Final", "Holding"])
def test_exception_that_cannot_be_recreated_is_still_reported(published, kind):
    published.ok(NO_SUBCLASS)
    shown = published.run(f"def f(index): raise {kind}()\nxmp.spawn(f, nprocs=2)")
    assert shown.error.startswith("RunFailed: Both ranks failed")


RUN_BY_MAGIC = """
import sys
import torch_xla.distributed.xla_multiprocessing as xmp
FACTOR = 3
def helper(index): return index * FACTOR
def main(index): return helper(index), __file__
results = xmp.spawn(main, nprocs=2).results
"""


def test_script_run_by_magic_has_its_own_names_on_ranks(published, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(RUN_BY_MAGIC)
    published.ok(f"FACTOR = 1000\n%run {file}")
    assert published.value("results") == f"{{0: (0, '{file}'), 1: (3, '{file}')}}"
    published.ok("run = xmp.spawn(main, nprocs=2)")  # %run leaves them in the notebook
    assert published.value("run[1][0], FACTOR") == "(3, 3)"


@pytest.mark.leaves("processes")  # multiprocessing's resource tracker
def test_process_started_by_the_notebook_can_launch(published):
    published.ok(
        "def child(queue): queue.put(dict(xmp.spawn(lambda index: index, nprocs=2).items()))\n"
        "queue = mp.Queue()\nprocess = mp.Process(target=child, args=(queue,))\n"
        "process.start()\nfound = queue.get(timeout=60)\nprocess.join(60)"
    )
    assert published.value("found, process.exitcode") == "({0: 0, 1: 1}, 0)"


def test_disabling_dropin_restores_the_launchers(published):
    published.ok("%xla_config dropin=off")
    assert "Unsupported nprocs (8)" in published.run("my_spawn(print, nprocs=8)").error
    published.ok("%xla_config dropin=on")
    assert published.ok("len(my_spawn(lambda index: index, nprocs=2))").result == "2"
    published.ok("%reload_ext xla_nb")
    assert published.ok("len(my_spawn(lambda index: index, nprocs=2))").result == "2"


ACCELERATED = """
from accelerate import notebook_launcher
def train(scale):
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    accelerator.print("once")
    value = torch.ones(1, device=accelerator.device) * accelerator.process_index * scale
    about = accelerator.local_process_index, accelerator.num_processes, accelerator.mixed_precision
    return *about, accelerator.gather(value).tolist()
run = notebook_launcher(train, (2,), num_processes=4, mixed_precision="bf16")
"""


def test_notebook_launcher_starts_one_world(published):
    need("accelerate")
    shown = published.ok(ACCELERATED)
    assert [line for line in shown.lines if "once" in line] == ["[0] once"]
    expected = {index: (index, 4, "bf16", [0.0, 2.0, 4.0, 6.0]) for index in range(4)}
    assert published.value(f"run.results == {expected}") == "True"
    assert published.value("run.label") == f"'Cell In[{shown.number}], train'"


def test_run_is_named_after_its_cell_and_function(published):
    shown = published.ok("%%time\ndef train(index): return index\nrun = xmp.spawn(train)")
    assert published.value("run.label") == f"'Cell In[{shown.number}], train'"
    assert f"· Cell In[{shown.number}], train ·" in published.value(
        "run._repr_mimebundle_()['text/plain']"
    )
    published.ok("import threading\nthread = threading.Thread(target=xmp.spawn, args=(train,))")
    published.ok("thread.start(); thread.join()")
    assert "Cell In" not in published.ok("%xla_runs 1").text


def test_notebook_launcher_with_too_few_arguments_raises_type_error(published):
    need("accelerate")
    published.ok("from accelerate import notebook_launcher\ndef train(index): pass")
    shown = published.run("notebook_launcher(train, num_processes=2)")
    assert "TypeError: train() missing 1 required positional argument: 'index'" in shown.error


def test_notebook_launcher_refuses_unknown_precision(published):
    need("accelerate")
    shown = published.run(
        "from accelerate import notebook_launcher\n"
        "notebook_launcher(print, num_processes=2, mixed_precision='half')"
    )
    assert "notebook_launcher: unknown precision 'half'. Choose no, " in shown.error


BEHIND_A_MODULE = """
import sys, types
module = sys.modules["behind"] = types.ModuleType("behind")
exec("class Trainer:\\n    def fit(self, index): pass", vars(module))
xmp.spawn(module.Trainer().fit)
"""


def test_method_unavailable_on_ranks_is_named(published):
    assert (
        "Cannot open `fit` (the method `Trainer.fit`) on ranks"
        in published.run(BEHIND_A_MODULE).error
    )


def test_notebook_launcher_refuses_several_machines(published):
    need("accelerate")
    published.ok("from accelerate import notebook_launcher")
    shown = published.run("notebook_launcher(print, num_processes=4, num_nodes=2)")
    assert "UsageError: notebook_launcher: num_nodes=2 would start ranks" in shown.error


def test_launcher_imported_after_the_extension_launches(notebook):
    notebook.ok("from torch_xla.distributed.xla_multiprocessing import spawn")
    notebook.ok("run = spawn(lambda index: index, nprocs=2)")
    assert notebook.value("run.results") == "{0: 0, 1: 1}"


SCRIPT = """
import sys
import xla_nb
if "install" in sys.argv:
    xla_nb.install()
import torch_xla.distributed.xla_multiprocessing as xmp

def main(index, word):
    return word * index

if __name__ == "__main__":
    print(xmp.spawn(main, args=("a",), nprocs=3).results)
"""


def script(folder, *arguments, **env):
    (folder / "program.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "program.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=folder,
        env=env or None,
    )


@pytest.mark.slow
def test_script_launches_through_xla_nb_after_install(tmp_path):
    assert "{0: '', 1: 'a', 2: 'aa'}" in script(tmp_path, "install").stdout


@pytest.mark.slow
def test_script_without_install_uses_torch_xla_launcher(tmp_path):
    assert "Unsupported nprocs (3)" in script(tmp_path).stderr


@pytest.mark.slow
def test_install_under_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    ended = script(tmp_path, "install")
    assert "Run the script with `python`, without torchrun." in ended.stderr


BELOW_A_MAGIC = """def fails(index):
    if index == 1:
        raise ValueError("boom")
xmp.spawn(fails, nprocs=2)
"""


@pytest.mark.parametrize("magic", ["%%time", "\n%%capture shown", "%%time  "])
def test_error_below_a_magic_names_its_cell_and_line(published, magic):
    shown = published.run(f"{magic}\n{BELOW_A_MAGIC}\n\n")
    line = magic.count("\n") + 4
    assert f"failed at Cell In[{shown.number}], line {line}: ValueError: boom" in shown.error
    assert '    raise ValueError("boom")' in shown.error + shown.result


def test_error_in_an_expression_below_a_magic_names_its_cell(published):
    shown = published.run("%%time\nxmp.spawn(\n    lambda index: 1 / index, nprocs=2)")
    assert f"failed at Cell In[{shown.number}], line 3: ZeroDivisionError" in shown.error


def test_launch_from_a_notebook_thread_returns_the_run(published):
    call = "asyncio.to_thread(xmp.spawn, lambda index: index, nprocs=2)"
    published.ok(f"import asyncio\nrun = await {call}")
    assert published.value("run.results") == "{0: 0, 1: 1}"
