"""Live ranks: started once, then given one program after another, by `%%xla` or in code.

Names that they have bound are theirs; all others that a program reads come from the notebook.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xla_nb import api, live_questions, notebook
from xla_nb.errors import LaunchError, UsageError
from xla_nb.live_ranks.sent import Sent
from xla_nb.program import missing_names
from xla_nb.program.build import Program, Scope, build, build_call, build_group
from xla_nb.program.cell_text import Cell
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.rank.entries import WithoutIndex, push, refuse_launch
from xla_nb.run import options as run_options
from xla_nb.run.drift import DRIFT, Watch
from xla_nb.run.group import DEFAULT, PROGRAM, Group, Played
from xla_nb.run.launch import launch
from xla_nb.run.options import Options
from xla_nb.run.run import Run
from xla_nb.views import loop, observer, picture, rendering
from xla_nb.views.picture import ShownRun, StillGroup
from xla_nb.views.variables import Variables
from xla_nb.wording import listed, shortened
from xla_nb.wording import ranks as numbered

if TYPE_CHECKING:
    from xla_nb.views.panel.group import GroupPanel

#: Options that describe live ranks (OF_GROUP), and options of the cells that they run (OF_CELL).
OF_GROUP = ("n", "runtime", "on", "hosts", "slices", "wait", "simulate", "env", "grace")
_BUTTON = "by the Shut down button"
_END = 5.0  # seconds for a panel to show the end
#: Remove old records every so many cells: removing one takes as long as running a cell.
_TIDIES = 100
_ACTS = ast.Call | ast.Await | ast.NamedExpr  # nodes of an expression that may do more than read
OF_CELL = ("timeout", "grace", "keep_going", "hang_after", "hang_stop", "stop_on_nan", "view", "bg")


@functools.cache
def _groups() -> dict[str, Group]:
    """The groups of this process, by name."""
    atexit.register(end_all)
    os.register_at_fork(after_in_child=_groups.cache_clear)  # a forked child has none yet
    return {}


def start(
    options: Options,
    name: str = DEFAULT,
    idle: float | None = None,
    *,
    shown: bool = False,
) -> Group:
    """Start live ranks and wait until all are ready. They end after `idle` seconds without a
    program. `shown`: show them in the cell that is being executed. Raises UsageError if live ranks
    with this name exist, and the errors of `xla_nb.spawn`."""
    refuse_launch("xla_nb.ranks")
    held = _groups().get(name)
    if held is not None and held.alive:
        raise UsageError(held.told_of_being_there)
    if held is not None:
        _lose(held)
    here = notebook.current()
    has_magics = here is not None and not here.runs_a_script
    scope = here.scope() if here and has_magics else api.script()
    label = "live ranks" if name == DEFAULT else f"live ranks `{name}`"
    program = build_group(scope, name="xla_nb_live", label=label)
    lasting = replace(options, bg=True, hang_after=0.0, timeout=None)
    engine, group = api.engine_for(options), None
    try:
        with api.telling() as on_wait:
            run = launch(program, lasting, engine, on_wait, ShownRun, lives=True)
            group = Group(name, run, engine, options, idle, has_magics=has_magics)
        api.keep(run)
        if shown and picture.kernel() is not None and _view() != "none":
            show(group)
        group.wait_until_ready()
    except BaseException as problem:
        if group is not None:
            with contextlib.suppress(KeyboardInterrupt):  # at which they are killed
                _end(group, "before all ranks had started")
        if isinstance(problem, KeyboardInterrupt):
            told = "Interrupted before all ranks had started; the ranks were ended."
            raise LaunchError(told) from None
        raise
    _groups()[name] = group
    _changed(group)
    return group


def of(name: str = DEFAULT) -> Group:
    """Return the live ranks with this name. Raises UsageError if there are none."""
    group = _groups().get(name)
    if group is None:
        raise UsageError(_no_such(name))
    return group


def _no_such(name: str) -> str:
    if there := [f"`{other}`" for other in sorted(_groups()) if _groups()[other].alive]:
        return f"There are no live ranks named {name!r}, only {listed(there)}."
    if name == DEFAULT:
        return "There are no live ranks. Start new ones: %xla_start, or a %%xla cell."
    return f"There are no live ranks named {name!r}. Start new ones: %xla_start --name {name}."


def is_there(name: str = DEFAULT) -> bool:
    """True if live ranks with this name exist, even lost ones."""
    return name in _groups()


def end(name: str = DEFAULT, why: str = "by %xla_shutdown") -> Group:
    """End the live ranks with this name; `why` continues "ended …". Raises UsageError if there are
    none."""
    group = of(name)
    _end(group, why)
    return group


def _end(group: Group, why: str) -> None:
    if _groups().get(group.name) is group:
        del _groups()[group.name]
    group.end(why)
    _lose(group)
    api.tidy()


def _lose(group: Group) -> None:
    """Note the names that ended ranks had bound, and show their end."""
    names = missing_names.lost(group.remote, group.run.state.ended)
    notebook.lost().setdefault(group.name, {}).update(names)
    _ended(group)


def end_all(why: str = "with the process that started them") -> None:
    """End all live ranks of this process."""
    for name in list(_groups()):
        end(name, why)


def restart(name: str, *, replay: bool) -> Group:
    """End the live ranks with this name and start as many new ones, shown in the current cell.

    replay: rerun the cells that had succeeded, in order; stop at the first that fails, or that
    cannot be repeated. Raises UsageError if there are no such ranks, RunFailed for the failed cell,
    and LaunchError.
    """
    old = end(name, "by %xla_restart")
    try:
        group = start(old.options, name, old.idle, shown=True)
    except BaseException:
        _groups()[name] = old  # keeps the history for a later replay
        raise
    group.watch = Watch(old.watch.names)
    if replay:
        _replay(group, old.history)
    return group


def _replay(group: Group, history: Sequence[Played]) -> None:
    """Rerun the cells that had succeeded."""
    for number, each in enumerate(history):
        rest = [one.label for one in history[number + 1 :]]
        left = f" Not replayed: {listed(rest, most=5)}." if rest else ""
        if each.cell is None:
            raise LaunchError(
                f"Replay stopped at `{each.label}`: its values were not saved. Repeat it "
                f"yourself.{left}"
            )
        print(f"Replaying {each.label} …", flush=True)
        options = replace(each.options, bg=False, keep_going=False)
        try:
            run_cell(group, each.cell, options, each.members)
        except BaseException:
            print(f"Replay stopped at {each.label}.{left}")
            raise


def run_cell(
    group: Group | Callable[[], Group],
    cell: Cell,
    options: Options,
    members: tuple[int, ...] | None = None,
    launched: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Run a cell's text on live ranks, shown like a launched cell. If `group` is a function, it is
    called to start the ranks once the cell is ready to run. Raises the errors of `xla_nb.spawn`."""

    def made(scope: Scope, name: str) -> Program:
        return build(cell, scope, name=name)

    return _run(group, made, options, members, cell, launched)


def _run(
    group: Group | Callable[[], Group],
    make: Callable[[Scope, str], Program],
    options: Options,
    members: tuple[int, ...] | None,
    cell: Cell | None = None,
    launched: Callable[[Run], None] = lambda run: None,
    replayed: bool = True,
) -> Run:
    refuse_launch("xla_nb.ranks")
    there = group if isinstance(group, Group) else None
    if there is not None:
        there.check(there.world if members is None else members)
    sent = there.sent if there else Sent()
    lost = notebook.lost().get(there.name if there else DEFAULT, {})
    gone = {name: "; ".join(told) for name, told in lost.items()}

    def made(scope: Scope) -> Program:
        remote = there.remote_beside(scope.values) if there else frozenset[str]()
        return make(replace(scope, sent=sent, remote=remote, lost=gone), PROGRAM)

    program = api.built(made)
    told = [
        f"{lost.pop(name)[0]}; using the notebook's value."
        for name in program.restored
        if name in lost
    ]
    program = replace(program, notes=(*program.notes, *told))
    if not isinstance(group, Group):
        group = group()
        group.sent = sent
    with contextlib.ExitStack() as then, loop.launching():
        with api.telling() as on_wait:
            run = group.launch(program, options, members, on_wait, ShownRun)
        if replayed:
            group.remember(run, Played(run.label, cell, options, members))
        if group.watch.names:
            run.at_end(functools.partial(live_questions.look_for_drift, group))
        then.callback(_tell_after, group, run, options)
        return api.shown(run, options, launched, tidies=group.number % _TIDIES == 0)


def _tell_after(group: Group, run: Run, options: Options) -> None:
    """Print below a cell what it has done to the group."""
    died = any(rank.death is not None for rank in run.state.ranks.values())
    if run.done and (died or run.state.lost_group):
        _tell_of_loss(group)
    elif run.done and options.view == "none" and DRIFT in run.state.conclusions:
        print(run.state.conclusions[DRIFT].sentence)
    _changed(group)


def _tell_of_loss(group: Group) -> None:
    """Print, below the cell in which ranks died, that the group is no longer complete."""
    try:
        group.check(group.world)
    except LaunchError as lost:
        print(lost)
    except UsageError:  # other ranks run another cell; the next cell reports it
        return


# ---------------------------------------------------------------- views


@functools.cache
def _shown() -> dict[str, GroupPanel | StillGroup]:
    """The views of this process's groups, by the name of the group's run."""
    return {}


def show(group: Group) -> None:
    """Show live ranks in the current cell, and no longer in an earlier one: their activity, the
    cells they have run, their variables. A terminal gets their current state as text."""
    if picture.kernel() is None:
        print(rendering.render_text(observer.observe(group.run)))
        return
    here, before = notebook.current(), _shown().pop(group.run.name, None)
    if before is not None and here is not None:
        before.move(f"Cell In[{here.number}]")
    if group.run.done:
        StillGroup(group.run)
    else:
        as_panel = _view() == "panel"
        _shown()[group.run.name] = _panel(group) if as_panel else StillGroup(group.run)


def _changed(group: Group) -> None:
    """Redraw once all ranks are ready, or a cell of theirs has ended. Called in the notebook's main
    thread."""
    shown = _shown().get(group.run.name)
    if isinstance(shown, StillGroup):
        shown.draw()


def _ended(group: Group) -> None:
    """Show that the ranks have ended."""
    shown = _shown().pop(group.run.name, None)
    if isinstance(shown, StillGroup):
        shown.draw()
    elif shown is not None:
        shown.join(_END)


def _view() -> str:
    return str(notebook.settings()["view"] or api.default_view())


def _panel(group: Group) -> GroupPanel:
    from xla_nb.views.panel.group import GroupPanel  # slow to import

    shut_down = functools.partial(_end, group, _BUTTON)
    panel = GroupPanel(group.run, shut_down)
    panel.follow()
    return panel


# ---------------------------------------------------------------- in code


class Ranks:
    """Live ranks in code. They end with the `with` block, or by `close`.

    call(fn, *args)      fn(*args) on each rank
    run("statements")    statements on each rank; a last expression is the rank's result
    push(x=1)            bind names on the ranks
    pull("x", rank=0)    the value of a name on one rank
    ranks["x"]           its value on every rank: {rank: value}
    vars()               all variables, and whether the ranks agree on them
    """

    def __init__(self, group: Group, options: Options) -> None:
        self._own, self._options = group, options

    @property
    def _group(self) -> Group:
        """The group. Raises LaunchError if new ranks have replaced these."""
        now = _groups().get(self._own.name, self._own)
        if now is not self._own:
            why = f"These live ranks have ended: {self._own.why_lost}."
            raise LaunchError(f"{why} The current ones are {now.in_code}.")
        return now

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ipython_display_(self) -> None:
        """Show the ranks; a terminal gets one line."""
        if picture.kernel() is None:
            print(repr(self))
        else:
            show(self._own)

    def __repr__(self) -> str:
        group = self._own
        state = group.why_lost or f"{numbered(list(group.world))}, alive"
        return f"<Ranks {group.name!r}: {state}>"

    def __len__(self) -> int:
        return len(self._own.world)

    def close(self) -> None:
        """End the ranks. Calling it again does nothing."""
        if _groups().get(self._own.name) is self._own:
            end(self._own.name, "by close()")

    def call(self, fn: Callable[..., object], *args: object, **options: object) -> Run:
        """Call ``fn(*args)`` on each rank, with the options of a %%xla cell: `ranks` (such as
        "0-3"), `timeout`, `grace`, `keep_going`, `view`, `bg`. Returns the Run.

        Raises RunFailed when a rank fails, and before any rank has begun the errors of
        `xla_nb.spawn`.
        """
        if not callable(fn):
            raise UsageError(f"call() needs a function, not {shortened(repr(fn), 60)}.")
        members, chosen = self._chosen(options)

        def made(scope: Scope, name: str) -> Program:
            return build_call(WithoutIndex(fn, {}), scope, args=args, name=name)

        return _run(self._group, made, chosen, members)

    def run(self, statements: str, **options: object) -> Run:
        """Run statements on each rank, with the options of `call`; the value of a last expression
        is the rank's result. The whole text may be indented."""
        members, chosen = self._chosen(options)
        text = _text("The code for run()", statements)
        if text.lstrip("\n")[:1].isspace():
            text = textwrap.dedent(text)
        cell = Cell(f"statements {self._group.number + 1}", text)
        return run_cell(self._group, cell, chosen, members)

    def push(self, /, **values: object) -> None:
        """Bind names on every rank to the current values, which belong to the ranks from then on.
        Raises UsageError for the names that every cell sets (`rank`, `device`, …)."""
        if given := values.keys() & RANK_NAMES:
            raise UsageError(f"push() cannot bind {listed(sorted(given))}, which every cell sets.")

        def made(scope: Scope, name: str) -> Program:
            program = build_call(push, scope, args=(values,), name=name)
            label = f"push of {listed(values, most=3)}"
            return replace(program, label=label, binds=tuple(values))

        self._unseen(made, None)

    def pull(self, name: str, rank: int = 0) -> Any:
        """Return the value of a name, or of an expression, on one rank. Raises RunFailed if it
        cannot be evaluated, and UsageError if it is neither."""
        return self._held(name, (rank,))[rank]

    def __getitem__(self, name: str) -> Mapping[int, Any]:
        """Return the value of a name, or of an expression, on every rank."""
        return self._held(name, None)

    def vars(self, *names: str, compute: bool = False) -> Variables:
        """Return the variables of these names, by default all, and whether the ranks agree on them.

        compute: first run the recorded computation of tensors; otherwise they are shown as pending.
        """
        return live_questions.variables(self._group, names, compute=compute)

    def _held(self, name: str, members: tuple[int, ...] | None) -> Mapping[int, Any]:
        text = _text("The name", name).strip()
        try:
            expression = ast.parse(text, mode="eval")
        except SyntaxError:
            told = f"{shortened(repr(name), 60)} is neither a name nor an expression."
            raise UsageError(f"{told} Use run() for statements.") from None
        cell = Cell(f"`{text}`", text)

        def made(scope: Scope, name: str) -> Program:  # no `both` notes: the ranks' value is meant
            return replace(build(cell, scope, name=name), both=())

        acts = any(isinstance(node, _ACTS) for node in ast.walk(expression))
        return dict(self._unseen(made, members, cell, replayed=acts).results)

    def _unseen(
        self,
        made: Callable[[Scope, str], Program],
        members: tuple[int, ...] | None,
        cell: Cell | None = None,
        replayed: bool = True,
    ) -> Run:
        """Run a program without a view, printing only notices about the notebook's values."""
        options = replace(self._options, view="none")
        run = _run(self._group, made, options, members, cell, replayed=replayed)
        for notice in run.state.notices:
            if not notice.once:
                print(notice.text)
        return run

    def _chosen(self, given: Mapping[str, object]) -> tuple[tuple[int, ...] | None, Options]:
        words = dict(given)
        members = words.pop("ranks", None)
        run_options.refuse_unknown(given, ["ranks", *OF_CELL])
        chosen = None if members is None else run_options.numbers("ranks", members)
        return chosen, run_options.options(words, vars(self._options))


def _text(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise UsageError(f"{what} must be a string, not {shortened(repr(given), 60)}.")
    return given


def ranks(name: str = DEFAULT, **options: object) -> Ranks:
    """Return the live ranks with this name; with options, or if there are none, start new ones.

    Options are those of `xla_nb.spawn`: `n`, `runtime`, `on`, `hosts`, `slices`, `wait`,
    `simulate`, `env`, and for the code they run `timeout`, `grace`, `keep_going`, `hang_after`,
    `hang_stop`, `stop_on_nan`, `view`; and `idle`, the time without a program after which they end.
    Use it in a `with` block, which ends them, or call `close()`.

    Raises UsageError if options are given and live ranks with this name exist, and the errors of
    `xla_nb.spawn`.
    """
    idle = options.pop("idle", None)
    run_options.refuse_unknown(options, [*run_options.OPTIONS])
    chosen = run_options.options(options, notebook.settings())
    if not options and idle is None and is_there(name):
        return Ranks(of(name), chosen)
    seconds = None if idle is None else run_options.duration("idle", idle)
    return Ranks(start(chosen, name, seconds), chosen)
