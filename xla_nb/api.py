"""`xla_nb.spawn`: a function on every rank, from a notebook, IPython or a plain script.

The rule: the magic and the function launch through the same lines.
"""

from __future__ import annotations

import atexit
import functools
import linecache
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from xla_nb import notebook
from xla_nb.engines.base import Engine
from xla_nb.engines.local import LocalEngine
from xla_nb.engines.ray.engine import ClusterHandle, RayEngine, address
from xla_nb.errors import LaunchError, UsageError
from xla_nb.program.build import Cell, Program, Scope, build_call
from xla_nb.rank.process import is_rank
from xla_nb.run import stacks
from xla_nb.run.launch import launch
from xla_nb.run.options import Options
from xla_nb.run.run import Run
from xla_nb.runtimes.fit import OnWait
from xla_nb.topology import drawing, picture
from xla_nb.views import choose, loop
from xla_nb.views.saved.opened import OpenedRun


@functools.cache
def engine() -> LocalEngine:
    """This process's engine; it ends with the process."""
    made = LocalEngine()
    atexit.register(made.close)
    return made


@functools.cache
def _clusters() -> dict[str, ClusterHandle]:
    """The Ray clusters that this process has used, by address."""
    made: dict[str, ClusterHandle] = {}
    atexit.register(release)
    return made


def cluster_diagram(options: Options) -> drawing.Diagram:
    """The hosts that a cluster gives for launches with these options; they are held for the next.

    Raises XlaNbError where it cannot give them."""
    engine = _engine_for(options)
    assert isinstance(engine, RayEngine)
    seats = engine.look(_waiting())
    accelerator = seats[0].host.environ.get("TPU_ACCELERATOR_TYPE")
    return picture.of(seats, options.n, accelerator, f"of a Ray cluster (--on {options.on})")


def release() -> None:
    """Give back the hosts of Ray clusters that are held for the next launch, and end what runs
    there; they are given back by themselves after 10 minutes without a launch, and at the end."""
    clusters = _clusters()
    while clusters:
        clusters.popitem()[1].close()


def _engine_for(options: Options) -> Engine:
    """Where the ranks of a launch are started. Raises UsageError."""
    if options.on == "local":
        for name, value in (("hosts", options.hosts), ("slices", options.slices)):
            if value not in (None, 1):
                raise UsageError(
                    f"--{name} {value}: this machine is one host. What to do: add `--on ray` for "
                    "the hosts of a Ray cluster; `%xla_topology` shows on paper how they would be"
                )
        return engine()
    if options.on != "ray" and not options.on.startswith("ray://"):
        raise UsageError(f"--on {options.on}: there are local, ray and ray://HOST:PORT")
    where = address(options.on, {**os.environ, **options.env})
    cluster = _clusters().setdefault(where, ClusterHandle(where))
    return RayEngine(cluster, options.hosts, options.slices, options.wait)


@functools.cache
def _launched() -> list[Run]:
    """This process's runs, ended ones until somebody looks."""
    return []


def living() -> list[Run]:
    """The runs that have not ended, oldest first."""
    runs = _launched()
    runs[:] = [run for run in runs if not run.done]
    return list(runs)


def spawn(  # noqa: PLR0913 # an argument for each option of the magic
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    n: int | None = None,
    timeout: float | None = None,
    *,
    env: Mapping[str, str] | None = None,
    grace: float = 5.0,
    runtime: str = "xla",
    on: str = "local",
    hosts: int | None = None,
    slices: int | None = None,
    wait: float = 0.0,
    keep_going: bool = False,
    bg: bool = False,
    view: choose.ViewName | None = None,
) -> Run:
    """Call ``fn(index, *args)`` on every rank, as `torch_xla.launch` would; gives the Run.

    n: how many ranks; by default all of the TPU's, or 4 of a simulated host.
    timeout: seconds after which the run is stopped; grace: seconds that the other ranks may go
    on when one has failed. env: environment variables of the ranks.
    runtime: what a rank joins: "xla"; "spmd", one process that owns all devices (`n` of them
    without a TPU); "torchax", one JAX world of `n` processes.
    on: "local", "ray" or "ray://HOST:PORT": the ranks are on this machine, or `n` of them on each
    of `hosts` machines of a Ray cluster, by default all that are free; `slices`: TPU slices that
    these are in; `wait`: for how many seconds they may be waited for.
    keep_going: give a failed Run back instead of raising. bg: return at once.
    view: "panel", "text" or "none"; by default what the front end can show.

    A parameter of `fn` named `lock` that `args` does not reach receives a lock that all ranks
    share. Raises RunFailed when a rank fails, and a subclass of XlaNbError, before anything has
    started, when the function or its arguments cannot be sent.
    """
    here = notebook.current()
    scope = here.scope(launching=False) if here else _script()
    resolve = here.resolve if here else scope.values.__getitem__
    what = build_call(fn, scope, args=args, name="xla_nb_call")
    options = Options(n, dict(env or {}), timeout, grace, runtime, on, hosts, slices, wait)
    return run(what, args, options, resolve, keep_going=keep_going, bg=bg, view=view)


def run(
    what: Program,
    args: tuple[object, ...],
    options: Options,
    resolve: Callable[[str], object],
    *,
    keep_going: bool,
    bg: bool,
    view: choose.ViewName | None = None,
    launched: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Launch a program and, unless `bg`, show it until it has ended."""
    if is_rank():
        raise UsageError(
            "this code already runs on a rank, and a rank cannot start ranks. What to do: launch "
            "from the notebook, not from the function that is launched"
        )
    try:
        started = launch(what, args, options, _engine_for(options), resolve, _waiting())
    except KeyboardInterrupt:
        raise LaunchError(_interrupted(options)) from None
    _launched().append(started)
    launched(started)
    kind = view or default_view()
    if bg:
        if kind == "panel":
            loop.follow_behind(started, choose.make(kind, started))
        return started
    loop.follow(started, choose.make(kind, started))
    if not keep_going:
        started.check(brief=kind == "panel")
    return started


def _interrupted(options: Options) -> str:
    """What becomes of a launch that was interrupted."""
    if options.on == "local":
        return (
            "you interrupted the launch before any rank was started; torch_xla goes on being "
            "imported meanwhile, and the next launch waits for what is left of that"
        )
    return (
        "you interrupted the launch: what it had started on the cluster's hosts is ended there. "
        "Hosts that were ready are held for the next launch, those that were still awaited are "
        "not. What to do: run the cell again, or give the hosts back (`xla_nb.api.release()`)"
    )


def default_view() -> choose.ViewName:
    """The view that the current cell's front end can show."""
    here = notebook.current()
    return choose.default(here.parent, here.shell.user_ns) if here else "text"


def ask_stacks(run: Run) -> str:
    """Where each rank of a run is now, in lines to print."""
    return stacks.text(stacks.Inquiry(run).wait())


def open_run(path: str | os.PathLike[str]) -> OpenedRun:
    """A run from its record: `path` is the record's folder, or the run's name (`%xla_runs`).

    What it gives has the results, errors, output and history of the run, and shows itself as
    the panel's last state. Raises UsageError when no run is recorded there.
    """
    here = notebook.current()
    resolve = here.resolve if here else vars(sys.modules["__main__"]).__getitem__
    return OpenedRun.open(path, resolve)


def _waiting() -> OnWait:
    said: list[str] = []

    def waiting(seconds: float, what: str) -> None:
        if seconds > 0.3 and what not in said:
            said.append(what)
            print(what, flush=True)

    return waiting


def _script() -> Scope:
    """What a plain script holds: its globals, and its file as one cell."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    cells = []
    if file and Path(file).exists():
        source = "".join(linecache.getlines(file))
        cells.append(Cell(label=file, source=source, filename=file))
    return Scope(values=vars(main), cells=cells)
