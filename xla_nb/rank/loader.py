"""Load a program's file as the module `__main__` of a rank, and run a cell's text in it.

Each statement is compiled under the name of its cell, so tracebacks and `inspect` show the
notebook. A spawned process (a DataLoader worker) that imports the file as plain Python must get
the same values.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.machinery
import importlib.util
import io
import linecache
import os
import re
import subprocess
import sys
import tokenize
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from xla_nb import old_names
from xla_nb.errors import UsageError
from xla_nb.pickling.code_facts import is_ready
from xla_nb.pickling.parcel import Parcel
from xla_nb.process_state import absl_flags
from xla_nb.process_state.settings import unmoved
from xla_nb.program.ipython_syntax import IGNORED, refusal
from xla_nb.program.module_file import ModuleMap
from xla_nb.program.names import bindings
from xla_nb.rank import displays, patches
from xla_nb.record import output

#: The environment variable with the path of the parcel that holds the run's values.
PARCEL = "XLA_NB_PARCEL"


def parcel_path(fd: int) -> str:
    """A path by which this process and its children can open the parcel."""
    return f"/proc/{os.getpid()}/fd/{fd}"


@functools.lru_cache(maxsize=1)
def parcel(path: str) -> Parcel:
    """The run's values, in memory shared by all processes."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return Parcel(fd)
    finally:
        os.close(fd)


def restore(namespace: dict[str, Any], file: str | None = None, spec: str | None = None) -> None:
    """Put the parcel's values into `namespace`. A program's file calls this.

    `file` is the script's; `spec` is the name given to `python -m`, which relative imports need,
    also while values are unpickled."""
    if file is not None:
        module_spec = importlib.machinery.ModuleSpec(spec, None, origin=file) if spec else None
        package = module_spec.parent if module_spec else None
        namespace.update(__file__=file, __spec__=module_spec, __package__=package)
    patches.leave_segments_to_their_makers()  # needed in processes that ranks spawn
    old_names.install()  # likewise
    absl_flags.let_pickle_have_them()
    with unmoved(lives=False):
        namespace.update(parcel(os.environ[PARCEL]).open(namespace))


class _Main(types.ModuleType):
    """The module ``__main__`` of a rank.

    Its globals `__file__` and `__spec__` are the script's or the notebook's. But a process that
    multiprocessing spawns must import the program: by the name in the module's attribute
    `__spec__`, which multiprocessing prefers to `__file__`."""

    __slots__ = ("_program",)  # must not be a global of the cell

    def __init__(self, program: Path) -> None:
        super().__init__("__main__")
        self._program = program

    @property
    def __spec__(self) -> importlib.machinery.ModuleSpec | None:  # type: ignore[override]
        return importlib.util.spec_from_file_location(self._program.stem, self._program)

    def __reduce__(self) -> Any:  # as cloudpickle does for other modules
        return importlib.import_module, ("__main__",)


def load(path: Path) -> types.ModuleType:
    """Execute the program's file as ``__main__``, also importable under its own name."""
    module = _Main(path)
    shell = RankShell()
    vars(module).update(get_ipython=lambda: shell, display=displays.display)
    # A spawned worker imports the file as `__mp_main__`, and pickles its classes by that name.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = sys.modules[path.stem] = module
    sys.path.append(str(path.parent))  # not first, which is the script's folder
    for label, source in ModuleMap.open(path).sources.items():
        remember(label, source)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(module))
    return module


def remember(label: str, source: str) -> None:
    """Have tracebacks and `inspect` show a cell's lines (an entry in linecache's format)."""
    lines = [f"{line}\n" for line in source.split("\n")]  # not at form feeds, like Python
    linecache.cache[label] = (len(source), None, lines, label)


def run_body(table: ModuleMap, namespace: dict[str, Any], bound: set[str] | None = None) -> object:
    """Run a cell of plain statements; returns the value of a final expression, else None. Adds to
    `bound` the names that it is certain to bind."""
    assert table.body is not None
    tree = ast.parse(table.body, table.label)
    bound = set() if bound is None else bound
    value: object = None
    for statement in tree.body:
        if statement is tree.body[-1] and isinstance(statement, ast.Expr):
            code = _compile(ast.Expression(statement.value), table, "eval")
        else:
            code = _compile(ast.Module([statement], []), table, "exec")
        value = eval(code, namespace)
        bound |= _bound_by(statement, code, namespace)
    return value


def _compile(tree: ast.Module | ast.Expression, table: ModuleMap, mode: str) -> types.CodeType:
    # dont_inherit: this file's ``__future__`` imports do not apply to the cell.
    code: types.CodeType = compile(tree, table.label, mode, flags=table.flags, dont_inherit=True)
    return code


def _bound_by(
    statement: ast.stmt, code: types.CodeType, namespace: Mapping[str, object]
) -> set[str]:
    """The names that a statement binds whenever it runs, even to the same object; not those of
    `+=` and the like unless to a constant: they may have changed the object in place."""
    if isinstance(statement, ast.If | ast.While | ast.Try | ast.TryStar | ast.Match):
        return set()
    nodes = () if isinstance(statement, ast.Expr) else ast.walk(statement)
    targets = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    changed = {target.id for target in targets if isinstance(target, ast.Name)}
    changed = {name for name in changed if not is_ready(namespace.get(name))}
    return bindings(code) - changed


def ends_quietly(table: ModuleMap) -> bool:
    """Whether the cell ends with `;`, so that its last value is not shown, as in IPython."""
    text = table.body or ""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline) if ";" in text else ()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    return [token.string for token in tokens if token.type not in skipped][-1:] == [";"]


# ---------------------------------------------------------------- get_ipython() on a rank


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
