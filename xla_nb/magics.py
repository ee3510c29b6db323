"""The magics: parse their lines and call the modules that do the work.

Apart from the panel, the only module that imports IPython.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from xla_nb import api, dropin, live, live_questions, notebook, untrusted
from xla_nb.dropin import answers, guard
from xla_nb.errors import ProgramError, UsageError, XlaNbError, in_lines
from xla_nb.monitor import stacks
from xla_nb.monitor.drift import Watch
from xla_nb.notebook import Notebook, TopLevel, lines_above_magic, plain_line_ends
from xla_nb.program.build import build, build_entry
from xla_nb.program.cell_text import CALL, UNREADABLE, parse
from xla_nb.program.names import names_in
from xla_nb.program.rank_cell import RANK_NAMES, functions
from xla_nb.run import options as run_options
from xla_nb.run import recorded
from xla_nb.run.group import DEFAULT, Group
from xla_nb.run.options import DEFAULTS, DROPIN, OPTIONS, SETTINGS, Options
from xla_nb.run.run import Run
from xla_nb.runtimes import xla
from xla_nb.views import picture
from xla_nb.views.variables import Variables
from xla_nb.wording import listed, meant, ranks, several, shortened

_QUESTION = re.compile(r"\s*(\S+?)\s*(\?\??)\s*")
#: A word of a line, as a shell reads it.
_WORD = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'\\])+"""
_ARGS, _ENV = re.compile(rf"--args(?:\s+|=){_WORD}"), re.compile(rf"(--env(?:\s+|=))({_WORD})")
_NO_FRAME = 10**6  # frames up: beyond all of them, so that only the notebook's names are found


def load(shell: InteractiveShell) -> None:
    """Register the magics, and start warming the fork server and, if it is used, the panel. Does
    nothing the second time (`%reload_ext`)."""
    if "XlaMagics" in shell.magics_manager.registry:
        return
    shell.register_magics(XlaMagics(shell))
    shell.input_transformers_cleanup.append(_magics(shell).transformed)
    for event, callback in _callbacks(shell):
        shell.events.register(event, callback)
    dropin.install()
    live_questions.turn_on(shell, _group_of)
    guard.of(shell).turn_on()
    api.engine().warm(xla.IMPORTS)
    if api.default_view() == "panel":  # importing it would delay the first launch
        import_panel = functools.partial(importlib.import_module, "xla_nb.views.panel.view")
        threading.Thread(target=import_panel, name="xla_nb-import", daemon=True).start()


def _magics(shell: InteractiveShell) -> XlaMagics:
    magics: XlaMagics = shell.magics_manager.registry["XlaMagics"]
    return magics


def _callbacks(shell: InteractiveShell) -> Sequence[tuple[str, Callable[..., None]]]:
    magics, device_guard = _magics(shell), guard.of(shell)
    return (
        ("pre_run_cell", magics.before_cell),
        ("pre_run_cell", answers.before_cell),
        ("pre_run_cell", device_guard.before_cell),
        ("post_run_cell", magics.after_cell),
        ("post_run_cell", device_guard.after_cell),
    )


# ---------------------------------------------------------------- the words on a line


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. `{self.prog}?` lists the options.")


_OPTIONAL, _SWITCH, _GROUP = {"nargs": "?"}, {"action": "store_true"}, {"default": DEFAULT}
_NAME = {"name": {**_OPTIONAL, **_GROUP}}
_OUT = {"-o": {"dest": "out"}}
#: The launch options of each magic, and its other arguments in argparse's form. The switches among
#: the latter are mutually exclusive.
_LINES: dict[str, tuple[Iterable[str], dict[str, dict[str, Any]]]] = {
    "%xla_start": (live.OF_GROUP, {"--idle": {}, "--name": _GROUP}),
    "%%xla": (live.OF_CELL, {"ranks": _OPTIONAL, **_OUT, "--group": _GROUP}),
    "%xla_restart": ((), {**_NAME, "--replay": _SWITCH}),
    "%xla_shutdown": ((), _NAME),
    "%xla_ranks": ((), _NAME),
    "%xla_vars": (
        (),
        {
            "names": {"nargs": "*"},
            "--group": _GROUP,
            **dict.fromkeys(("--compute", "--watch", "--unwatch"), _SWITCH),
        },
    ),
    "%%xla_spawn": (OPTIONS, {"entry": _OPTIONAL, "--args": {"default": "()"}, **_OUT}),
}


@functools.cache  # built once: cells should not wait for it
def _parser(prog: str) -> Parser:
    """The parser of a magic. Values of options are checked later, with the settings."""
    names, arguments = _LINES[prog]
    parser = Parser(prog=prog, add_help=False, allow_abbrev=False)
    for option in map(OPTIONS.__getitem__, names):
        if not option.metavar:
            parser.add_argument(option.flag, dest=option.name, action="store_true", default=None)
        else:
            action = "append" if option.name == "env" else "store"
            parser.add_argument(option.flag, dest=option.name, action=action)
    exclusive = parser.add_mutually_exclusive_group()
    for name, keywords in arguments.items():
        (exclusive if keywords is _SWITCH else parser).add_argument(name, **keywords)
    return parser


def _parse_line(prog: str, line: str) -> dict[str, Any]:
    parser = _parser(prog)
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise UsageError(f"{parser.prog}: missing closing quote.") from None
    values, unknown = parser.parse_known_args(words)
    unknown += [word for word in [vars(values).get("entry") or ""] if "=" in word]
    if unknown:
        word = _mask_value(next((word for word in unknown if word[:1] == "-"), unknown[0]))
        kind = "option" if word[:1] == "-" else "argument"
        known = parser._option_string_actions
        hint = _hint_other_magic(word, words) or meant(word.removesuffix("=…"), known)
        hint = hint or f" `{parser.prog}?` lists the options."
        raise UsageError(f"{parser.prog}: Unknown {kind} {shortened(word, 60)}.{hint}")
    return vars(values)


def _hint_other_magic(word: str, words: Sequence[str]) -> str:
    """A hint naming the magic that has this option, after a space; empty if none has."""
    flag = word.removesuffix("=…") if word[:2] == "--" else word[:2]
    for prog in _LINES:
        if (option := _parser(prog)._option_string_actions.get(flag)) is not None:
            after = words[words.index(word) + 1 :] if word in words else []
            value = f" {after[0]}" if after and option.nargs is None and "=" not in after[0] else ""
            return f" It is an option of {prog}: `{prog} {flag}{shortened(value, 60)}`."
    return ""


def _mask_value(word: str) -> str:
    """`NAME=…` for NAME=VALUE, which may be a secret."""
    name, equals, _ = word.partition("=")
    return f"{name}=…" if equals else word


def _mask_env(line: str) -> str:
    """A line of %%xla_spawn without the values of --env: it becomes a comment in the cell's
    source, which is written to disk."""
    return _ENV.sub(lambda match: match[1] + _mask_value(match[2].strip("\"'")), line)


def _expand_line(notebook: Notebook, line: str) -> str:
    """A line with `{N}` and `$N` expanded as by IPython, except in --args, an expression that may
    contain braces itself."""
    match = _ARGS.search(line)
    head, args, tail = line.partition(match[0]) if match else (line, "", "")
    expand: Any = functools.partial(notebook.shell.var_expand, depth=_NO_FRAME)
    return f"{expand(head)}{args}{expand(tail)}"


def _group_of(line: str) -> Group | None:
    """The live ranks that a %%xla line names; None if it is unfinished or there are none."""
    try:
        return live.of(_parse_line("%%xla", line.partition("%%xla")[2])["group"])
    except XlaNbError:
        return None


def _watch(group: Group, names: list[str], *, ends: bool) -> list[str]:
    """Watch these names too, or with `ends` no longer (none: unwatch all). Returns the new ones."""
    before = group.watch.names
    new = [name for name in names if name not in before]
    if ends and new:
        raise UsageError(f"%xla_vars --unwatch: not watched: {listed(new)}.")
    after = [name for name in before if names and name not in names] if ends else before + new
    group.watch = Watch(after, group.watch)
    message = f"Compared after each cell: {listed(f'`{name}`' for name in after)}."
    print(*in_lines(message), sep="\n")
    return new


# ---------------------------------------------------------------- magics for runs


@magics_class
class XlaMagics(Magics):
    """The magics of one notebook."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = notebook.of(shell)

    def _options(self, words: dict[str, Any]) -> Options:
        """The options of a line and of the settings, checked."""
        return run_options.options(words, self.notebook.settings, flags=True)

    @no_var_expand
    @cell_magic
    @run_options.explained(flags=True)
    def xla_spawn(self, line: str, body: str) -> Run | None:
        """Run the cell on every rank of a TPU, or of a simulated TPU host.

            %%xla_spawn [FUNCTION] [options]

        Each rank calls FUNCTION, by default the last function that the cell defines, with its
        index as the first argument, as xmp.spawn does:

            %%xla_spawn -n 4 --args "(0.1,)"
            import torch_xla

            def train(rank, lr, lock):
                with lock:
                    print(rank, torch_xla.device())
                return rank, lr

        An unfilled parameter named `lock` receives a lock shared by all ranks. A cell without
        a function runs on the ranks as it is, with `rank`, `world_size`, `device` and `lock`
        defined; its last expression is the rank's result. Anything the cell uses from earlier
        cells (functions, classes, imports, values) is sent automatically.

        OPTIONS
        --args EXPR       a tuple of further arguments, evaluated in the notebook
        -o NAME           also bind the Run to NAME, even if it fails

        Returns a Run: run.results, run[2], run.ok, run.errors, run.output(2), run.elapsed,
        run.record. `%xla_config` shows and sets defaults.
        """
        words, options, bind_run = self._read_line(line)
        cell = self.notebook.cell(_mask_env(line), body)
        tree = parse(cell)
        if words["entry"] or functions(tree):
            for name, number in self._find_rank_names(tree).items():
                raise ProgramError(
                    f"{cell.label}, line {number}: `{name}` exists only on ranks, but the top "
                    "level of a cell with a function runs in the notebook. Make it a parameter of "
                    "the function. Nothing was run."
                )
            raise UsageError(
                "Code cannot run %%xla_spawn over a cell with a function. Begin a cell with the "
                "magic, or call xla_nb.spawn(function)."
            )
        if self._evaluate_args(words["args"]):
            raise UsageError(
                f"{cell.label} has no function that takes --args. Define one, or use the "
                "notebook's variables in the cell."
            )
        name = f"xla_nb_cell_{self.notebook.number}"
        program = build(cell, self.notebook.scope(), name=name)

        def on_launch(run: Run) -> None:
            self.notebook.begun(cell)
            bind_run(run)

        return api.run(program, options, on_launch)

    @no_var_expand
    @cell_magic
    def xla_call(self, line: str, body: str) -> Run | None:
        """Call a launched cell's function on every rank. This is the last line of such a cell,
        after its top level has run in the notebook."""
        top_level, self.notebook.top_level = self.notebook.top_level, None
        if top_level is not None and top_level.refused:
            raise top_level.refused
        if top_level is not None and top_level.launches:
            print("%%xla_spawn launched nothing: the cell has already launched a run.")
            return None
        words, options, bind_run = self._read_line(line)
        arguments = self._evaluate_args(words["args"])
        cell = self.notebook.cell(_mask_env(line), body)
        name, scope = f"xla_nb_cell_{self.notebook.number}", self.notebook.scope()
        program = build_entry(cell, scope, entry=words["entry"], args=arguments, name=name)
        return api.run(program, options, bind_run)

    def _read_line(
        self, line: str, magic: str = "%%xla_spawn"
    ) -> tuple[dict[str, Any], Options, Callable[[Run], None]]:
        """Parse a cell's line: return its words, the options, and a function that binds the Run to
        the variable of `-o`."""
        words = _parse_line(magic, _expand_line(self.notebook, line))
        name = None if words["out"] is None else run_options.variable("-o", words["out"])

        def bind_run(run: Run) -> None:
            if name:
                self.shell.user_ns[name] = run

        return words, self._options(words), bind_run

    def transformed(self, lines: list[str]) -> list[str]:
        """Turn a launched cell with a function into an ordinary cell that calls the function at its
        end. IPython transforms a cell several times."""
        magic, _, line = (lines or [""])[0].rstrip("\n").partition(" ")
        body = "".join(lines[1:])
        if magic != "%%xla_spawn" or not body or not self.calls_function(line, body):
            return lines
        code_lines = [f"{text}\n" for text in plain_line_ends(body).split("\n")]
        gap = "\n" * 8  # keeps the call out of the lines that a traceback shows
        return [f"#{magic} {_mask_env(line)}\n", *code_lines, f"{gap}{CALL}{line!r}, {body!r})\n"]

    def calls_function(self, line: str, body: str) -> bool:
        """True if a launched cell runs in the notebook and then calls a function on the ranks: it
        defines or names one, and nothing in it is refused."""
        try:
            words = _parse_line("%%xla_spawn", re.sub(r"{[^{}]*}", "…", line))
            if not re.search(r"[{$]", line):  # otherwise options are known only once expanded
                self._options(words)
            f"{line}{body}".encode()  # raises for lone surrogates, as Python does
            source = self.shell.transform_cell(plain_line_ends(body))  # type: ignore[no-untyped-call]
            tree = ast.parse(f"#{line}\n{source}")
            return bool(words["entry"] or functions(tree)) and not self._find_rank_names(tree)
        except (UsageError, *UNREADABLE):
            return False

    def _find_rank_names(self, tree: ast.Module) -> Mapping[str, int]:
        """Names that exist only on ranks and that the top level reads, each with its line."""
        names = names_in(tree.body)
        defined = {*names.binds, *self.shell.user_ns}
        return {n: line for n, line in names.now.items() if n in RANK_NAMES and n not in defined}

    def before_cell(self, info: Any = None) -> None:
        """Note that a launched cell is about to run in the notebook."""
        raw = getattr(info, "raw_cell", None) or ""
        above = lines_above_magic(raw)
        if above is not None:
            first, *body = raw.split("\n")[above:]
            line = first.partition(" ")[2]
            if self.calls_function(line, "\n".join(body)):
                top_level = self.notebook.top_level = self._make_top_level(line)
                if "torch_xla" not in sys.modules:
                    args = (lambda: self.notebook.top_level is top_level,)
                    threading.Thread(target=api.show_import, args=args, daemon=True).start()

    def _make_top_level(self, line: str) -> TopLevel:
        with contextlib.suppress(UsageError):  # raised again when the function is called
            words, _, bind_run = self._read_line(line)
            options = {name: words[name] for name in OPTIONS if words[name] is not None}
            return TopLevel(options, bind_run)
        return TopLevel({})

    def after_cell(self, _result: object = None) -> None:
        self.notebook.top_level = None
        self.notebook.follow_reloads()

    @line_magic
    def xla_config(self, line: str) -> None:
        """Show the defaults of launches, or set them: `%xla_config n=8 grace=10`.

        `%xla_config n=None` restores one default, `%xla_config reset` all. `dropin=off` restores
        the original xmp.spawn, torch_xla.launch and notebook_launcher.
        """
        settings = self.notebook.settings
        changes: dict[str, Any] = {}
        for word in line.split():
            name, equals, value = word.partition("=")
            if word == "reset":
                changes.update(DEFAULTS)
            elif name not in SETTINGS:
                hint = f"{meant(name, SETTINGS)} Choose {listed(SETTINGS, 'or')}."
                raise UsageError(f"Unknown setting {name!r}.{hint}")
            elif not equals:
                raise UsageError(f"Setting {name!r} needs a value. Write {name}=VALUE.")
            else:
                option = SETTINGS[name]
                changes[name] = option.default if value == "None" else option.check(name, value)
        settings.update(changes)
        if DROPIN in changes:
            (dropin.install if settings[DROPIN] else dropin.uninstall)()
        for name, option in SETTINGS.items():
            default = f" (default: {option.without})" if settings[name] is None else ""
            text = f"{name:<11} {settings[name]!s:<6} {option.meaning}{default}"
            print(*in_lines(text, 19), sep="\n")

    @line_magic
    def xla_stop(self, line: str) -> None:
        """Stop a background run: `%xla_stop run`, or `%xla_stop` for all of them."""
        for run in self._find_runs(line):
            run.stop("Stopped by %xla_stop")
            print(f"Stopping {run.name}.")

    @line_magic
    def xla_stacks(self, line: str) -> None:
        """Show where each rank of a background run is: its Python stack, innermost line first.

        `%xla_stacks run`, or `%xla_stacks` for all runs.
        """
        for run in self._find_runs(line):
            answer = stacks.text(stacks.Inquiry(run).wait())
            print(f"{run.name} ({run.label})\n\n{answer}")

    @line_magic
    def xla_runs(self, line: str) -> None:
        """List recorded runs, newest first: `%xla_runs`, or `%xla_runs 5` for the newest five.

        `xla_nb.open_run(NAME)` opens one.
        """
        entries = recorded.entries()
        if line.strip():
            entries = entries[: run_options.count("%xla_runs N", line.strip())]
        listing = picture.runs(entries)
        picture.show(listing) if picture.kernel() else print(listing["text/plain"])

    def _find_runs(self, line: str) -> list[Run]:
        """The runs that a line names, by variable or by run name; if it names none, all runs except
        those of live ranks themselves."""
        running = api.living()
        if names := list(dict.fromkeys(line.split())):
            return [self._find_run(name, running) for name in names]
        runs = [run for run in running if run.state.group is None]
        if not runs:
            print("No runs are in progress.")
        return runs

    def _find_run(self, name: str, running: list[Run]) -> Run:
        value = self.shell.user_ns.get(name)
        matches = [run for run in running if run.name == name or run is value]
        if matches:
            return matches[0]
        if isinstance(value, Run):
            raise UsageError(f"{name} ({value.name}) has ended: {value!r}")
        names = listed(run.name for run in running)
        status = f"In progress: {names}." if running else "Nothing is running."
        raise UsageError(f"No run named {name!r} is in progress. {status}")

    def _evaluate_args(self, expression: str) -> tuple[object, ...]:
        expr = shortened(expression, 200)
        try:
            value = eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except (Exception, SystemExit) as problem:
            fix = 'It must be one Python expression, in double quotes: --args "(1, x)".'
            advice = fix if isinstance(problem, SyntaxError) else "Correct the expression."
            message = shortened(untrusted.message_of(problem), 300)
            raise UsageError(
                f"Cannot evaluate --args {expr!r}: {untrusted.name_of(type(problem))}: {message}. "
                f"{advice}"
            ) from None
        if not isinstance(value, tuple):
            text = expression.strip()  # without parentheses around it, as in `(0.1)`
            inner = ast.get_source_segment(text, ast.parse(text, mode="eval").body)
            quote = "'" if '"' in text else '"'
            raise UsageError(
                f"--args must be a tuple, but {expr!r} has type {untrusted.name_of(type(value))}. "
                f"Write --args {quote}({shortened(str(inner), 200)},){quote}."
            )
        return value

    # ------------------------------------------------------------ live ranks

    @no_var_expand
    @cell_magic
    def xla(self, line: str, body: str) -> Run | None:
        """Run the cell on live ranks, which keep its variables for later cells.

            %%xla [RANKS] [-o NAME] [--group NAME] [--timeout TIME] [--grace TIME] [--keep-going]
                  [--hang-after TIME] [--hang-stop]
                  [--stop-on-nan] [--view VIEW] [--bg]

        The first cell starts the ranks with the defaults of %xla_config, unless %xla_start already
        has. `rank`, `world_size`, `device` and `lock` are defined. Variables that %%xla cells set
        belong to the ranks; any other name that the cell reads has its current value in the
        notebook. The value of the last expression is each rank's result.

        RANKS         ranks that run it: 0, 0,2 or 1-3 (default: all)
        -o NAME       also bind the Run to NAME, even if it fails
        --group NAME  which live ranks, if there are several (%xla_start --name)

        The other options are those of %%xla_spawn. Returns a Run.
        """
        words, options, bind_run = self._read_line(line, "%%xla")
        rank_list, name = words["ranks"], words["group"]
        if question := _QUESTION.fullmatch(body):
            self._explain(live.of(name), question[1], question[2])
            return None
        members = None if rank_list is None else run_options.numbers("RANKS", rank_list)
        cell = self.notebook.cell(line, body, "%%xla")
        exists = live.is_there(name) or name != DEFAULT
        group = live.of(name) if exists else None

        def start() -> Group:
            group = live.start(self._options({}))
            self._report("Started", group)
            return group

        return live.run_cell(group or start, cell, options, members, bind_run)

    @line_magic
    def xla_start(self, line: str) -> None:
        """Start live ranks for %%xla: `%xla_start -n 8`, `%xla_start --runtime spmd --name big`.

        Takes the options of %%xla_spawn that describe the ranks: -n, --runtime, --on, --hosts,
        --slices, --wait, --simulate, --env, --grace. --name NAME tells several groups of live ranks
        apart. --idle 30m ends the ranks, and releases chips and hosts, after 30 minutes without a
        cell.
        """
        words = _parse_line("%xla_start", line)
        name, idle = words.pop("name"), words.pop("idle")
        seconds = None if idle is None else run_options.duration("--idle", idle)
        self._report("Started", live.start(self._options(words), name, seconds, shown=True))

    @line_magic
    def xla_restart(self, line: str) -> None:
        """End live ranks and start as many new, empty ones: `%xla_restart [NAME]`.

        --replay reruns the cells that had succeeded, in order, with their original text and the
        notebook's current values; it stops at the first that fails.
        """
        words = _parse_line("%xla_restart", line)
        self._report("Restarted", live.restart(words["name"], replay=words["replay"]))

    @line_magic
    def xla_shutdown(self, line: str) -> None:
        """End live ranks; their variables are lost: `%xla_shutdown [NAME]`."""
        name = _parse_line("%xla_shutdown", line)["name"]
        self._report("Ended", live.end(name))

    @line_magic
    def xla_ranks(self, line: str) -> None:
        """Show live ranks below this cell: `%xla_ranks [NAME]`.

        Shows a row per rank across all cells, the cells that have run, and the variables. Live
        ranks are shown in one cell at a time.
        """
        live.show(live.of(_parse_line("%xla_ranks", line)["name"]))

    @line_magic
    def xla_vars(self, line: str) -> Variables | None:
        """Show the variables of live ranks, and whether the ranks agree on them.

            %xla_vars [NAME…] [--group NAME] [--compute]
            %xla_vars --watch NAME…
            %xla_vars --unwatch [NAME…]

        Without names it shows all. Tensors whose computation is recorded but has not run yet are
        shown as pending; --compute runs it first. --watch compares the named variables after each
        cell, in addition to those already watched, and reports the cell in which ranks drifted
        apart; --unwatch stops watching these, or all.
        """
        words = _parse_line("%xla_vars", line)
        group = live.of(words["group"])
        names = [run_options.variable("%xla_vars", name) for name in words["names"]]
        if words["watch"] or words["unwatch"]:
            names = _watch(group, names, ends=words["unwatch"])
            if not names:
                return None
        variables = live_questions.variables(group, names, compute=words["compute"])
        if missing := [f"`{name}`" for name in names if name not in variables]:
            print(f"No rank has {listed(missing, 'or')}.")
        if not words["watch"]:
            return variables
        for drift in group.watch.after("", list(variables.values())):
            print(*in_lines(drift.sentence), sep="\n")
        partial = [f"`{one.name}`" for one in variables.values() if one.verdict == "not compared"]
        if partial:
            print(f"Not compared, or only in part: {listed(partial)}. %xla_vars shows why.")
        return None

    def _explain(self, group: Group, expression: str, marks: str) -> None:
        """Answer `name?` as IPython does, for the object on rank 0, or on the first live rank."""
        first = next(iter(group.alive), 0)
        if first not in group.alive:
            group.check(group.world)
        text = live_questions.about(group, expression, source=marks == "??")
        if text == "" and expression.partition(".")[0] in self.shell.user_ns:
            print(f"Not on rank {first} yet. In the notebook:")
            self.shell.run_line_magic("pinfo2" if marks == "??" else "pinfo", expression)
            return
        missing = f"Object `{expression}` not found on rank {first}."
        print(f"Rank {first} is busy." if text is None else text or missing)

    @staticmethod
    def _report(verb: str, group: Group) -> None:
        devices = sum(len(rank.devices) for rank in group.run.state.ranks.values())
        detail = f", a process with {several(devices, 'device')}" if devices else ""
        print(f"{verb} {ranks(list(group.world))}{detail}.")
