"""The public functions (`xla_nb.spawn`, …): run a function on every rank, from notebook or script.

The magic and the function launch through the same code, so that they cannot differ.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import linecache
import multiprocessing
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xla_nb import notebook
from xla_nb.engines import Engine
from xla_nb.engines.local import LocalEngine
from xla_nb.engines.ray.engine import RayEngine, address
from xla_nb.errors import LaunchError, UsageError
from xla_nb.program.build import Program, Scope, build_call
from xla_nb.program.cell_text import Cell
from xla_nb.rank.entries import refuse_launch
from xla_nb.record import tidying
from xla_nb.record.files import Record
from xla_nb.run import options as run_options
from xla_nb.run.failed import RunFailed
from xla_nb.run.launch import launch
from xla_nb.run.options import Options, ViewName
from xla_nb.run.recorded import RecordedRun
from xla_nb.run.run import Run
from xla_nb.runtimes.fit import OnWait
from xla_nb.topology import slices
from xla_nb.views import choose, loop, picture
from xla_nb.views.picture import OpenedRun, ShownRun
from xla_nb.wording import encodable

_INTERRUPTED = "Launch interrupted before any rank started."
_INTERRUPTED_ON_RAY = (
    "Launch interrupted; anything already started on the cluster was ended. Hosts that were "
    "already reserved stay so for the next launch, or until xla_nb.release()."
)


@run_options.signed
@run_options.explained(flags=False)
def spawn(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    n: int | None = None,
    timeout: float | str | None = None,
    **options: Any,
) -> Run:
    """Call ``fn(index, *args)`` on every rank, as `torch_xla.launch` does, and return the Run.

    An option that is omitted, or None, defaults to its setting in `%xla_config`. Times are in
    seconds, or strings such as "5m".

    OPTIONS

    If `fn` has a parameter named `lock` that `args` does not fill, it receives a lock shared by all
    ranks. Raises RunFailed when a rank fails; UsageError, ProgramError, ShippingError or
    LaunchError, before any rank has started, when an argument is wrong, the function or its
    arguments cannot be sent, or the ranks cannot be started.
    """
    run_options.refuse_unknown(options, [*run_options.OPTIONS])
    return call(fn, args, {"n": n, "timeout": timeout, **options})


def call(
    fn: Callable[..., object],
    args: tuple[object, ...],
    keywords: Mapping[str, object],
    *,
    drops: bool = False,
) -> Run:
    """`spawn`, with the options as a mapping.

    drops: replace a result that cannot be sent by None, with a note."""
    current = notebook.current()
    top_level = current.top_level if current else None
    prefix = f"Cell In[{current.number}], " if current and current.runs_a_cell else ""
    requested = {**keywords, **(top_level.options if top_level else {})}
    options = run_options.options(requested, notebook.settings())
    values = run_options.arguments(args)
    if top_level:
        top_level.launches = True

    program = build_call(fn, scope(), args=values, name="xla_nb_call", drops=drops)
    program = replace(program, label=f"{prefix}{program.label}")
    return run(program, options, *([top_level.begun] if top_level else []))


def run(
    program: Program,
    options: Options,
    on_launch: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Launch a program and, unless in the background, show it until it ends."""
    refuse_launch("xla_nb.spawn")
    with loop.launching() as interrupts:
        try:
            with showing_waits() as show_wait:

                def on_wait(seconds: float, message: str) -> None:
                    show_wait(seconds, message)
                    interrupts.end_a_wait()

                new_run = launch(program, options, engine_for(options), on_wait, ShownRun)
        except KeyboardInterrupt:
            local = options.on == "local"
            raise LaunchError(_INTERRUPTED if local else _INTERRUPTED_ON_RAY) from None
        return shown(new_run, options, on_launch)


def shown(
    run: Run,
    options: Options,
    on_launch: Callable[[Run], None] = lambda run: None,
    tidies: bool = True,
) -> Run:
    """Show a launched run until it ends, unless in the background. Afterwards, with `tidies`,
    remove old records. Raises RunFailed."""
    keep(run)
    on_launch(run)
    view = options.view or default_view()
    if options.bg:
        if tidies:
            tidy()
        # A text view prints into the output of other cells: only if it was asked for.
        if view == "panel" or options.view == "text":
            run.shown_in = picture.cell() if view == "panel" else None
            loop.follow_behind(run, choose.make(view, run, behind=True))
        return run
    run.shown_in = picture.cell() if view != "none" else None
    loop.follow(run, choose.make(view, run))
    if tidies:
        tidy()
    if not options.keep_going and not run.ok:
        brief = view != "none" and picture.kernel() is not None
        error = RunFailed(run, brief)
        if brief:
            error.is_seen = lambda: picture.cell() == run.shown_in
        raise error
    return run


# ---------------------------------------------------------------- engines and runs


@functools.cache
def engine() -> LocalEngine:
    """The engine of this machine, for this process and until it ends."""
    return LocalEngine()


@functools.cache
def _clusters() -> dict[str, RayEngine]:
    """The engines of the Ray clusters that this process has used, by address."""
    return {}


def _forget() -> None:
    """Forget the engines and runs of the parent process, which ends them itself."""
    for known in (engine, _clusters, _known_runs):
        known.cache_clear()


os.register_at_fork(after_in_child=_forget)


def engine_for(options: Options) -> Engine:
    """The engine that starts the ranks of a launch. Raises UsageError."""
    if options.on == "local":
        engine().check_hosts(options.hosts, options.slices)
        return engine()
    if options.hosts and options.slices:
        slices.check_equal(options.hosts, options.slices)
    cluster = address(options.on, {**os.environ, **options.env})
    return _clusters().setdefault(cluster, RayEngine(cluster))


def release() -> None:
    """Release the hosts of Ray clusters that are reserved for the next launch, ending anything that
    runs there. Otherwise they are released after 10 minutes without a launch, and at exit."""
    while _clusters():
        _clusters().popitem()[1].close()


@atexit.register
def close() -> None:
    """End every process that launches have left running; a script waits for its background runs
    first, as it does for processes of multiprocessing."""
    if loop.shell() is None and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            _wait_for_background()
    why = loop.KERNEL_ENDED if loop.shell() else "Stopped because its program ended"
    for run in living():
        if not run.state.stopping and not run.state.settled:
            run.stops_because(why)
    engine().close()
    release()


def _wait_for_background() -> None:
    """Wait for the runs in progress, but not after an interrupt, and not for live ranks."""
    if issubclass(getattr(sys, "last_type", None) or Exception, KeyboardInterrupt):
        return
    for run in living():
        if run.state.group is None and not run.state.stopping:
            print(f"Waiting for {run.label} ({run.name}); Ctrl-C stops it.", file=sys.stderr)
            with contextlib.suppress(RunFailed):
                run.wait()


@functools.cache
def _known_runs() -> weakref.WeakSet[RecordedRun]:
    """The runs that this process launched or opened. A run in progress is kept alive by its
    thread."""
    return weakref.WeakSet()


def keep(run: RecordedRun) -> None:
    """Keep the files of a run as long as anything refers to it, such as a variable or `Out`."""
    _known_runs().add(run)
    weakref.finalize(run, _disown, run.record).atexit = False


def _disown(record: Record) -> None:
    if all(run.name != record.path.name for run in _known_runs()):  # it may be open a second time
        with contextlib.suppress(OSError):  # a finalizer: it may run anywhere
            record.disown()


def living() -> list[Run]:
    """The runs in progress, oldest first."""
    runs = (run for run in _known_runs() if isinstance(run, Run))
    return sorted((run for run in runs if not run.done), key=lambda run: run.name)


def tidy() -> None:
    """Remove the records of old runs."""
    tidying.tidy("parts")  # answers of live ranks, some of which a killed kernel leaves behind
    tidying.tidy()


@contextlib.contextmanager
def showing_waits() -> Iterator[OnWait]:
    """Show what a launch waits for: in a notebook during the wait, elsewhere as lines."""
    shown: list[str] = []
    slot = loop.slot() if picture.kernel() else None

    def on_wait(seconds: float, message: str) -> None:
        if seconds <= 0.3 or message in shown:
            return
        if slot is None:
            print(encodable(message, sys.stdout), flush=True)
        else:
            (slot.update if shown else slot.display)({"text/plain": message}, raw=True)
        shown.append(message)

    try:
        yield on_wait
    finally:
        if shown and slot is not None:  # `clear_output` would also remove earlier output
            slot.update({}, raw=True)


def show_import(is_importing: Callable[[], bool]) -> None:
    """Show that the notebook process is importing torch_xla, for as long as it does."""
    message, began, seconds = "importing torch_xla in the notebook, once …", time.monotonic(), 0
    with showing_waits() as show_wait:
        while is_importing():
            spec = getattr(sys.modules.get("torch_xla"), "__spec__", None)
            if not getattr(spec, "_initializing", False):
                if seconds:
                    return  # at once: later output does not belong to that line
                began = time.monotonic()
            elif (seconds := int(time.monotonic() - began)) >= 1:
                show_wait(seconds, f"{message} {seconds} s" if picture.kernel() else message)
            time.sleep(0.1)


# ---------------------------------------------------------------- views, records, scripts


def default_view() -> ViewName:
    """The view in the settings, by default the best for the current cell's front end."""
    view: ViewName | None = notebook.settings()["view"]
    if view:
        return view
    current = notebook.current()
    if current is None or picture.kernel() is None:
        return "text" if sys.stdout else "none"
    return choose.default(current.parent, current.shell.user_ns)


def open_run(path: str | os.PathLike[str], *, trust: bool = False) -> OpenedRun:
    """Open a recorded run: `path` is the record's folder, or the run's name (`%xla_runs`).

    It has the results, errors, output and history of the run, and displays as the last state of the
    panel.

    Its results are pickles, which can execute code when they are opened. A record that another user
    may have written, such as one copied from another machine, is refused unless you `trust` it.

    If lines of its `events.jsonl` cannot be read, they are skipped with a notice, and the run is
    not `ok`. Raises UsageError if there is no record, or if it is refused.
    """
    run = OpenedRun.open(path, trust=trust)
    run.record.own()
    keep(run)
    return run


def scope() -> Scope:
    """The contents of the notebook, or of a script: its globals, and its file as one cell.

    Raises UsageError in a process that multiprocessing started with "spawn": it has imported the
    script under another name, by which pickles find its functions.
    """
    current = notebook.current()
    if current and not current.runs_a_script:
        return current.scope()
    main = sys.modules["__main__"]
    imports_script = getattr(multiprocessing.current_process(), "_inheriting", False)
    if imports_script or vars(main).get("__name__") == "__mp_main__":
        raise UsageError(
            "A process that multiprocessing started with 'spawn' or 'forkserver' cannot launch "
            'ranks. Launch in the script itself, below `if __name__ == "__main__":` because that '
            "process imports the script, or start it with "
            '`multiprocessing.get_context("fork").Process`.'
        )
    file = getattr(main, "__file__", None)
    cells = []
    if file and Path(file).exists():
        source = "".join(linecache.getlines(file))
        cells.append(Cell(label=file, source=source, filename=file))
    return Scope(values=vars(main), cells=cells, lost=notebook.advice_on_lost())
