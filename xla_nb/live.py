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
from xla_nb.errors import Interrupted, LaunchError, UsageError
from xla_nb.live_ranks.sent import Sent
from xla_nb.monitor.drift import DRIFT, Watch
from xla_nb.program import missing_names
from xla_nb.program.build import Program, Scope, build, build_call, build_group
from xla_nb.program.cell_text import Cell
from xla_nb.program.rank_cell import RANK_NAMES
from xla_nb.rank.entries import WithoutIndex, push, refuse_launch
from xla_nb.run import options as run_options
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
    from xla_nb.views.panel.view import GroupPanel

#: Options that describe live ranks (OF_GROUP), and options of the cells that they run (OF_CELL).
OF_GROUP = ("n", "runtime", "on", "hosts", "slices", "wait", "simulate", "env", "grace")
_BY_BUTTON = "by the Shut down button"
_END = 5.0  # seconds for a panel to show the end
#: Remove old records every so many cells: removing one takes as long as running a cell.
_TIDY_EVERY = 100
_EFFECTS = ast.Call | ast.Await | ast.NamedExpr  # nodes of an expression that may do more than read
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
    existing = _groups().get(name)
    if existing is not None and existing.alive:
        raise UsageError(existing.told_of_being_there)
    if existing is not None:
        _record_end(existing)
    current = notebook.current()
    has_magics = current is not None and not current.runs_a_script
    label = "live ranks" if name == DEFAULT else f"live ranks `{name}`"
    program = build_group(api.scope(), name="xla_nb_live", label=label)
    live_options = replace(options, bg=True, hang_after=0.0, timeout=None)
    engine, group = api.engine_for(options), None
    try:
        with api.showing_waits() as on_wait:
            run = launch(program, live_options, engine, on_wait, ShownRun, lives=True)
            group = Group(name, run, engine, options, idle, has_magics=has_magics)
            group.compare = live_questions.look_for_drift
        api.keep(run)
        if shown and picture.kernel() is not None and api.default_view() != "none":
            show(group)
        group.wait_until_ready()
    except BaseException as problem:
        if group is not None:
            with contextlib.suppress(KeyboardInterrupt):  # at which they are killed
                _end(group, "before all ranks had started")
        if isinstance(problem, KeyboardInterrupt):
            message = "Interrupted before all ranks had started; the ranks were ended."
            raise LaunchError(message) from None
        raise
    _groups()[name] = group
    _redraw(group)
    return group


def of(name: str = DEFAULT) -> Group:
    """Return the live ranks with this name. Raises UsageError if there are none."""
    if name in _groups():
        return _groups()[name]
    message = f"There are no live ranks named {name!r}"
    if names := [f"`{other}`" for other in sorted(_groups()) if _groups()[other].alive]:
        raise UsageError(f"{message}, only {listed(names)}.")
    if name == DEFAULT:
        raise UsageError("There are no live ranks. Start new ones: %xla_start, or a %%xla cell.")
    raise UsageError(f"{message}. Start new ones: %xla_start --name {name}.")


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
    try:
        try:
            group.end(why)
        finally:  # also after an interrupt, at which they are killed
            _record_end(group)
            api.tidy()
    except KeyboardInterrupt:
        raise Interrupted("Interrupted; the live ranks have ended.") from None


def _record_end(group: Group) -> None:
    """Note the names that ended ranks had bound, and show their end."""
    names = missing_names.lost(group.remote, group.run.state.ended)
    notebook.lost().setdefault(group.name, {}).update(names)
    _show_end(group)


def end_all() -> None:
    """End all live ranks of this process."""
    for name in list(_groups()):
        end(name, "with the process that started them")


def restart(name: str, *, replay: bool) -> Group:
    """End the live ranks with this name and start as many new ones, shown in the current cell.

    replay: rerun the cells that had succeeded, in order; stop at the first that fails, or that
    cannot be repeated. Raises UsageError if there are no such ranks, RunFailed for the failed cell,
    and LaunchError.
    """
    old = of(name)
    try:
        _end(old, "by %xla_restart")
        group = start(old.options, name, old.idle, shown=True)
    except BaseException as problem:
        _groups()[name] = old  # keeps the history for a later replay
        if isinstance(problem, KeyboardInterrupt):
            message = "Interrupted; the live ranks have ended, and no new ones were started."
            raise Interrupted(message) from None
        raise
    group.watch = Watch(old.watch.names)
    if replay:
        _replay(group, old.history)
    return group


def _replay(group: Group, history: Sequence[Played]) -> None:
    """Rerun the cells that had succeeded."""
    for number, played in enumerate(history):
        remaining = [later.label for later in history[number + 1 :]]
        note = f" Not replayed: {listed(remaining, most=5)}." if remaining else ""
        if played.cell is None:
            raise LaunchError(
                f"Replay stopped at `{played.label}`: its values were not saved. Repeat it "
                f"yourself.{note}"
            )
        print(f"Replaying {played.label} …", flush=True)
        options = replace(played.options, bg=False, keep_going=False)
        try:
            run_cell(group, played.cell, options, played.members)
        except BaseException:
            print(f"Replay stopped at {played.label}.{note}")
            raise


def run_cell(
    group: Group | Callable[[], Group],
    cell: Cell,
    options: Options,
    members: tuple[int, ...] | None = None,
    on_launch: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Run a cell's text on live ranks, shown like a launched cell. If `group` is a function, it is
    called to start the ranks once the cell is ready to run. Raises the errors of `xla_nb.spawn`."""
    existing = group if isinstance(group, Group) else None
    sent = existing.sent if existing else Sent()
    program = build(cell, _scope(existing, members, sent), name=PROGRAM)
    if not isinstance(group, Group):
        group = group()
        group.sent = sent
    return _run(group, program, options, members, cell, on_launch)


def _scope(group: Group | None, members: tuple[int, ...] | None, sent: Sent) -> Scope:
    """The scope of a program for these live ranks, or for those still to be started. Raises the
    errors of `Group.check`."""
    refuse_launch("xla_nb.ranks")
    if group is not None:
        group.check(group.world if members is None else members)
    scope = api.scope()
    remote = group.remote_beside(scope.values) if group else frozenset[str]()
    lost = notebook.lost().get(group.name if group else DEFAULT, {})
    reasons = {name: "; ".join(parts) for name, parts in lost.items()}
    return replace(scope, sent=sent, remote=remote, lost=reasons)


def _run(
    group: Group,
    program: Program,
    options: Options,
    members: tuple[int, ...] | None,
    cell: Cell | None = None,
    on_launch: Callable[[Run], None] = lambda run: None,
    replayed: bool = True,
) -> Run:
    lost = notebook.lost().get(group.name, {})
    for name in lost.keys() & group.remote.keys():  # these ranks have set it again
        del lost[name]
    notes = [
        f"{lost.pop(name)[0]}; using the notebook's value."
        for name in program.restored
        if name in lost
    ]
    program = replace(program, notes=(*program.notes, *notes))
    with contextlib.ExitStack() as stack, loop.launching():
        with api.showing_waits() as on_wait:
            run = group.launch(program, options, members, on_wait)
        if replayed:
            played = Played(run.label, cell, options, members)
            run.at_end(functools.partial(group.remember, played))
        stack.callback(_report_effects, group, run, options)
        return api.shown(run, options, on_launch, tidies=group.number % _TIDY_EVERY == 0)


def _report_effects(group: Group, run: Run, options: Options) -> None:
    """Print below a cell what it has done to the group."""
    died = any(rank.death is not None for rank in run.state.ranks.values())
    if run.done and (died or run.state.lost_group):
        with contextlib.suppress(UsageError):  # others run a cell; the next cell reports it
            try:
                group.check(group.world)
            except LaunchError as error:
                print(error)
    elif run.done and options.view == "none" and DRIFT in run.state.conclusions:
        print(run.state.conclusions[DRIFT].sentence)
    _redraw(group)


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
    current, previous = notebook.current(), _shown().pop(group.run.name, None)
    if previous is not None and current is not None:
        previous.move(f"Cell In[{current.number}]")
    if group.run.done:
        StillGroup(group.run)
    elif api.default_view() != "panel":
        _shown()[group.run.name] = StillGroup(group.run)
    else:
        from xla_nb.views.panel.view import GroupPanel  # slow to import

        panel = GroupPanel(group.run, functools.partial(_end, group, _BY_BUTTON))
        _shown()[group.run.name] = panel
        panel.follow()


def _redraw(group: Group) -> None:
    """Redraw once all ranks are ready, or a cell of theirs has ended. Called in the notebook's main
    thread."""
    view = _shown().get(group.run.name)
    if isinstance(view, StillGroup):
        view.draw()


def _show_end(group: Group) -> None:
    """Show that the ranks have ended."""
    view = _shown().pop(group.run.name, None)
    if isinstance(view, StillGroup):
        view.draw()
    elif view is not None:
        view.join(_END)


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
        current = _groups().get(self._own.name, self._own)
        if current is not self._own:
            message = f"These live ranks have ended: {self._own.why_lost}."
            raise LaunchError(f"{message} The current ones are {current.in_code}.")
        return current

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
        members, cell_options = self._split_options(options)

        group = self._group
        scope = _scope(group, members, group.sent)
        program = build_call(WithoutIndex(fn, {}), scope, args=args, name=PROGRAM)
        return _run(group, program, cell_options, members)

    def run(self, statements: str, **options: object) -> Run:
        """Run statements on each rank, with the options of `call`; the value of a last expression
        is the rank's result. The whole text may be indented."""
        members, cell_options = self._split_options(options)
        text = _check_text("The code for run()", statements)
        if text.lstrip("\n")[:1].isspace():
            text = textwrap.dedent(text)
        cell = Cell(f"statements {self._group.number + 1}", text)
        return run_cell(self._group, cell, cell_options, members)

    def push(self, /, **values: object) -> None:
        """Bind names on every rank to the current values, which belong to the ranks from then on.
        Raises UsageError for the names that every cell sets (`rank`, `device`, …)."""
        if taken := values.keys() & RANK_NAMES:
            raise UsageError(f"push() cannot bind {listed(sorted(taken))}, which every cell sets.")
        group = self._group
        program = build_call(push, _scope(group, None, group.sent), args=(values,), name=PROGRAM)
        label = f"push of {listed(values, most=3)}"
        program = replace(program, label=label, binds=tuple(values))
        self._run_unseen(group, program, None)

    def pull(self, name: str, rank: int = 0) -> Any:
        """Return the value of a name, or of an expression, on one rank. Raises RunFailed if it
        cannot be evaluated, and UsageError if it is neither."""
        return self._evaluate(name, (rank,))[rank]

    def __getitem__(self, name: str) -> Mapping[int, Any]:
        """Return the value of a name, or of an expression, on every rank."""
        return self._evaluate(name, None)

    def vars(self, *names: str, compute: bool = False) -> Variables:
        """Return the variables of these names, by default all, and whether the ranks agree on them.

        compute: first run the recorded computation of tensors; otherwise they are shown as pending.
        """
        return live_questions.variables(self._group, names, compute=compute)

    def _evaluate(self, name: str, members: tuple[int, ...] | None) -> Mapping[int, Any]:
        text = _check_text("The name", name).strip()
        try:
            expression = ast.parse(text, mode="eval")
        except SyntaxError:
            message = f"{shortened(repr(name), 60)} is neither a name nor an expression."
            raise UsageError(f"{message} Use run() for statements.") from None
        cell = Cell(f"`{text}`", text)
        group = self._group
        program = build(cell, _scope(group, members, group.sent), name=PROGRAM)
        program = replace(program, both=())  # no notes: the ranks' value is meant
        has_effects = any(isinstance(node, _EFFECTS) for node in ast.walk(expression))
        return dict(self._run_unseen(group, program, members, cell, replayed=has_effects).results)

    def _run_unseen(
        self,
        group: Group,
        program: Program,
        members: tuple[int, ...] | None,
        cell: Cell | None = None,
        replayed: bool = True,
    ) -> Run:
        """Run a program without a view, printing only notices about the notebook's values."""
        options = replace(self._options, view="none")
        run = _run(group, program, options, members, cell, replayed=replayed)
        for notice in run.state.notices:
            if not notice.once:
                print(notice.text)
        return run

    def _split_options(
        self, options: Mapping[str, object]
    ) -> tuple[tuple[int, ...] | None, Options]:
        remaining = dict(options)
        rank_list = remaining.pop("ranks", None)
        run_options.refuse_unknown(options, ["ranks", *OF_CELL])
        members = None if rank_list is None else run_options.numbers("ranks", rank_list)
        return members, run_options.options(remaining, vars(self._options))


def _check_text(subject: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{subject} must be a string, not {shortened(repr(value), 60)}.")
    return value


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
    live_options = run_options.options(options, notebook.settings())
    if not options and idle is None and is_there(name):
        return Ranks(of(name), live_options)
    seconds = None if idle is None else run_options.duration("idle", idle)
    return Ranks(start(live_options, name, seconds), live_options)
