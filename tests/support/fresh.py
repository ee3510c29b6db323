"""Runs programs in a new process, which has none of the notebook's changes to modules.

The processes are forked from one that has imported torch, but none of the user's modules.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.fork_job import environment
from tests.support.notebook_double import Notebook
from xla_nb.messages.orders import ARGUMENTS
from xla_nb.pickling.rebuild import take_notices
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.rank import loader

_servers: list[subprocess.Popen[str]] = []


def fork_server() -> Iterator[None]:
    """Start the process that they are forked from, for the fixture `fresh_processes`."""
    command = [sys.executable, "-m", "tests.support.fresh"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as _server:
        _servers.append(_server)
        yield
        _servers.remove(_server)


def _returned(program: Program) -> tuple[str, str]:
    """The repr of what a program's entry returns on rank 0, and the repr of the rank's notices."""
    fd = program.parcel.to_memfd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path, shown = Path(folder) / f"{program.name}.py", Path(folder) / "shown"
            module_file.write(program, path)
            # For files that torch creates on import and removes only when a process exits normally.
            its = {loader.PARCEL: loader.parcel_path(fd), "TMPDIR": folder}
            env = environment() | its
            order = [str(path), program.entry, str(shown), sys.path, env]
            server = _servers[-1]
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps(order), file=server.stdin, flush=True)
            assert server.stdout.readline() == "done\n"
            text = shown.read_text()
            assert "Traceback" not in text, text
            value, notices = text.splitlines()[-2:]
            return value, notices
    finally:
        os.close(fd)


def in_a_new_process(program: Program) -> str:
    """The repr of what a program's entry returns on rank 0."""
    return _returned(program)[0]


def launched(notebook: Notebook, cell: str) -> tuple[Any, tuple[str, ...]]:
    """What the cell's `f` returns after a fresh import of all modules, and the notes of the program
    and the rank."""
    program = notebook.build(textwrap.dedent(cell))
    value, notices = _returned(program)
    return ast.literal_eval(value), (*program.notes, *ast.literal_eval(notices))


def _serve() -> None:
    import torch  # noqa: F401

    for line in sys.stdin:
        path, entry, shown, folders, env = json.loads(line)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException), Path(shown).open("w") as file:
                for fd in (1, 2):
                    os.dup2(file.fileno(), fd)
                os.environ.clear()
                os.environ.update(env)
                tempfile.tempdir = None
                sys.path[:] = folders
                try:
                    main = vars(loader.load(Path(path)))
                    print(f"{main[entry](0, *main[ARGUMENTS])!r}\n{take_notices()!r}", flush=True)
                except BaseException:
                    traceback.print_exc()
            os._exit(0)
        os.waitpid(child, 0)
        print("done", flush=True)


if __name__ == "__main__":
    _serve()
