"""`get_ipython()` on a rank: supported and refused commands and magics."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xla_nb.errors import UsageError
from xla_nb.rank.loader import RankShell


def line_magic(name: str, line: str = "") -> str:
    return f"get_ipython().run_line_magic({name!r}, {line!r})"


def run(source: str, **names: object) -> dict[str, object]:
    scope: dict[str, object] = {"get_ipython": RankShell, **names}
    exec(source, scope)
    return scope


def test_command_writes_to_stdout_and_stderr_of_the_rank(capfd):
    scope = run("get_ipython().system('echo out; echo err >&2; exit 3')")
    assert capfd.readouterr() == ("out\n", "err\n")
    assert scope["_exit_code"] == 3


def test_output_of_print_and_commands_stays_in_order():
    source = "print('one'); RankShell().system('echo two'); print('three')"
    source = f"from xla_nb.rank.loader import RankShell; {source}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", source]
    process = subprocess.run(command, env=env, capture_output=True, check=True)
    assert process.stdout == b"one\ntwo\nthree\n"


def test_getoutput_returns_a_list_of_lines():
    assert run("x = get_ipython().getoutput('echo a; echo b')")["x"] == ["a", "b"]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("echo {n + 1}", "3"),
        ("echo $n", "2"),
        ("echo {n:03d}", "{n:03d}"),
        ("echo {{n}}", "{n}"),
        ("NOT_A_VARIABLE=7; echo {n} $NOT_A_VARIABLE", "{n} 7"),
        ("echo a b | awk '{print $2}'", "b"),
        ("echo {missing}", "{missing}"),
    ],
)
def test_variables_are_expanded_as_in_a_notebook(command, output):
    assert run(f"x = get_ipython().getoutput({command!r})", n=2)["x"] == [output]


def test_local_variables_are_expanded():
    source = (
        "def f():\n    here = 5\n    return get_ipython().getoutput('echo {here} $here')\nx = f()"
    )
    assert run(source)["x"] == ["5 5"]


def test_env_sets_and_returns_variables(monkeypatch, capsys):
    monkeypatch.setenv("XLA_NB_A", "old")
    scope = run(
        f"{line_magic('env', 'XLA_NB_A=new {n}')}\n"
        f"{line_magic('set_env', 'XLA_NB_B two words')}\n"
        f"x = {line_magic('env', 'XLA_NB_A')}\n"
        f"everything = {line_magic('env')}",
        n=1,
    )
    assert (os.environ.pop("XLA_NB_B"), scope["x"]) == ("two words", "new 1")
    assert scope["everything"]["XLA_NB_A"] == "new 1"  # type: ignore[index]
    assert "env: XLA_NB_A=new 1" in capsys.readouterr().out


def test_cd_changes_and_pwd_returns_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    scope = run(f"{line_magic('cd', str(tmp_path))}\nx = {line_magic('pwd')}")
    assert Path(str(scope["x"])) == tmp_path == Path.cwd()


def test_notebook_magics_do_nothing_on_ranks():
    assert run(f"x = {line_magic('matplotlib', 'inline')}")["x"] is None


@pytest.mark.parametrize(
    "source", [line_magic("timeit", "x"), "get_ipython().run_cell_magic('bash', '', '')"]
)
def test_unsupported_magic_raises_on_ranks(source):
    with pytest.raises(UsageError, match=r"^%\S+ does not work on ranks; "):
        run(source)
