"""The object that `get_ipython()` returns on a rank: shell commands and a few magics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from xla_nb.errors import UsageError
from xla_nb.program.ipython_syntax import IGNORED, refusal
from xla_nb.record import output


class RankShell:
    """The shell that `get_ipython()` returns on a rank: shell commands and the `SUPPORTED` magics.

    `{expression}` and `$name` in a command are expanded from the caller's variables, as in a
    notebook: a text that cannot be expanded is used as written.
    """

    def system(self, command: str) -> None:
        """Run a shell command on the rank's own stdout and stderr."""
        caller = sys._getframe(1)
        output.flush()
        process = _shell(expand(command, caller), capture=False)
        caller.f_globals["_exit_code"] = process.returncode  # as IPython does

    def getoutput(self, command: str) -> list[str]:
        """Run a shell command and return the lines it prints."""
        output.flush()
        return _shell(expand(command, sys._getframe(1)), capture=True).stdout.splitlines()

    def run_line_magic(self, name: str, line: str, _stack_depth: int = 1) -> object:
        """Run `%name line`, or do nothing if it only configures the notebook."""
        caller = sys._getframe(1)
        if name in IGNORED:
            return None
        if name not in _MAGICS:
            raise UsageError(refusal("%", name))
        return _MAGICS[name](expand(line, caller).strip())

    def run_cell_magic(self, name: str, line: str, cell: str) -> object:
        """Raise UsageError: cell magics do not work on ranks."""
        raise UsageError(refusal("%%", name))


def expand(text: str, caller: FrameType) -> str:
    """The text with `{expression}` and `$name` expanded from the caller's variables."""
    from IPython.utils.text import DollarFormatter  # slow to import, rarely needed

    try:
        return DollarFormatter().vformat(text, (), {**caller.f_globals, **caller.f_locals})
    except Exception:  # braces of another kind: awk '{print $1}'
        return text


def _shell(command: str, *, capture: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        shell=True,
        executable=os.environ.get("SHELL"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


def _env(line: str) -> object:
    name, _, value = (part.strip() for part in re.sub(r"[\s=]+", "=", line, count=1).partition("="))
    if not name:
        return dict(os.environ)
    if not value:
        return os.environ.get(name)
    os.environ[name] = value
    print(f"env: {name}={value}")
    return None


def _cd(line: str) -> None:
    os.chdir(Path(line.strip("\"'") or "~").expanduser())
    print(Path.cwd())


_MAGICS: dict[str, Callable[[str], object]] = {
    "env": _env,
    "set_env": _env,
    "cd": _cd,
    "pwd": lambda _: str(Path.cwd()),
}
