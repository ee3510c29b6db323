"""What a notebook leaves on disk: who can read it, what it never has, and how long it stays."""

import json
import stat

import pytest

SECRET = "hunter2"


@pytest.fixture
def own_home(notebook, tmp_path):
    """A home of the test's own, in the kernel that all tests share."""
    home = tmp_path / "home"
    notebook.ok(
        "import os as _os\n_before = _os.environ['XLA_NB_HOME']\n"
        f"_os.environ['XLA_NB_HOME'] = {str(home)!r}"
    )
    yield home
    notebook.ok("_os.environ['XLA_NB_HOME'] = _before")


def displayed(shown):
    """All that a cell showed, without the cell itself."""
    said = [message for message in shown.messages if message["msg_type"] != "execute_input"]
    return json.dumps([message["content"] for message in said])


# ---------------------------------------------------------------- who can read it


def test_nobody_else_can_read_what_a_run_leaves_whatever_the_umask(notebook, own_home):
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


# ---------------------------------------------------------------- what it never has


@pytest.mark.parametrize("view", ["text", "panel"])
@pytest.mark.parametrize(
    "words",
    [
        f"--env TOKEN={SECRET}",
        f"--env=TOKEN={SECRET}",
        f"--env 'TOKEN=a {SECRET}' --env OTHER=\"{SECRET} b\"",
        f"--env TOKEN=\"\"'{SECRET}'",
        "--env TOKEN={'hunt' + 'er2'}",
    ],
)
def test_values_of_env_reach_neither_the_disk_nor_the_page(notebook, own_home, words, view):
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


def test_the_names_of_env_are_kept_in_the_program(notebook, own_home):
    notebook.ok(f"%%xla_spawn -n 1 --env TOKEN={SECRET} --view none\ndef f(rank): pass")
    (program,) = own_home.rglob("program/*.py")
    assert "#%%xla_spawn -n 1 --env TOKEN=… --view none\n" in program.read_text()


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
    assert shown.ename == "UsageError"
    assert SECRET not in displayed(shown)
