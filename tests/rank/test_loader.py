"""A program file loaded as a rank's live module, with line numbers of the notebook's cells."""

import linecache
import multiprocessing.spawn
import os
import runpy
import subprocess
import sys
import traceback

import cloudpickle
import pytest

from xla_nb.pickling import pickler
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.program.build import future_flags
from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader
from xla_nb.rank.loader import RankShell
from xla_nb.record.files import lines

FIRST, SECOND = "Cell In[2]", "Cell In[7]"
HEAD = '"""A program."""\nfrom xla_nb.rank.loader import restore\n\n'


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Undo the changes that a load makes to the interpreter."""
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("__main__", "__mp_main__", "a_program"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    yield
    loader.parcel.cache_clear()


@pytest.fixture
def load(tmp_path):
    """Load a module with this text and these cell sources."""

    def load(text="", sources=None):
        path = tmp_path / "a_program.py"
        path.write_text(HEAD + text)
        lines(path).write_text(ModuleMap(sources or {}).text())
        return loader.load(path)

    return load


@pytest.fixture
def parcel(monkeypatch):
    """Pack values as a launch does, and set the parcel's path in the environment."""
    opened = []

    def parcel(values):
        opened.append(pickler.pack(values, Live()).to_memfd())
        monkeypatch.setenv(loader.PARCEL, loader.parcel_path(opened[-1]))

    yield parcel
    for fd in opened:
        os.close(fd)


def stack(call):
    with pytest.raises(ZeroDivisionError) as caught:
        call()
    return "".join(traceback.format_exception(caught.value))


DEFINES = "def f():\n    return 1 / 0\n"


# ---------------------------------------------------------------- the module


def test_lines_outside_cells_belong_to_the_file(load, tmp_path):
    path = tmp_path / "a_program.py"
    path.write_text(DEFINES)
    lines(path).write_text(ModuleMap({}).text())
    assert f'"{path}", line 2, in f' in stack(loader.load(path).f)


def test_module_is_main_and_importable_by_its_own_name(load):
    module = load(DEFINES)
    assert module.f.__module__ == module.__name__ == "__main__"
    assert sys.modules["__main__"] is module
    assert __import__("a_program") is module


def test_spawned_helpers_return_instances_of_the_modules_classes(load):
    module = load("class Net: pass")
    assert sys.modules["__mp_main__"].Net is module.Net


def test_spawned_process_can_import_the_file(load, tmp_path):
    load("VALUE = 3")
    about = multiprocessing.spawn.get_preparation_data("worker")
    assert about["init_main_from_name"] == "a_program"
    assert about["sys_path"][-1] == str(tmp_path)
    assert runpy.run_module("a_program", run_name="__mp_main__")["VALUE"] == 3


def test_cell_code_has_no_file_and_no_spec(load):
    namespace = vars(load("VALUE = 3"))
    assert "__file__" not in namespace
    assert namespace["__spec__"] is None


def test_script_has_its_own_file_and_package(parcel, monkeypatch):
    parcel({})
    namespace = {"__name__": "__main__"}
    loader.restore(namespace, "/home/me/pkg/train.py", "pkg.train")
    assert (namespace["__file__"], namespace["__package__"]) == ("/home/me/pkg/train.py", "pkg")
    assert namespace["__spec__"].name == "pkg.train"
    loader.restore(namespace, "/home/me/train.py")
    assert (namespace["__file__"], namespace["__package__"]) == ("/home/me/train.py", None)
    assert namespace["__spec__"] is None


def test_main_module_is_pickled_by_name(load):
    module = load("VALUE = 3")
    assert cloudpickle.loads(cloudpickle.dumps(module)) is module


def test_future_imports_of_the_loader_do_not_apply(load):
    module = load("def f(x: int): pass")
    assert module.f.__annotations__ == {"x": int}


def test_code_can_call_get_ipython_and_display(load, capsys):
    load("get_ipython().run_line_magic('matplotlib', 'inline')\ndisplay('shown')")
    assert capsys.readouterr().out == "'shown'\n"


def test_sources_of_cells_with_only_values_are_available(load):
    load(sources={SECOND: "one\ntwo\n"})
    assert linecache.getline(SECOND, 2) == "two\n"


# ---------------------------------------------------------------- a body


def body(text, first=1, flags=0, **names):
    return loader.run_body(ModuleMap({}, SECOND, flags, "\n" * (first - 1) + text), names)


def test_body_returns_its_last_expression():
    assert body("y = x + 1\ny * 2", x=3) == 8


@pytest.mark.parametrize("text", ["y = 3", "1\ny = 2", "", "# nothing"])
def test_body_without_a_final_expression_returns_none(text):
    assert body(text) is None


def test_last_expression_of_a_body_is_evaluated_once():
    assert body("done.append(1)\ndone.append(2) or done", done=[]) == [1, 2]


def test_body_binds_names_in_the_module():
    names = {}
    loader.run_body(ModuleMap({}, SECOND, body="a = 1\ndef g(): return a\ng()"), names)
    assert names["g"]() == 1


def test_body_may_run_an_event_loop():
    assert body("import asyncio\nasyncio.run(asyncio.sleep(0, 'done'))") == "done"


@pytest.mark.parametrize("text", ["a = 1\n1 / 0", "a = 1\nb = 1 / 0"])
def test_error_in_a_body_has_its_line_in_the_cell(text):
    loader.remember(SECOND, "\n" * 8 + text)
    trace = stack(lambda: body(text, first=9))
    assert '"Cell In[7]", line 10, in <module>\n' in trace
    assert "1 / 0" in trace.rpartition("line 10")[2]


def test_future_imports_apply_in_a_body():
    flags = future_flags(["annotations"])
    assert body("def f(x: Missing): pass\nf.__annotations__", flags=flags) == {"x": "Missing"}


# ---------------------------------------------------------------- shipped values


def test_restore_binds_the_sent_values(load, parcel):
    parcel({"n": 41, "words": ["a"]})
    module = load("restore(globals())\nm = n + 1")
    assert (module.m, module.words) == (42, ["a"])


def test_importers_of_the_program_share_its_values(load, parcel):
    parcel({"n": [1]})
    module = load("restore(globals())")
    again = {}
    loader.restore(again)
    assert again["n"] == module.n


def test_parcel_is_opened_once(parcel):
    parcel({"a": 1})
    path = os.environ[loader.PARCEL]
    assert loader.parcel(path) is loader.parcel(path)


def test_spawned_process_opens_the_parcel_by_its_path(parcel):
    parcel({"n": 41})
    read = "from xla_nb.rank import loader; names = {}; loader.restore(names); print(names)"
    process = subprocess.run(
        [sys.executable, "-c", read], capture_output=True, text=True, check=True
    )
    assert process.stdout == "{'n': 41}\n"


def test_form_feed_does_not_shift_source_lines():
    loader.remember(FIRST, "a\x0cb\u2028\nc = 1\n")
    assert linecache.getline(FIRST, 2) == "c = 1\n"


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("flag, other = True, 1", {"flag", "other"}),
        ("for flag in [True]: pass", {"flag"}),
        ("(flag := True)", {"flag"}),
        ("import string as flag", {"flag"}),
        ("if not flag: flag = True", set()),
        ("held += [2]", set()),
        ("flag |= False", {"flag"}),  # a bool cannot change in place
        ("for _ in 'ab': held += [2]", {"_"}),
    ],
)
def test_body_reports_certainly_bound_names(text, bound):
    found = set()
    names = {"flag": True, "held": [1], "get_ipython": RankShell}
    loader.run_body(ModuleMap({}, SECOND, body=text), names, found)
    assert found == bound


def test_names_after_an_error_are_not_bound():
    found = set()
    with pytest.raises(ZeroDivisionError):
        loader.run_body(ModuleMap({}, SECOND, body="a = 1\n1 / 0\nb = 2"), {}, found)
    assert found == {"a"}
