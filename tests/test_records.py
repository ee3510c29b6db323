"""Files that a notebook leaves on disk: permissions, secrets and how long they are kept."""

import json
import re
import stat

import pytest

SECRET = "hunter2"


@pytest.fixture
def own_home(notebook, tmp_path):
    """A separate XLA_NB_HOME for this test, in the kernel that all tests share."""
    home = tmp_path / "home"
    notebook.ok(
        "import os as _os\n_before = _os.environ['XLA_NB_HOME']\n"
        f"_os.environ['XLA_NB_HOME'] = {str(home)!r}"
    )
    yield home
    notebook.ok("_os.environ['XLA_NB_HOME'] = _before")


def displayed(shown):
    """All messages of a cell as JSON, except the cell itself."""
    said = [message for message in shown.messages if message["msg_type"] != "execute_input"]
    return json.dumps([message["content"] for message in said])


# ---------------------------------------------------------------- permissions


def test_files_of_a_run_are_private_whatever_the_umask(notebook, own_home):
    notebook.ok("_umask = _os.umask(0)")
    try:
        notebook.ok(
            "%%xla_spawn -n 2 -o opened_up --view none\n"
            "import os, sys, xla_nb\n"
            "os.umask(0)\n"
            "kept_here = os.getpid()\n"
            "def f(rank):\n"
            "    print('out'); print('err', file=sys.stderr)\n"
            "    xla_nb.report(loss=rank)\n"
            "    return kept_here"
        )
        notebook.ok("opened_up.ask_stacks()")
    finally:
        notebook.ok("_os.umask(_umask)")
    modes = {path: stat.filemode(path.stat().st_mode) for path in [own_home, *own_home.rglob("*")]}
    names = {path.name for path in modes}
    assert {"rank-1.out", "rank-0.history", "rank-0.now", "rank-0.result", "stacks"} <= names
    assert set(modes.values()) == {"drwx------", "-rw-------"}, modes


# ---------------------------------------------------------------- secrets


@pytest.mark.parametrize(
    ("words", "view"),
    [
        (f"--env TOKEN={SECRET}", "text"),
        (f"--env=TOKEN={SECRET}", "panel"),
        (f"--env 'TOKEN=a {SECRET}' --env OTHER=\"{SECRET} b\"", "text"),
        (f"--env TOKEN=\"\"'{SECRET}'", "panel"),
        ("--env TOKEN={'hunt' + 'er2'}", "text"),
    ],
)
def test_values_of_env_are_neither_stored_nor_displayed(notebook, own_home, words, view):
    shown = notebook.run(
        f"%%xla_spawn -n 2 {words} --view {view} --keep-going -o with_secret\n"
        "import os\n"
        "kept_too = os.getpid()\n"
        "def f(rank):\n"
        "    if rank: raise ValueError(kept_too)\n"
        "    return 'er2' in os.environ['TOKEN']"
    )
    assert shown.status == "ok", shown.error
    assert notebook.value("with_secret.results") == "{0: True}"
    files = [path for path in own_home.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path.name for path in files if SECRET in path.read_text(errors="replace")] == []
    assert SECRET not in displayed(shown)


def test_the_program_keeps_names_of_env_without_values(notebook, own_home):
    notebook.ok(f"%%xla_spawn -n 1 --env TOKEN={SECRET} --view none\nclass A: pass\nA")
    (beside,) = own_home.rglob("program/*.json")
    assert "#%%xla_spawn -n 1 --env TOKEN=… --view none\n" in json.loads(beside.read_text())["body"]


@pytest.mark.parametrize(
    "words",
    [
        f"--env TOKEN='{SECRET}",
        f"--env ={SECRET}",
        f"--env {SECRET}",
        f"--env TOKEN=1 OTHER={SECRET}",
        f"--evn TOKEN={SECRET}",
        f"--env 'TO\x00KEN={SECRET}'",
    ],
)
def test_an_error_about_env_does_not_show_values(notebook, words):
    shown = notebook.run(f"%%xla_spawn {words}\ndef f(rank): pass")
    assert shown.ename in ("UsageError", "ProgramError"), displayed(shown)
    assert SECRET not in displayed(shown)


# ---------------------------------------------------------------- retention


@pytest.fixture
def launch(notebook, own_home):
    """Launch a cell and return the name of its run. The home keeps 2 runs."""
    notebook.ok("from xla_nb.record import tidying; _most = tidying.NBYTES; tidying.RUNS = 2")

    def launch(line="", body="def f(rank): return rank", view="none"):
        before = names(own_home)
        notebook.ok(f"%%xla_spawn -n 1 --view {view} {line}\n{body}")
        (name,) = names(own_home) - before
        return name

    yield launch
    notebook.ok("tidying.RUNS, tidying.NBYTES = 20, _most")


def forget_shown(notebook):
    """Make IPython forget all outputs of cells, including `_`, `__` and `___`."""
    notebook.ok("%reset -f out")
    for _ in range(3):
        notebook.ok("0")


def names(home):
    """The names of the runs."""
    return {path.name for path in home.glob("runs/[!.]*")}


def cells(home):
    """The folders of cells on live ranks."""
    return list(home.glob("runs/*/cells/[!.]*"))


def test_old_runs_of_an_open_notebook_are_removed_once_nothing_refers_to_them(
    launch, notebook, own_home
):
    made = [launch() for _ in range(4)]
    assert names(own_home) == set(made)  # `Out` refers to them
    forget_shown(notebook)
    made += [launch() for _ in range(2)]
    assert made[0] not in names(own_home)
    assert len(names(own_home)) <= 5
    gone = notebook.run(f"import xla_nb; xla_nb.open_run({made[0]!r})")
    assert f"No run is recorded at '{made[0]}'" in gone.error


def test_runs_that_a_variable_refers_to_are_kept(launch, notebook, own_home):
    notebook.ok("many_runs = []")
    held = [launch("-o one_run")]
    for _ in range(2):
        held.append(launch("-o next_run"))
        notebook.ok("many_runs.append(next_run); del next_run")
    forget_shown(notebook)
    again = "%%xla_spawn -n 1 --view none\ndef f(rank): pass"
    notebook.ok(again)
    assert set(held) <= names(own_home)
    notebook.ok("tidying.NBYTES = 1024")
    notebook.ok(again)
    notebook.ok("tidying.NBYTES = _most")
    assert set(held) <= names(own_home)
    assert notebook.value("one_run.results, many_runs[1].results") == "({0: 0}, {0: 0})"
    notebook.ok("del one_run, many_runs")
    forget_shown(notebook)
    last = [launch() for _ in range(2)]
    assert set(last) <= names(own_home)
    assert not names(own_home) & set(held)


@pytest.mark.slow
def test_records_of_live_cells_are_removed_a_hundred_at_a_time(launch, notebook, own_home):
    notebook.ok(
        "import xla_nb\nmany_cells = xla_nb.ranks(n=1)\n"
        "for _ in range(99): many_cells.run('None', view='none')"
    )
    assert len(cells(own_home)) >= 99
    notebook.ok("many_cells.run('None', view='none');")
    assert len(cells(own_home)) <= 2
    notebook.ok("many_cells.run('None', view='none'); many_cells.close()")
    assert len(cells(own_home)) <= 2
    notebook.ok("del many_cells")


def test_live_ranks_are_listed_as_one_run_and_their_cells_can_be_opened_by_name(notebook, own_home):
    cell = "import xla_nb\nlive_cell = xla_nb.ranks('listed', n=1).run('rank + 7', view='none')"
    notebook.ok(cell)
    group = notebook.value("xla_nb.ranks('listed')._own.run.name").strip("'")
    listed = notebook.ok("%xla_runs").text
    name = notebook.value("live_cell.name").strip("'")
    (line,) = (line for line in listed.splitlines() if line.startswith(group))
    assert re.search(r"running  +\d.* m?s  +live ranks `listed`  +1 live rank, idle$", line)
    cell = "%%xla_spawn -n 1 --bg --view none -o goes_on\nimport time\ntime.sleep(99)"
    number = notebook.ok(cell).number
    listed = notebook.ok(
        "import time\nuntil = time.monotonic() + 60\n"
        "while not (asleep := '1 rank waiting' in repr(goes_on._repr_mimebundle_()))"
        " and time.monotonic() < until: time.sleep(0.1)\n%xla_runs 1"
    ).text
    assert re.search(rf"running  +\d.* m?s  +Cell In\[{number}\]  +1 rank running$", listed)
    # As another notebook opens it, which has not launched it.
    assert notebook.value("xla_nb.open_run(goes_on.name).label") == f"'Cell In[{number}]'"
    notebook.ok("goes_on.stop(); goes_on.join_end(); del goes_on")
    assert name not in listed
    assert notebook.value(f"xla_nb.open_run({name!r}).results") == "{0: 7}"
    notebook.ok("xla_nb.ranks('listed').close(); del live_cell")


def test_a_run_is_listed_with_the_arguments_of_its_function(notebook, own_home):
    line = "%%xla_spawn -n 1 --view none -o given --args \"(3, 'sgd')\""
    number = notebook.ok(f"{line}\ndef f(rank, lr, how): return lr").number
    assert f"Cell In[{number}] f(3, 'sgd')" in notebook.ok("%xla_runs 1").text
    notebook.ok("del given")


def test_the_list_shows_which_notebook_launched_a_run(notebook, own_home):
    launched = "%%xla_spawn -n 1 --view none -o {}\nrank"
    notebook.ok(launched.format("nameless"))
    assert "notebook" not in notebook.ok("%xla_runs").text
    # Jupyter's server sets this in the environment of a notebook's kernel.
    notebook.ok("import os\nos.environ['JPY_SESSION_NAME'] = 'models/fit resnet.ipynb'")
    notebook.ok(launched.format("named"))
    name = notebook.value("named.name").strip("'")
    listed = notebook.ok("del nameless, named, os.environ['JPY_SESSION_NAME']\n%xla_runs").text
    assert re.search(rf"^{name}  +fit resnet.ipynb  +finished ", listed, re.MULTILINE)


def test_the_list_shows_figures_of_all_cells_of_live_ranks(notebook, own_home):
    notebook.ok("reporters = xla_nb.ranks('reporters', n=1)")
    for figures in ("loss=0.5, acc=1", "loss=0.25", "val=14"):
        notebook.ok(f"reporters.run('import xla_nb; xla_nb.report({figures})', view='none');")
    group = notebook.value("reporters._own.run.name").strip("'")
    listed = notebook.ok("%xla_runs\nreporters.close()").text
    (line,) = (line for line in listed.splitlines() if line.startswith(group))
    assert "loss 0.25 · acc 1 · val 14" in line


def test_a_run_opened_twice_is_kept_while_one_object_exists(launch, notebook, own_home):
    first = launch("-o open_twice")
    notebook.ok(f"import xla_nb\nsecond = xla_nb.open_run({first!r})\ndel second")
    forget_shown(notebook)
    for _ in range(3):
        launch()
    assert notebook.value("open_twice.results") == "{0: 0}"
    notebook.ok("del open_twice")


def test_an_opened_run_is_kept(launch, notebook, own_home):
    first = launch()
    notebook.ok(f"import xla_nb\nreopened_run = xla_nb.open_run({first!r})")
    for _ in range(3):
        launch()
    assert notebook.value("reopened_run.results") == "{0: 0}"
    notebook.ok("del reopened_run")


@pytest.mark.parametrize("view", ["text", "panel"])
def test_an_unreferenced_run_is_garbage_collected(notebook, own_home, view):
    launched = f"run_cell_magic('xla_spawn', '-n 1 --view {view}', 'None')"
    notebook.ok(f"import gc, weakref\nwatching = weakref.ref(get_ipython().{launched})")
    assert notebook.value("gc.collect() * 0, watching()") == "(0, None)"


def test_a_home_that_belongs_to_another_user_is_refused_by_name(notebook, own_home):
    own_home.mkdir()
    notebook.ok("_geteuid, _os.geteuid = _os.geteuid, lambda: 1 + _geteuid()")
    try:
        launched = notebook.run("%%xla_spawn -n 1\ndef f(rank): pass")
    finally:
        notebook.ok("_os.geteuid = _geteuid")
    assert launched.ename == "LaunchError"
    assert f"{own_home} belongs to" in launched.error
    assert not list(own_home.iterdir())
