"""`%%xla_spawn`, `%xla_config`, and what there is to do with runs: options in, a Run out.

The rule: this is the only module that imports IPython, and it decides nothing but what the
words on a magic's line mean.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import os
import re
import shlex
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from xla_nb import api, notebook, runtimes
from xla_nb.errors import UsageError
from xla_nb.program.build import build
from xla_nb.run import recorded
from xla_nb.run.options import Options
from xla_nb.run.run import Run
from xla_nb.runtimes import xla
from xla_nb.topology import drawing, picture
from xla_nb.views.choose import VIEWS
from xla_nb.views.saved import opened

_DURATION = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def load(shell: InteractiveShell) -> None:
    """Register the magics; start to warm the fork server, and the panel where there is one."""
    shell.register_magics(XlaMagics(shell))
    before_cell = notebook.of(shell).before_cell
    if before_cell not in shell.events.callbacks["pre_run_cell"]:
        shell.events.register("pre_run_cell", before_cell)
    api.engine().warm(xla.IMPORTS)
    if api.default_view() == "panel":  # its import would hold up the first launch
        import_panel = functools.partial(importlib.import_module, "xla_nb.views.panel.view")
        threading.Thread(target=import_panel, name="xla_nb-import", daemon=True).start()


def unload(shell: InteractiveShell) -> None:
    """End what `load` started."""
    shell.events.unregister("pre_run_cell", notebook.of(shell).before_cell)
    api.engine().close()
    api.release()


# ---------------------------------------------------------------- options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. What to do: `{self.prog}?` lists the options")


def _duration(text: str) -> float:
    """Seconds: `90`, `1.5s`, `5m`, `2h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90, 5m or 2h")
    return float(found[1]) * _DURATION[found[2]]


def _count_of(noun: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no number of {noun}s; there is at least 1 {noun}"
            )
        return int(text)

    return read


def _one_of(kind: str, names: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            known = ", ".join(names)
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind}; there are {known}")
        return text

    return read


def _where(text: str) -> str:
    if text not in ("local", "ray") and not text.startswith("ray://"):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no place for ranks; there are local, ray and ray://HOST:PORT"
        )
    return text


_view, _runtime = _one_of("view", VIEWS), _one_of("runtime", runtimes.NAMES)
_ranks, _hosts, _slices = _count_of("rank"), _count_of("host"), _count_of("slice")


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
    parser.add_argument("-n", type=_ranks)
    parser.add_argument("--runtime", type=_runtime)
    parser.add_argument("--on", type=_where)
    parser.add_argument("--hosts", type=_hosts)
    parser.add_argument("--slices", type=_slices)
    parser.add_argument("--wait", type=_duration)
    parser.add_argument("--args", default="()")
    parser.add_argument("--env", type=_assignment, action="append", default=[])
    parser.add_argument("--timeout", type=_duration)
    parser.add_argument("--grace", type=_duration)
    parser.add_argument("--keep-going", action="store_true", default=None)
    parser.add_argument("--view", choices=VIEWS)
    parser.add_argument("--bg", action="store_true")
    parser.add_argument("-o", "--out", type=_name)
    return parser


def _topology_parser() -> _Parser:
    parser = _Parser(prog="%xla_topology", add_help=False, allow_abbrev=False)
    parser.add_argument("-n", type=_ranks)
    parser.add_argument("--on", type=_where)
    parser.add_argument("--hosts", type=_hosts)
    parser.add_argument("--slices", type=_slices)
    parser.add_argument("--wait", type=_duration)
    parser.add_argument("--accelerator")
    parser.add_argument("--dry-run", action="store_true")
    return parser


def _read(parser: _Parser, line: str) -> argparse.Namespace:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as problem:
        raise UsageError(f"{parser.prog} {line}: {problem}; a quote is left open") from None
    return parser.parse_args(words)


#: What `%xla_config` knows: name, how a text becomes a value, the default, what it is.
SETTINGS: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "n": (_ranks, None, "ranks; by default all of a TPU's, or 4 simulated ones"),
    "runtime": (_runtime, "xla", "what a rank joins: xla, spmd or torchax"),
    "on": (_where, "local", "where the ranks are: local, ray or ray://HOST:PORT"),
    "hosts": (_hosts, None, "machines of the Ray cluster; by default all that are free"),
    "slices": (_slices, None, "TPU slices that the hosts are in"),
    "wait": (_duration, 0.0, "seconds to wait until the cluster has the hosts free"),
    "timeout": (_duration, None, "seconds after which a run is stopped"),
    "grace": (_duration, 5.0, "seconds the other ranks may go on when one has failed"),
    "view": (_view, None, "panel, text or none; by default what the front end can show"),
    "keep_going": (ast.literal_eval, False, "give back a failed Run instead of raising"),
}


# ---------------------------------------------------------------- the magics


@magics_class
class XlaMagics(Magics):
    """The magics of xla_nb; `settings` are the defaults of their options."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = notebook.of(shell)
        self.settings = {name: default for name, (_, default, _) in SETTINGS.items()}

    @cell_magic
    def xla_spawn(self, line: str, cell: str) -> Run | None:
        """Run the cell on every rank: of the TPU, or of a simulated TPU host.

            %%xla_spawn [FUNCTION] [-n N] [--runtime NAME] [--on WHERE] [--hosts H] [--slices S]
                        [--wait TIME] [--args EXPR] [--env NAME=VALUE]... [--timeout TIME]
                        [--grace TIME] [--keep-going] [--view VIEW] [--bg] [-o NAME]

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
        --runtime NAME   xla (default); spmd: one process that owns all devices, -n of them
                         without a TPU; torchax: one JAX world of all ranks
        --on WHERE       local (default); ray: a Ray cluster, by RAY_ADDRESS or this machine's;
                         ray://HOST:PORT: one that is reached through its client server
        --hosts H        machines of the cluster, each with -n ranks (default: all that are free)
        --slices S       TPU slices that the hosts are in
        --wait TIME      how long to wait until the cluster has the hosts free (default: not)
        --args EXPR      a tuple of further arguments, evaluated in the notebook
        --env NAME=VALUE an environment variable of the ranks; may be given again
        --timeout TIME   stop the run after that long: 90, 5m, 2h
        --grace TIME     how long the others may go on when a rank has failed (default 5)
        --keep-going     give back a failed Run instead of raising RunFailed
        --view VIEW      panel, text or none (default: what the front end can show)
        --bg             return at once; run.wait(), run.stop(), %xla_stop, %xla_stacks
        -o NAME          bind the Run to NAME, too

        Gives a Run: run.results, run[2], run.ok, run.errors, run.output(2), run.elapsed,
        run.record. `%xla_config` shows and sets defaults.
        """
        asked = _read(_parser(), line)
        args = self._arguments(asked.args)
        launched = self.notebook.cell(line, cell)
        what = build(
            launched,
            self.notebook.scope(launching=True),
            entry=asked.entry,
            args=args,
            name=f"xla_nb_cell_{self.notebook.number}",
        )

        def begun(run: Run) -> None:
            self.notebook.begun(launched)
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
                runtime=self._setting(asked.runtime, "runtime"),
                on=self._setting(asked.on, "on"),
                hosts=self._setting(asked.hosts, "hosts"),
                slices=self._setting(asked.slices, "slices"),
                wait=self._setting(asked.wait, "wait"),
            ),
            self.notebook.resolve,
            keep_going=self._setting(asked.keep_going, "keep_going"),
            bg=asked.bg,
            view=self._setting(asked.view, "view"),
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

    @line_magic
    def xla_topology(self, line: str) -> None:
        """Draw slices, hosts, chips and ranks, and say which variables each process gets.

            %xla_topology [-n N]
            %xla_topology --on ray [--hosts H] [--slices S] [--wait TIME] [-n N]
            %xla_topology --dry-run [--hosts H] [--slices S] [--accelerator TYPE] [-n N]

        By itself it draws this machine, with --on the hosts that a cluster gives for the next
        launch. With --dry-run nothing is looked at and nothing started:

        --hosts H           hosts of all slices together (default: what TYPE has, or one a slice)
        --slices S          slices of so many hosts each (default 1)
        --accelerator TYPE  what a slice is, such as v5litepod-16; without it hosts are simulated
        -n N                ranks on each host
        """
        asked = _read(_topology_parser(), line)
        n = asked.n if asked.accelerator else self._setting(asked.n, "n")
        where = self._setting(asked.on, "on")
        if asked.dry_run:
            world = picture.on_paper(asked.hosts, asked.slices, n, asked.accelerator)
        elif where != "local" and not asked.accelerator:
            hosts, count = (
                self._setting(asked.hosts, "hosts"),
                self._setting(asked.slices, "slices"),
            )
            wait = self._setting(asked.wait, "wait")
            world = api.cluster_diagram(Options(n, on=where, hosts=hosts, slices=count, wait=wait))
        elif asked.hosts or asked.slices or asked.accelerator:
            raise UsageError(
                f"%xla_topology {line}: this machine is one host, and is drawn as it is. What to "
                "do: add --dry-run for a drawing of others on paper"
            )
        else:
            world = picture.here(os.environ, n)
        print(drawing.draw(world))

    @line_magic
    def xla_stop(self, line: str) -> None:
        """Stop a run in the background: `%xla_stop run`, or `%xla_stop` for all of them."""
        for run in self._runs(line):
            run.stop("you said %xla_stop")
            print(f"stopping {run.name}")

    @line_magic
    def xla_stacks(self, line: str) -> None:
        """Say where each rank of a run in the background is: its Python stack, innermost line
        first. `%xla_stacks run`, or `%xla_stacks` for all runs."""
        for run in self._runs(line):
            print(f"{run.name} ({run.label})\n\n{api.ask_stacks(run)}")

    @line_magic
    def xla_runs(self, line: str) -> None:
        """List the recorded runs, the newest first: `%xla_runs`, or `%xla_runs 5` of them.

        `xla_nb.open_run(NAME)` opens one.
        """
        found = recorded.entries()
        if line.strip():
            try:
                found = found[: _count_of("run")(line.strip())]
            except argparse.ArgumentTypeError:
                raise UsageError(f"%xla_runs {line}: write how many runs to list") from None
        print(opened.table(found))

    def _runs(self, line: str) -> list[Run]:
        """The runs that a line names: by a variable, by their own name; all that live."""
        words = line.split()
        living = api.living()
        if not words:
            if not living:
                print("no run is going on")
            return living
        return [self._run(word, living) for word in words]

    def _run(self, word: str, living: list[Run]) -> Run:
        found = self.shell.user_ns.get(word)
        named = [run for run in living if run.name == word or run is found]
        if named:
            return named[0]
        if isinstance(found, Run):
            raise UsageError(f"{word} ({found.name}) has ended: {found!r}")
        names = ", ".join(run.name for run in living) or "none"
        raise UsageError(f"{word} is no run that goes on; of those there are: {names}")

    def _setting(self, asked: Any, name: str) -> Any:
        return self.settings[name] if asked is None else asked

    def _arguments(self, expression: str) -> tuple[object, ...]:
        self.notebook.define_for(expression)
        try:
            value = eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except Exception as problem:
            raise UsageError(
                f"--args {expression!r} cannot be evaluated: {type(problem).__name__}: {problem}. "
                'What to do: put the whole expression in double quotes, --args "(1, x)"'
            ) from None
        if not isinstance(value, tuple):
            raise UsageError(
                f"--args {expression!r} is a {type(value).__name__}, not a tuple. What to do: "
                f'write --args "({expression},)"'
            )
        return value


def _setting_value(name: str, text: str) -> Any:
    if text == "None":
        return SETTINGS[name][1]
    try:
        return SETTINGS[name][0](text)
    except (ValueError, SyntaxError, argparse.ArgumentTypeError) as problem:
        raise UsageError(f"%xla_config {name}={text}: {problem}") from None
