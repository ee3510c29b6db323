"""`%%xla_spawn`, `%xla_config` and the magics for runs: what the words on a line mean.

Beside the panel the only module that imports IPython. What a word does is decided elsewhere.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from xla_nb import api, completion, dropin, live, live_magics, notebook, tooltips
from xla_nb.dropin import guard
from xla_nb.errors import ProgramError, UsageError, in_lines
from xla_nb.lines import Parser, expanded, parsed, parser, without_values
from xla_nb.live_magics import LiveMagics
from xla_nb.notebook import TopLevel, lines_above_magic, plain_line_ends
from xla_nb.program.build import RANK_NAMES, Cell, Program, Scope, build, build_entry
from xla_nb.program.cells import CALL, UNREADABLE, parse
from xla_nb.program.names import names_in
from xla_nb.program.split import functions
from xla_nb.protocol import hostile
from xla_nb.record import tidying
from xla_nb.run import options as run_options
from xla_nb.run import recorded
from xla_nb.run.options import DROPIN, LIMITS, OPTIONS, OWN, SETTINGS, Options, Word
from xla_nb.run.run import Run
from xla_nb.runtimes import xla
from xla_nb.topology import drawing, picture
from xla_nb.views.saved import opened
from xla_nb.wording import listed, meant, several, shortened, size

_F = TypeVar("_F", bound=Callable[..., Any])


def load(shell: InteractiveShell) -> None:
    """Register the magics; start to warm the fork server, and the panel where there is one."""
    shell.register_magics(XlaMagics(shell), LiveMagics(shell))
    transformer = _magics(shell).transformed
    if transformer not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(transformer)
    for event, callback in _callbacks(shell):
        if callback not in shell.events.callbacks[event]:
            shell.events.register(event, callback)
    dropin.install()
    completion.turn_on(
        shell, [*live_magics.parsers(), _spawn_parser(), _topology_parser()], live_magics.offered
    )
    tooltips.turn_on(shell, live_magics.explained)
    guard.of(shell).turn_on()
    api.engine().warm(xla.IMPORTS)
    if api.default_view() == "panel":  # its import would hold up the first launch
        import_panel = functools.partial(importlib.import_module, "xla_nb.views.panel.view")
        threading.Thread(target=import_panel, name="xla_nb-import", daemon=True).start()


def unload(shell: InteractiveShell) -> None:
    """End what `load` started."""
    for event, callback in _callbacks(shell):
        shell.events.unregister(event, callback)
    shell.input_transformers_cleanup.remove(_magics(shell).transformed)
    dropin.uninstall()
    guard.of(shell).turn_off()
    tooltips.turn_off(shell)
    live.end_all("by %unload_ext xla_nb")
    api.close("Stopped by %unload_ext xla_nb")


def _magics(shell: InteractiveShell) -> XlaMagics:
    found: XlaMagics = shell.magics_manager.registry["XlaMagics"]
    return found


def _callbacks(shell: InteractiveShell) -> Sequence[tuple[str, Callable[..., None]]]:
    magics = _magics(shell)
    return (("pre_run_cell", magics.before_cell), ("post_run_cell", magics.after_cell))


def _spawn_parser() -> Parser:
    made = parser("%%xla_spawn", OPTIONS)
    made.add_argument("entry", nargs="?")
    made.add_argument("--args", default="()")
    made.add_argument("-o", "--out", type=Word)
    return made


def _topology_parser() -> Parser:
    made = parser("%xla_topology", ("n", "on", "hosts", "slices", "wait", "simulate"))
    made.add_argument("--accelerator")
    made.add_argument("--dry-run", action="store_true")
    return made


def _with_options(function: _F) -> _F:
    """Fill in the help of a magic: the options of a launch, as they are declared."""
    rows = [
        ("--args EXPR", "a tuple of further arguments, evaluated in the notebook", ""),
        ("-o NAME", "also bind the Run to NAME, even if it fails", ""),
    ]
    rows[:0] = [(o.usage, o.meaning, o.otherwise or str(o.default)) for o in OPTIONS.values()]
    lines = []
    for usage, meaning, default in rows:
        entry = f"{meaning} (default: {default})" if default not in ("", "False") else meaning
        hanging = textwrap.wrap(entry, 68)
        lines += [f"{usage:<18}{hanging[0]}", *(" " * 18 + rest for rest in hanging[1:])]
    indent = "\n        "
    function.__doc__ = (function.__doc__ or "").replace("OPTIONS", indent.join(lines))
    return function


def _only_on_ranks(cell: Cell, name: str, line: int) -> str:
    return (
        f"{cell.label}, line {line}: `{name}` exists on ranks only, and the top level of a cell "
        "with a function runs in the notebook. Make it the function's parameter. Nothing was run."
    )


# ---------------------------------------------------------------- the magics


@magics_class
class XlaMagics(Magics):
    """The magics of xla_nb."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.notebook = notebook.of(shell)

    @no_var_expand
    @cell_magic
    @_with_options
    def xla_spawn(self, line: str, cell: str) -> Run | None:
        """Run the cell on every rank: of the TPU, or of a simulated TPU host.

            %%xla_spawn [FUNCTION] [options]

        The function named, else the last one that the cell defines, is called on each rank
        with the rank's index first, as xmp.spawn does:

            %%xla_spawn -n 4 --args "(0.1,)"
            import torch_xla

            def train(rank, lr, lock):
                with lock:
                    print(rank, torch_xla.device())
                return rank, lr

        An unfilled parameter named `lock` receives a lock shared by all ranks. A cell without
        a function runs as it is, with `rank`, `world_size`, `device` and `lock` defined; the
        value of its last expression is the rank's result. Anything the cell uses from earlier
        cells (functions, classes, imports, values) is sent automatically.

        OPTIONS

        Returns a Run: run.results, run[2], run.ok, run.errors, run.output(2), run.elapsed,
        run.record. `%xla_config` shows and sets defaults.
        """
        if self.calls_function(line, cell):  # a program calls the magic, not IPython
            return self._execute(line, cell)
        options, entry, _, launched, begun = self._launch(line, cell)
        tree = parse(launched)
        if entry or functions(tree):
            for ranks_only in self._ranks_only(tree).items():
                raise ProgramError(_only_on_ranks(launched, *ranks_only))
            return self._execute(line, cell)
        name = f"xla_nb_cell_{self.notebook.number}"
        program = self.notebook.program(lambda scope: build(launched, scope, name=name))

        def started(run: Run) -> None:
            self.notebook.begun(launched)
            begun(run)

        return api.run(program, options, self.notebook.resolve, started)

    @no_var_expand
    @cell_magic
    def xla_call(self, line: str, cell: str) -> Run | None:
        """Call the function of a launched cell on every rank: the last line of such a cell, which
        has run in the notebook."""
        top_level, self.notebook.top_level = self.notebook.top_level, None
        return self._call(line, cell, top_level)

    def _execute(self, line: str, body: str) -> Run | None:
        """Run a cell in the notebook that a program launches, and call its function."""
        cell = self.notebook.cell(without_values(line), body)
        filename = self.shell.compile.cache(cell.source, self.notebook.number)
        self.notebook.begun(replace(cell, filename=filename))
        before, self.notebook.top_level = self.notebook.top_level, self._top_level(line)
        guard.of(self.shell).before_cell()
        try:
            code = self.shell.compile(cell.source, filename, "exec")
            exec(code, self.shell.user_global_ns, self.shell.user_ns)
        finally:
            top_level, self.notebook.top_level = self.notebook.top_level, before
        return self._call(line, body, top_level, cell)

    def _call(
        self, line: str, body: str, top_level: TopLevel | None, cell: Cell | None = None
    ) -> Run | None:
        if top_level is not None and top_level.refused:
            raise top_level.refused
        if top_level is not None and top_level.launches:
            print("%%xla_spawn launched nothing more: the cell itself has launched.")
            return None
        options, entry, arguments, launched, begun = self._launch(line, body, cell)
        name = f"xla_nb_cell_{self.notebook.number}"

        def made(scope: Scope) -> Program:
            return build_entry(launched, scope, entry=entry, args=arguments, name=name)

        return api.run(self.notebook.program(made), options, self.notebook.resolve, begun)

    def _launch(
        self, line: str, body: str, cell: Cell | None = None
    ) -> tuple[Options, str | None, tuple[object, ...], Cell, Callable[[Run], None]]:
        """What a launched cell's line says: the options, the function's name, its arguments, the
        cell as it is shown, and what is to be done once it has been launched."""
        filled = expanded(self.notebook, line)
        words = parsed(_spawn_parser(), filled)
        entry, expression, out = words.pop("entry"), words.pop("args"), words.pop("out")
        out = None if out is None else run_options.variable("-o", out or "")
        options = run_options.options(self._completed(words), flags=True)
        arguments = self._arguments(expression or "")
        shown = without_values(filled if "--env" in filled else line)

        def begun(run: Run) -> None:
            if out:
                self.shell.user_ns[out] = run

        return options, entry, arguments, cell or self.notebook.cell(shown, body), begun

    def transformed(self, lines: list[str]) -> list[str]:
        """Make an ordinary cell of a launched one with a function, which is called at its end.
        IPython transforms a cell several times."""
        magic, _, line = (lines or [""])[0].rstrip("\n").partition(" ")
        body = "".join(lines[1:])
        if magic != "%%xla_spawn" or not body or not self.calls_function(line, body):
            return lines
        own = [f"{one}\n" for one in plain_line_ends(body).split("\n")]
        away = "\n" * 8  # from the lines that a traceback shows
        return [f"#{magic} {without_values(line)}\n", *own, f"{away}{CALL}{line!r}, {body!r})\n"]

    def calls_function(self, line: str, body: str) -> bool:
        """Whether a launched cell runs in the notebook before a function is called on the ranks:
        it defines or names one, and nothing about it is to be refused."""
        try:
            words = parsed(_spawn_parser(), re.sub(r"{[^{}]*}", "…", line))
            if not re.search(r"[{$]", line):  # else they are known once these are filled in
                given = {name: words[name] for name in OPTIONS}
                run_options.options(self._completed(given), flags=True)
            f"{line}{body}".encode()  # as Python does
            source = self.shell.transform_cell(plain_line_ends(body))  # type: ignore[no-untyped-call]
            tree = ast.parse(source)
        except (UsageError, *UNREADABLE):
            return False
        return bool(words["entry"] or functions(tree)) and not self._ranks_only(tree)

    def _ranks_only(self, tree: ast.Module) -> Mapping[str, int]:
        """The names that only ranks have and that a top level reads, each with its line."""
        names = names_in(tree.body)
        own = {*names.binds, *self.shell.user_ns}
        return {n: line for n, line in names.now.items() if n in RANK_NAMES and n not in own}

    def before_cell(self, info: Any = None) -> None:
        """Note that a launched cell is about to run in the notebook."""
        raw = getattr(info, "raw_cell", None) or ""
        above = lines_above_magic(raw)
        if above is not None:
            first, *rest = raw.split("\n")[above:]
            line = first.partition(" ")[2]
            if self.calls_function(line, "\n".join(rest)):
                top_level = self.notebook.top_level = self._top_level(line)
                if "torch_xla" not in sys.modules:
                    goes_on = (lambda: self.notebook.top_level is top_level,)
                    threading.Thread(target=api.tell_import, args=goes_on, daemon=True).start()

    def _top_level(self, line: str) -> TopLevel:
        with contextlib.suppress(UsageError):  # which is told when the function is called
            words = parsed(_spawn_parser(), expanded(self.notebook, line))
            return TopLevel({n: v for n, v in words.items() if n in OPTIONS and v is not None})
        return TopLevel({})

    def after_cell(self, _result: object = None) -> None:
        self.notebook.top_level = None

    @line_magic
    def xla_config(self, line: str) -> None:
        """Show the defaults of launches, or set them: `%xla_config n=8 grace=10`.

        `%xla_config n=None` restores one, `%xla_config reset` all of them. `dropin=off` lets
        xmp.spawn, torch_xla.launch and notebook_launcher do what they did before, and takes old
        names of torch_xla away from the notebook. keep_runs and keep_bytes are limits for the files
        of ended runs, for all notebooks and until they are set again: `%xla_config keep_runs=50
        keep_bytes=10G`. `reset` leaves them.
        """
        changes: dict[str, Any] = {}
        known = [*SETTINGS, *OWN, *LIMITS]
        for word in line.split():
            name, equals, value = word.partition("=")
            if word != "reset" and name not in known:
                hint = f"{meant(name, known)} Choose {listed(known, 'or')}."
                raise UsageError(f"Unknown setting {name!r}.{hint}")
            if word != "reset" and not equals:
                raise UsageError(f"Setting {name!r} needs a value. Write {name}=VALUE.")
            changes[name] = None if value == "None" else Word(value)
        checked = {
            name: run_options.check(name, value)
            for name, value in changes.items()
            if name != "reset"
        }
        if "reset" in changes:
            self.notebook.settings.clear()
            checked = {**{name: option.default for name, option in OWN.items()}, **checked}
        if DROPIN in checked:
            (dropin.install if checked[DROPIN] else dropin.uninstall)()
        self.notebook.own.update({name: checked.pop(name) for name in OWN if name in checked})
        self._set_limits({name: checked.pop(name) for name in LIMITS if name in checked})
        self.notebook.settings.update(checked)
        set_here = {**self.notebook.settings, **self.notebook.own}
        for name, option in {**SETTINGS, **OWN}.items():
            value = set_here.get(name, option.default)
            otherwise = f" (default: {option.otherwise})" if value is None else ""
            print(*in_lines(f"{name:<11} {value!s:<6} {option.meaning}{otherwise}", 19), sep="\n")
        kept = tidying.limits()
        for name, shown in zip(LIMITS, (kept.runs, size(kept.nbytes)), strict=True):
            print(*in_lines(f"{name:<11} {shown!s:<6} {LIMITS[name].meaning}", 19), sep="\n")

    def _set_limits(self, limits: dict[str, int | None]) -> None:
        try:
            tidying.set_limits(**{LIMITS[name].name: value for name, value in limits.items()})
        except OSError as problem:
            raise UsageError(f"Cannot write the limits of the runs' folder: {problem}.") from None

    @line_magic
    def xla_topology(self, line: str) -> None:
        """Draw slices, hosts, chips and ranks, and the variables each process gets.

            %xla_topology [-n N] [--simulate TYPE]
            %xla_topology --on ray [--hosts H] [--slices S] [--wait TIME] [-n N]
            %xla_topology --dry-run [--hosts H] [--slices S] [--accelerator TYPE] [-n N]

        Without options it draws this machine; with --on, the hosts that a cluster gives for the
        next launch. --dry-run looks at nothing and starts nothing:

        --hosts H           hosts of all slices together (default: what TYPE has, or one a slice)
        --slices S          number of slices, all of the same size (default: 1)
        --accelerator TYPE  type of a slice, such as v5litepod-16 (default: simulated hosts)
        -n N                ranks on each host
        """
        words = parsed(_topology_parser(), line)
        accelerator, dry_run = words.pop("accelerator"), words.pop("dry_run")
        given = run_options.options(words, flags=True)
        options = run_options.options(self._completed(words), flags=True)
        ranks = given.n if accelerator else options.n
        if dry_run:
            diagram = picture.on_paper(given.hosts, given.slices, ranks, accelerator)
        elif options.on != "local" and not accelerator:
            diagram = api.cluster_diagram(options)
        elif given.hosts or given.slices or accelerator:
            raise UsageError(
                f"%xla_topology {line}: this machine is one host. Add --dry-run to draw others."
            )
        else:
            diagram = picture.here(run_options.environment(options, os.environ), ranks)
        print(drawing.draw(diagram))

    @line_magic
    def xla_stop(self, line: str) -> None:
        """Stop a background run: `%xla_stop run`, or `%xla_stop` for all of them."""
        for run in self._named_runs(line):
            run.stop("Stopped by %xla_stop")
            print(f"Stopping {run.name}.")

    @line_magic
    def xla_stacks(self, line: str) -> None:
        """Show where each rank of a background run is: its Python stack, innermost line first.

        `%xla_stacks run`, or `%xla_stacks` for all runs.
        """
        for run in self._named_runs(line):
            print(f"{run.name} ({run.label})\n\n{api.ask_stacks(run)}")

    @line_magic
    def xla_runs(self, line: str) -> None:
        """List recorded runs, newest first: `%xla_runs`, or `%xla_runs 5` for five of them.

        `xla_nb.open_run(NAME)` opens one. `%xla_runs --clean` removes the files of all runs, except
        those in progress and those that variables or Out of open notebooks refer to.
        """
        entries = recorded.entries()
        if line.split() == ["--clean"]:
            done = api.clean()
            print(f"Removed {several(len(done.removed), 'run')} ({size(done.freed)}).")
            if done.needed:
                names = listed(done.needed, most=5)
                kept = f"Kept because variables or Out of open notebooks refer to them: {names}."
                print(*in_lines(kept), sep="\n")
            return
        if line.strip():
            entries = entries[: run_options.count("%xla_runs N", Word(line.strip()))]
        print(opened.table(entries))

    def _named_runs(self, line: str) -> list[Run]:
        """The runs that a line names, by a variable or by their own name; none named: all."""
        living = api.living()
        names = list(dict.fromkeys(line.split()))
        if not names and not living:
            print("No runs are in progress.")
        return [self._named_run(name, living) for name in names] if names else living

    def _named_run(self, name: str, living: list[Run]) -> Run:
        value = self.shell.user_ns.get(name)
        matches = [run for run in living if run.name == name or run is value]
        if matches:
            return matches[0]
        if isinstance(value, Run):
            raise UsageError(f"{name} ({value.name}) has ended: {value!r}")
        running = listed(run.name for run in living)
        rest = f"In progress: {running}." if living else "Nothing is running."
        raise UsageError(f"No run named {name!r} is in progress. {rest}")

    def _completed(self, words: dict[str, Any]) -> dict[str, Any]:
        """The words of a line, and the settings for those it does not have."""
        return run_options.completed(words, self.notebook.settings)

    def _arguments(self, expression: str) -> tuple[object, ...]:
        shown = shortened(expression, 200)
        try:
            value = eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except (Exception, SystemExit) as problem:
            fix = 'Put the whole expression in double quotes: --args "(1, x)".'
            advice = fix if isinstance(problem, SyntaxError) else "Correct the expression."
            told = shortened(hostile.message_of(problem), 300)
            raise UsageError(
                f"Cannot evaluate --args {shown!r}: {hostile.name_of(type(problem))}: {told}. "
                f"{advice}"
            ) from None
        if not isinstance(value, tuple):
            text = expression.strip()  # without parentheses around it, as in `(0.1)`
            inner = ast.get_source_segment(text, ast.parse(text, mode="eval").body)
            quote = "'" if '"' in text else '"'
            raise UsageError(
                f"--args must be a tuple, but {shown!r} has type {hostile.name_of(type(value))}. "
                f"Write --args {quote}({shortened(str(inner), 200)},){quote}."
            )
        return value
