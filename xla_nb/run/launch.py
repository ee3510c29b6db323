"""Start a program on every rank: write its files, pickle its values, start it on an engine.

Every refusal happens before any rank has started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from xla_nb.engines import Engine
from xla_nb.engines.child import Feed
from xla_nb.errors import LaunchError
from xla_nb.linux import shortage
from xla_nb.messages import events
from xla_nb.messages.orders import Request, Turn
from xla_nb.pickling import module_objects
from xla_nb.process_state import torch_settings
from xla_nb.process_state.random_state import Inheritance
from xla_nb.process_state.settings import ProcessState
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap
from xla_nb.record.files import Folder, Record
from xla_nb.run.options import Options, environment
from xla_nb.run.run import Run
from xla_nb.runtimes.fit import Fit, OnWait

_SHARED_NOTICE = (
    "Ranks share tensors and arrays in shared memory (`share_memory_()`, DataLoader workers) with "
    "the notebook: every process sees every write."
)
_COPIED_NOTICE = (
    "Ranks get copies of tensors and arrays in shared memory: a write is not visible to other "
    "ranks or the notebook."
)
_OTHER_FOLDER = "Change to one that does (os.chdir), and run the cell again."


def launch(
    program: Program,
    options: Options,
    engine: Engine,
    on_wait: OnWait = lambda seconds, what: None,
    kind: type[Run] = Run,
    *,
    lives: bool = False,
    turn: Turn | None = None,
    folder: Folder | Record = "runs",
) -> Run:
    """Start a program on every rank; returns its run, of type `kind`, immediately.

    lives: the ranks then wait for programs; each of these is launched with its `turn`.
    folder: where its record is created.

    Raises UsageError, ShippingError or LaunchError, each before any rank has started.
    """
    user_env = environment(options, {})
    fit, path = Fit("", options.n, {}, ()), None
    if turn is None:
        with _refusing("Cannot detect this machine's devices"):
            fit = engine.fit(options.runtime, options.n, user_env)
    with _refusing("The notebook's working directory no longer exists", _OTHER_FOLDER):
        cwd = str(Path.cwd())
    name, advice = name_at(time.time()), "Set XLA_NB_HOME to a folder of yours with free space."
    with _refusing("Cannot write the run's files", advice):
        record = Record.create(name, folder)
        if turn is None:
            path = _write_program(record, program)
    request = Request(
        run=name,
        runtime=options.runtime,
        program="" if path is None else str(path),
        table="" if path is not None else ModuleMap.of(program).text(),
        record=str(record.path),
        entry=program.entry,
        takes_lock=program.takes_lock,
        n=options.n,
        hosts=options.hosts,
        slices=options.slices,
        wait=options.wait,
        user_env=user_env,
        cwd=cwd,
        # Also the folders of own modules, wherever the notebook has changed to since.
        sys_path=(*sys.path, *module_objects.of_this_process().folders()),
        authkey=bytes(multiprocessing.current_process().authkey),
        inheritance=Inheritance.of_this_process() if turn is None else None,
        state=ProcessState() if turn is None else None,
        label=program.label,
        magic=program.magic,
        binds=program.binds,
        drops=program.drops,
        mute=options.bg,
        lives=lives,
        turn=turn,
    )
    try:
        with _refusing("Cannot start the run"):
            feed = _start(program, request, fit, engine, on_wait)
    except BaseException:
        with contextlib.suppress(OSError):  # the launch has already failed with an error
            outcome = {"outcome": "failed", "headline": "not started", "elapsed": 0.0}
            record.close({"run": name, "cell": program.label, "ok": False, **outcome, "ranks": []})
        raise
    group = turn.group if turn else ""
    definitions = program.definitions
    run = kind(name, program.label, record, engine, feed, options, definitions, group)
    shared = (_SHARED_NOTICE if engine.here else _COPIED_NOTICE,) if program.parcel.shares() else ()
    if turn is None:
        notebook = Path(os.environ.get("JPY_SESSION_NAME", "")).name  # set by Jupyter's server
        run.take(events.Launched(label=run.label, called=program.called, notebook=notebook))
    left_out = torch_settings.left_out()
    for text in program.notes:
        run.take(events.Notice(text=text))
    # About the environment, the same at each launch, and about lasting facts of the notebook.
    for text in [*left_out, *shared, *fit.notices, *program.once]:
        run.take(events.Notice(text=text, once=True))
    run.follow()
    return run


@contextlib.contextmanager
def _refusing(failure: str, advice: str = "") -> Iterator[None]:
    """Raise LaunchError for an OSError, with advice if a shortage of something is not the cause."""
    try:
        yield
    except OSError as problem:
        advice = shortage(problem.errno) or advice
        raise LaunchError(f"{failure}: {problem}. {advice}".rstrip()) from None


def name_at(now: float) -> str:
    """A name for a run that starts then: names of one process sort in the order of its runs, also
    within a second (three digits count 4096ths of it). Three more distinguish processes.
    """
    second = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{second}-{int(now % 1 * 4096):03x}{secrets.token_hex(2)[:3]}"


def _write_program(record: Record, program: Program) -> Path:
    """Write the program's file to its record. Raises OSError after removing the record."""
    path = record.program(program.name)
    try:
        module_file.write(program, path)
    except OSError:
        record.discard()
        raise
    return path


def _start(program: Program, request: Request, fit: Fit, engine: Engine, on_wait: OnWait) -> Feed:
    if program.parcel.is_empty:
        parcel = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    else:
        parcel = program.parcel.to_memfd(share=engine.here)
    try:
        return engine.start(request, fit, parcel, on_wait)
    finally:
        os.close(parcel)
