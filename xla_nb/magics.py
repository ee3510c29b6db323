"""`%%xla_spawn` and `%xla_config`: the only module that knows IPython.

A launched cell is not executed in the notebook: what it defines is kept as source, and becomes
real in the kernel when a later cell names it. The rule: a launch never waits for an import.
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from xla_nb import api, program
from xla_nb.errors import UsageError
from xla_nb.session import Options, Run

_DURATION = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def load(shell: InteractiveShell) -> None:
    """Register the magics and start warming the fork server."""
    magics = XlaMagics(shell)
    shell.register_magics(magics)
    shell.events.register("pre_run_cell", magics.before_cell)
    api.engine().warm()


def unload(shell: InteractiveShell) -> None:
    """End what `load` started."""
    magics = _magics(shell)
    if magics is not None:
        shell.events.unregister("pre_run_cell", magics.before_cell)
        del shell.magics_manager.registry[XlaMagics.__name__]
    api.engine().close()


def scope(shell: InteractiveShell) -> program.Scope:
    """What the notebook holds now, its executed cells oldest first."""
    magics = _magics(shell)
    launched = magics.launched if magics else {}
    pending = magics.pending if magics else {}
    history: Any = shell.history_manager
    before = zip(history.input_hist_raw, history.input_hist_parsed, strict=True)
    cells = [
        launched.get(number) or _executed(shell, number, raw, source)
        for number, (raw, source) in enumerate(before)
        if 0 < number < current_number(shell)
    ]
    # What IPython itself put there (`open`, `exit`, `get_ipython`, In and Out) is not the user's.
    hidden = shell.user_ns_hidden
    values = {k: v for k, v in shell.user_ns.items() if k not in hidden or hidden[k] is not v}
    return program.Scope(values=values, cells=cells, pending=list(pending.values()))


def current_number(shell: InteractiveShell) -> int:
    """The number at the prompt of the cell that runs now.

    Not `execution_count`: IPython 9 counts on before it runs a cell, 7 and 8 after.
    """
    history: Any = shell.history_manager
    return len(history.input_hist_parsed) - 1


def _executed(shell: InteractiveShell, number: int, raw: str, source: str) -> program.Cell:
    return program.Cell(
        label=f"Cell In[{number}]",
        source=source,
        filename=shell.compile.get_code_name(raw, source, number),
    )


def _magics(shell: InteractiveShell) -> XlaMagics | None:
    found: XlaMagics | None = shell.magics_manager.registry.get(XlaMagics.__name__)
    return found


# ---------------------------------------------------------------- options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%xla_spawn: {message}. What to do: `%%xla_spawn?` lists the options")


def _duration(text: str) -> float:
    """Seconds: `90`, `1.5s`, `5m`, `2h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90, 5m or 2h")
    return float(found[1]) * _DURATION[found[2]]


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no assignment; write --env NAME=VALUE")
    return name, value


def _name(text: str) -> str:
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a variable")
    return text


def _parser() -> _Parser:
    parser = _Parser(prog="%%xla_spawn", add_help=False, allow_abbrev=False)
    parser.add_argument("entry", nargs="?")
    parser.add_argument("-n", type=int)
    parser.add_argument("--args", default="()")
    parser.add_argument("--env", type=_assignment, action="append", default=[])
    parser.add_argument("--timeout", type=_duration)
    parser.add_argument("--grace", type=_duration)
    parser.add_argument("--keep-going", action="store_true", default=None)
    parser.add_argument("--bg", action="store_true")
    parser.add_argument("-o", "--out", type=_name)
    return parser


def _read(line: str) -> argparse.Namespace:
    try:
        words = shlex.split(line)
    except ValueError as problem:
        raise UsageError(f"%%xla_spawn {line}: {problem}; a quote is left open") from None
    return _parser().parse_args(words)


#: What `%xla_config` knows: name, how a text becomes a value, the default, what it is.
SETTINGS: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "n": (int, None, "ranks; by default all of a TPU's, or 4 simulated ones"),
    "timeout": (_duration, None, "seconds after which a run is stopped"),
    "grace": (_duration, 5.0, "seconds the other ranks may go on when one has failed"),
    "keep_going": (ast.literal_eval, False, "give back a failed Run instead of raising"),
}


# ---------------------------------------------------------------- the magics


@magics_class
class XlaMagics(Magics):
    """The magics of xla_nb. `launched` are the cells run on ranks, by execution count."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.launched: dict[int, program.Cell] = {}
        self.pending: dict[int, program.Cell] = {}
        self.settings = {name: default for name, (_, default, _) in SETTINGS.items()}

    @cell_magic
    def xla_spawn(self, line: str, cell: str) -> Run | None:
        """Run the cell on every rank: of the TPU, or of a simulated TPU host.

            %%xla_spawn [FUNCTION] [-n N] [--args EXPR] [--env NAME=VALUE]... [--timeout TIME]
                        [--grace TIME] [--keep-going] [--bg] [-o NAME]

        The function named, else the last one that the cell defines, is called on each rank
        with the rank's index first, as xmp.spawn does it:

            %%xla_spawn -n 4 --args "(0.1,)"
            def train(rank, lr, lock):
                with lock:
                    print(rank, torch_xla.device())
                return rank

        A parameter named `lock` that is not passed receives a lock shared by all ranks. A cell
        without a function is run as it stands, with `rank`, `world_size`, `device` and `lock`
        defined; the value of its last expression is the rank's result. What the cell needs of
        earlier cells (functions, classes, imports, values) goes along by itself.

        -n N             ranks (default: all of the TPU's, or 4 simulated ones)
        --args EXPR      a tuple of further arguments, evaluated in the notebook
        --env NAME=VALUE an environment variable of the ranks; may be given again
        --timeout TIME   stop the run after that long: 90, 5m, 2h
        --grace TIME     how long the others may go on when a rank has failed (default 5)
        --keep-going     give back a failed Run instead of raising RunFailed
        --bg             return at once; run.wait(), run.stop()
        -o NAME          bind the Run to NAME, too

        Gives a Run: run.results, run[2], run.ok, run.errors, run.output(2), run.elapsed,
        run.record. `%xla_config` shows and sets defaults.
        """
        asked = _read(line)
        args = self._arguments(asked.args)
        number = current_number(self.shell)
        launched = self._cell(number, line, cell)
        what = program.build(
            launched, scope(self.shell), entry=asked.entry, args=args, name=f"xla_nb_cell_{number}"
        )

        def begun(run: Run) -> None:
            self.launched[number] = self.pending[number] = launched
            if asked.out:
                self.shell.user_ns[asked.out] = run

        return api.run(
            what,
            args,
            Options(
                n=self._setting(asked.n, "n"),
                env=dict(asked.env),
                timeout=self._setting(asked.timeout, "timeout"),
                grace=self._setting(asked.grace, "grace"),
            ),
            self._resolve,
            keep_going=self._setting(asked.keep_going, "keep_going"),
            bg=asked.bg,
            launched=begun,
        )

    @line_magic
    def xla_config(self, line: str) -> None:
        """Show the defaults of %%xla_spawn, or set them: `%xla_config n=8 grace=10`.

        `%xla_config reset` puts them back.
        """
        for word in line.split():
            if word == "reset":
                self.settings = {name: default for name, (_, default, _) in SETTINGS.items()}
                continue
            name, equals, value = word.partition("=")
            if not equals or name not in SETTINGS:
                known = ", ".join(SETTINGS)
                raise UsageError(f"%xla_config {word}: write NAME=VALUE, with NAME one of {known}")
            self.settings[name] = _setting_value(name, value)
        for name, (_, _, meaning) in SETTINGS.items():
            print(f"{name:<11} {self.settings[name]!s:<6} {meaning}")

    def before_cell(self, info: Any = None) -> None:
        """Execute what launched cells define, if the cell that is about to run names it."""
        text = getattr(info, "raw_cell", None) or ""
        if self.pending and not text.lstrip().startswith("%%xla_spawn"):
            self._materialise(_names_in(self.shell.transform_cell(text)))  # type: ignore[no-untyped-call]

    # ------------------------------------------------------------ inside

    def _setting(self, asked: Any, name: str) -> Any:
        return self.settings[name] if asked is None else asked

    def _arguments(self, expression: str) -> tuple[object, ...]:
        try:
            value = eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except Exception as problem:
            raise UsageError(
                f"--args {expression!r} cannot be evaluated: {type(problem).__name__}: {problem}"
            ) from None
        if not isinstance(value, tuple):
            raise UsageError(
                f"--args {expression!r} is a {type(value).__name__}, not a tuple. What to do: "
                f'write --args "({expression},)"'
            )
        return value

    def _cell(self, number: int, line: str, cell: str) -> program.Cell:
        # The magic's own line stays, as a comment: lines count as the user sees them.
        source: str = self.shell.transform_cell(  # type: ignore[no-untyped-call]
            f"#%%xla_spawn {line}\n{cell}"
        )
        return program.Cell(label=f"Cell In[{number}]", source=source)

    def _resolve(self, name: str) -> object:
        """A name of the notebook for a result that refers to it."""
        self._materialise({name})
        return self.shell.user_ns[name]

    def _materialise(self, names: set[str]) -> None:
        """Execute the definitions of pending cells that bind one of the names, or that such a
        function of the notebook uses."""
        names = names | set(_used_by(self.shell.user_ns, names))
        for number, cell in list(self.pending.items()):
            if number in self.pending and names & set(program.bound(cell)):
                del self.pending[number]
                self._materialise(_names_in(cell.source) - set(program.bound(cell)))
                self._execute(number, cell)

    def _execute(self, number: int, cell: program.Cell) -> None:
        source = program.definitions(cell)
        name = self.shell.compile.cache(cell.source, number)
        self.launched[number] = program.Cell(cell.label, cell.source, name)
        try:
            exec(compile(source, name, "exec", dont_inherit=True), self.shell.user_ns)
        except Exception as problem:
            print(
                f"{cell.label} ran on the ranks, but what it defines cannot be had in the "
                f"notebook: {type(problem).__name__}: {problem}",
                file=sys.stderr,
            )


def _setting_value(name: str, text: str) -> Any:
    if text == "None":
        return SETTINGS[name][1]
    try:
        return SETTINGS[name][0](text)
    except (ValueError, SyntaxError, argparse.ArgumentTypeError) as problem:
        raise UsageError(f"%xla_config {name}={text}: {problem}") from None


def _names_in(source: str) -> set[str]:
    """The names that code mentions; in a line of IPython's (`f?`, `%time f()`), every word."""
    words = re.compile(r"[^\W\d]\w*")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set(words.findall(source))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if "get_ipython" in names:
        names.update(words.findall(source))
    return names


def _used_by(namespace: dict[str, Any], names: Iterable[str]) -> set[str]:
    """Names that the notebook's own functions among `names` use, through each other."""
    seen: set[str] = set()
    todo = list(names)
    while todo:
        function = namespace.get(todo.pop())
        if isinstance(function, types.FunctionType) and function.__module__ == "__main__":
            fresh = set(function.__code__.co_names) - seen
            seen |= fresh
            todo += fresh
    return seen
