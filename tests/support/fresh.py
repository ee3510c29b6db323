"""What a rank computes where no module is as the notebook has made it: in a new process.

`python -m tests.support.fresh FILE ENTRY` loads a program's module file as a rank does and prints
what its entry returns for rank 0.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from tests.support.fork_job import environment
from tests.support.notebook_double import Notebook
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.protocol.order import ARGUMENTS
from xla_nb.rank import loader


def in_a_new_process(program: Program) -> str:
    """What the entry of a program returns for rank 0, as `repr` shows it."""
    fd = program.parcel.to_memfd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{program.name}.py"
            module_file.write(program, path)
            command = [sys.executable, "-m", "tests.support.fresh", str(path), str(program.entry)]
            parcel = {loader.PARCEL: loader.parcel_path(fd)}
            done = subprocess.run(
                command,
                env={**environment(), "PYTHONPATH": os.pathsep.join(sys.path), **parcel},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 0, done.stdout
            return done.stdout.splitlines()[-1]
    finally:
        os.close(fd)


def launched(notebook: Notebook, cell: str) -> tuple[Any, tuple[str, ...]]:
    """What the cell's `f` returns where all modules are imported anew, and the notes."""
    program = notebook.build(textwrap.dedent(cell))
    return ast.literal_eval(in_a_new_process(program)), program.notes


def _main(path: str, entry: str) -> None:
    main = vars(loader.load(Path(path)))
    print(repr(main[entry](0, *main[ARGUMENTS])))


if __name__ == "__main__":
    _main(*sys.argv[1:])
