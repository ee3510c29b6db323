"""What a live notebook holds for a launch: its names, its cells, and what launched cells bind.

A launched cell is not executed in the notebook, so that a launch never waits for an import. When a
later cell, or a result, uses one of its names, its definitions are executed from source, and what
it computed is taken from its run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Any

from xla_nb.autoreloaded import Autoreloaded
from xla_nb.errors import ProgramError, XlaNbError
from xla_nb.executed import Executed, lines_above_magic, plain_line_ends
from xla_nb.program.bindings import bindings
from xla_nb.program.build import Cell, OnlyTheRunHas, Program, Scope
from xla_nb.program.called import deleted
from xla_nb.program.cells import UNREADABLE, future_flags, futures, parsed, unreadable
from xla_nb.program.deferred import ABSENT, Deferred, Launched, Taken
from xla_nb.program.names import names_in
from xla_nb.protocol import modules
from xla_nb.rank.loader import remember
from xla_nb.run.kept import Interrupted, Kept
from xla_nb.run.run import Run
from xla_nb.wording import listed, shortened

_WORD = re.compile(r"[^\W\d]\w*")
_DISPLAYED = re.compile(r"_{1,3}|_\d+")
_FILLED = re.compile(r"\{[^{}]*\}|\$\w+")
_SLOW = 1.0  # seconds after which somebody who waits is told why
_MARK = "_xla_nb_mark"  # gone from the namespace after a `%reset`


@functools.cache
def lost() -> dict[str, dict[str, tuple[str, str]]]:
    """The names of live ranks of this process that have ended, as `missing.lost` has them, by the
    ranks' name."""
    return {}


def told_of_lost() -> dict[str, str]:
    """What a launch is told of them, which has the notebook's names alone."""
    fix = "define it in the notebook"
    return {name: f"{told}; {fix}" for each in lost().values() for name, (told, _) in each.items()}


class Notebook:
    """One IPython shell, given and never imported. `launched` are the cells run on ranks, by the
    number of the cell that launched them: itself, or several through `run_cell_magic`. `settings`
    are the options of launches that `%xla_config` has set, `own` those of the notebook itself."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.launched: dict[int, list[Cell]] = {}
        self.settings: dict[str, Any] = {}
        self.own: dict[str, Any] = {}
        self.executed = Executed(shell)
        self._autoreloaded = Autoreloaded(shell)
        self._deferred = Deferred()
        self._kept: dict[Launched, Kept] = {}
        self._runs: dict[Launched, Run] = {}
        self._unbound: dict[str, str] = {}  # why names are not there, of cells that failed
        self._rejection = _Rejection(shell)

    @property
    def number(self) -> int:
        """The number at the prompt of the cell that runs now.

        Not `execution_count`: IPython 9 counts on before it runs a cell, 7 and 8 after.
        """
        return len(self.shell.history_manager.input_hist_parsed) - 1

    @property
    def parent(self) -> dict[str, Any]:
        """The message of the page that the current cell runs for; {} outside a kernel."""
        get_parent = getattr(self.shell, "get_parent", dict)
        return dict(get_parent())

    @property
    def runs_a_script(self) -> bool:
        """Whether `%run` is executing a file, which has a module of its own meanwhile."""
        return sys.modules["__main__"] in self.shell._main_mod_cache.values()

    def cell(self, line: str, body: str, magic: str = "%%xla_spawn") -> Cell:
        """The cell that a magic was called with, as a user sees it: the magic's own line
        stays, as a comment, so that lines count from it or from a magic above it (`%%time`).

        Raises ProgramError where IPython cannot read it."""
        above = lines_above_magic(self.shell.history_manager.input_hist_raw[-1])
        blank = "#\n" * (above or 0)
        label = f"Cell In[{self.number}]"
        if above is None:
            label += f", launch {len(self.launched.get(self.number, ())) + 1}"
        text = f"{blank}#{magic} {line}\n{plain_line_ends(body)}"
        try:
            return Cell(label, self.shell.transform_cell(text), magic=magic)
        except SyntaxError as problem:  # of its own tokenizer
            raise unreadable(Cell(label, text), problem) from None

    def scope(self) -> Scope:
        """What the notebook holds now, its cells oldest first."""
        # What IPython itself put there (`open`, `exit`, `get_ipython`, In, Out) is not the user's.
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        values = {k: v for k, v in names.items() if k not in hidden or hidden[k] is not v}
        return Scope(
            values=values,
            cells=self.executed.cells(self.launched),
            pending=self._deferred.pending(values),
            computed=self._deferred.taken_first(values),
            executed=list(self.executed.by_magics()),
            lost=told_of_lost(),
        )

    def program(self, make: Callable[[Scope], Program]) -> Program:
        """What `make` builds of what the notebook holds, with what it needs of earlier runs.

        Raises ProgramError where that cannot be had, and what `make` raises.
        """
        missing: Set[str] = frozenset()
        for name in self._autoreloaded.look():
            modules.of_this_process().changed_in_place(name)
        self._look_after_runs()
        while True:
            try:
                return make(self.scope())
            except OnlyTheRunHas as wanted:
                problem = self._try_to_define(wanted.names, deep=False)
                if problem or wanted.names == missing:
                    names = listed((f"`{name}`" for name in sorted(wanted.names)), most=3)
                    problem = problem or f"{names}: the launched cell left it without a value."
                    raise ProgramError(f"{problem} Nothing was run.") from None
                missing = wanted.names

    def begun(self, cell: Cell, program: Program, run: Run) -> None:
        """The cell that runs now has been launched."""
        self.launched.setdefault(self.number, []).append(cell)
        if program.module is None:
            return
        namespace = self.shell.user_ns
        found = {name: self._deferred.of(name, namespace) for name in program.as_source}
        sources = {name: launched for name, launched in found.items() if launched is not None}
        text = Cell(cell.label, program.module.text)
        flags = future_flags(futures(parsed(cell)))
        launched = self._deferred.add(text, namespace, program.keeps, flags)
        self._runs[launched] = run
        self._unbound = {n: why for n, why in self._unbound.items() if n not in launched.held}
        if program.keeps:
            self._kept[launched] = Kept(run, program.parcel.objects(), sources)

    def before_cell(self, info: Any = None) -> None:
        """Execute what launched cells define, if the cell that is about to run uses it."""
        text = getattr(info, "raw_cell", None) or ""
        self._rejection.withdraw()
        self._forget_after_a_reset()
        self._deferred.close(self.shell.user_ns)
        self._look_after_runs()
        if (self._deferred or self._unbound) and lines_above_magic(text) is None:
            with contextlib.suppress(SyntaxError):  # IPython says so itself, else a word is a word
                text = self.shell.transform_cell(text)
            try:
                self.define_for(text)
            except Interrupted as interrupted:
                self.reject(str(interrupted))

    def reject(self, why: str) -> None:
        """Keep IPython from executing the cell that is about to run; the error is called `kind`."""
        self._rejection.reject(f"This cell was not executed: {why}")

    def _look_after_runs(self) -> None:
        for launched in list(self._runs):
            if not launched.held or self._runs[launched].state.started is not None:
                self._runs.pop(launched)  # all has been taken, or the cell has not raised
            else:
                self._forget_failed(launched)
        for launched, kept in list(self._kept.items()):
            if launched.held:
                kept.trim()
            else:
                self._kept.pop(launched).discard()

    def define_for(self, source: str) -> None:
        """Execute what launched cells define and this code uses."""
        names = _names_used(source)
        if "get_ipython" in names:  # of IPython's lines (`f?`, `%time f()`) any word
            names |= set(_WORD.findall(source))
        self._tell(self._define(names) or self._why_unbound(names))

    def define_for_line(self, line: str) -> None:
        """Execute what launched cells define and IPython is to fill in: `{N}`, `$N`."""
        if self._deferred:
            filled = " ".join(_FILLED.findall(line))
            self._tell(self._try_to_define(set(_WORD.findall(filled))))

    def resolve(self, name: str) -> object:
        """A name of the notebook, for a result that refers to it. Raises KeyError."""
        self._tell(self._try_to_define({name}))
        return self.shell.user_ns[name]

    def displayed(self) -> Counter[int]:
        """How many references IPython has to what cells displayed (`Out`, `_`, `_3`), by its id."""
        held = [v for name, v in list(self.shell.user_ns.items()) if _DISPLAYED.fullmatch(name)]
        held += [*self.shell.user_ns_hidden.values(), *self.shell.user_ns.get("_oh", {}).values()]
        held += [vars(self.shell.displayhook).get(name) for name in ("_", "__", "___")]
        held.append(getattr(getattr(self.shell, "last_execution_result", None), "result", None))
        return Counter(map(id, held))

    def _try_to_define(self, names: Set[str], deep: bool = True) -> str:
        """As `_define`, where nothing is given up but these names if it is interrupted."""
        try:
            return self._define(names, deep)
        except Interrupted as interrupted:
            return str(interrupted)

    def _tell(self, problem: str) -> None:
        if problem:
            print(problem, file=sys.stderr)

    def _forget_after_a_reset(self) -> None:
        """`%reset` empties the namespace, and what launched cells define is gone with it."""
        if _MARK not in self.shell.user_ns:
            self._deferred.clear()
            self.shell.user_ns[_MARK] = self.shell.user_ns_hidden[_MARK] = True

    def _define(self, names: Set[str], deep: bool = True) -> str:
        """Bind these names of launched cells, with all that they need; gives sentences on those
        that cannot be had. Raises Interrupted, and they can be had later."""
        problems = []
        bring_back = self._deferred.remember()
        try:
            for taken in self._deferred.take(names, self.shell.user_ns, deep):
                if taken.text is not None:
                    self._execute(taken, taken.text)
                if taken.computed:
                    problems.append(self._take_computed(taken.launched, taken.computed))
        except Interrupted:
            bring_back()
            raise
        return " ".join(filter(None, problems))

    def _execute(self, taken: Taken, text: Cell) -> None:
        """Execute source with what it read when its cell was launched. What the notebook has bound
        since stays."""
        launched, namespace = taken.launched, self.shell.user_ns
        before = dict(namespace)
        namespace.update(launched.inputs)
        try:
            code = compile(text.source, self._file(text.label), "exec", launched.flags, True)
            with _told_if_slow(f"executing the imports and definitions of {text.label} …"):
                exec(code, namespace)
        except KeyboardInterrupt:
            namespace.clear()
            namespace.update(before)
            raise Interrupted(
                f"the definitions of {text.label} were still being executed."
            ) from None
        except Exception as problem:
            print(
                f"{text.label} was launched, but its definitions cannot be executed in the "
                f"notebook: {type(problem).__name__}: {problem}",
                file=sys.stderr,
            )
        bound = bindings(ast.parse(text.source).body)
        launched.made.update({name: namespace[name] for name in bound & namespace.keys()})
        for name in (bound | launched.inputs.keys()) - taken.binds - before.keys():
            namespace.pop(name, None)
        namespace.update({n: value for n, value in before.items() if n not in taken.binds})

    def _take_computed(self, launched: Launched, names: Set[str]) -> str:
        """Bind names to what a run has kept; gives a sentence on those that cannot be had."""
        kept, namespace = self._kept[launched], self.shell.user_ns
        values, problem = kept.take(names, namespace, self._made)
        if self._forget_failed(launched):
            return self._why_unbound(names)
        if kept.is_open:
            # What the cell did not bind after all (`if resume: model = …`) is as before.
            unbound = launched.computed - deleted(parsed(launched.cell).body) - kept.problems.keys()
            values = {n: v for n, v in launched.held.items() if n in unbound} | values
        counting = launched.names(namespace)
        values = {n: v for n, v in values.items() if n in counting and v is not ABSENT}
        namespace.update(values)
        gone = launched.computed - kept.problems.keys() if kept.is_open else values.keys()
        for name in launched.held.keys() & gone:
            del launched.held[name]
        if values:
            self._show_source(launched.cell.label)
        return problem

    def _why_unbound(self, names: Set[str]) -> str:
        unbound = names & self._unbound.keys() - self.shell.user_ns.keys()
        return "\n".join(self._unbound[name] for name in sorted(unbound))

    def _forget_failed(self, launched: Launched) -> bool:
        """Whether the cell ended before any rank was started: the notebook has what it had."""
        run = self._runs.get(launched)
        if run is None or not run.done or run.state.kept or run.state.started is not None:
            return False
        missing = [name for name, value in launched.held.items() if value is ABSENT]
        self._deferred.undo(launched, self.shell.user_ns)
        del self._runs[launched]
        why = f": {shortened(run.state.refused.message, 300)}" if run.state.refused else ""
        for name in missing:
            self._unbound[name] = (
                f"`{name}` is not there: {run.label} ended before its ranks started, and nothing "
                f"that it bound is kept{why}"
            )
        return True

    def _made(self, name: str, launched: Launched) -> object:
        """What a launched cell's source binds to a name, executed now if it was not before."""
        if name not in launched.made:
            taken = self._deferred.all_of(launched, self.shell.user_ns)
            if taken.text is not None:
                self._execute(taken, taken.text)
        return launched.made[name]

    def _file(self, label: str) -> str:
        """The file name that a launched cell's source is executed under."""
        number, cell = self._numbered(label)
        name: str = self.shell.compile.cache(cell.source, number)
        self._name_file(number, cell, name)
        return name

    def _show_source(self, label: str) -> None:
        """Let tracebacks and `inspect` find the source of functions that a run has kept: their
        file is the cell's label, as on ranks."""
        number, cell = self._numbered(label)
        remember(label, cell.source)
        self._name_file(number, cell, label)

    def _numbered(self, label: str) -> tuple[int, Cell]:
        each = ((n, cell) for n, cells in self.launched.items() for cell in cells)
        return next((n, cell) for n, cell in each if cell.label == label)

    def _name_file(self, number: int, cell: Cell, name: str) -> None:
        cells = self.launched[number]
        cells[cells.index(cell)] = replace(cell, filename=name)


class _Rejection(ast.NodeTransformer):
    """Keeps IPython from executing a cell: an exception of a callback before it would not."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._why = ""

    def reject(self, why: str) -> None:
        self._why = why
        self._shell.ast_transformers.append(self)

    def withdraw(self) -> None:
        """Also of a cell that could not be parsed."""
        if self in self._shell.ast_transformers:
            self._shell.ast_transformers.remove(self)

    def visit(self, node: ast.AST) -> ast.AST:
        self.withdraw()
        kinds = sys.modules["IPython.core.error"].InputRejected, XlaNbError
        raise type("Interrupted", kinds, {})(self._why)


@functools.cache
def of(shell: Any) -> Notebook:
    """The one Notebook of a shell."""
    return Notebook(shell)


def current() -> Notebook | None:
    """The notebook that this code runs in, if it runs in one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return None if shell is None else of(shell)


@contextlib.contextmanager
def _told_if_slow(what: str) -> Iterator[None]:
    timer = threading.Timer(_SLOW, print, (what,), {"flush": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _names_used(source: str) -> set[str]:
    """The names that code reads, or deletes; of what is no Python, any word."""
    try:
        tree = ast.parse(source)
        read = names_in(tree.body).wanted()
    except UNREADABLE:
        return set(_WORD.findall(source))
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return read | {n.id for n in names if isinstance(n.ctx, ast.Del)}
