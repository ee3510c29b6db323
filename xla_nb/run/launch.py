"""Start a program on every rank: its files written, its values pickled, an engine told.

Whatever is refused is refused before any rank has started.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from xla_nb.engines.base import Engine
from xla_nb.errors import LaunchError
from xla_nb.program import module_file
from xla_nb.program.build import Program
from xla_nb.protocol import events, pickling
from xla_nb.protocol.order import ARGUMENTS, Order
from xla_nb.protocol.random_state import Inheritance
from xla_nb.record.files import Record
from xla_nb.run.options import Options
from xla_nb.run.run import Run
from xla_nb.runtimes.fit import Fit, OnWait


def launch(
    what: Program,
    args: tuple[object, ...],
    options: Options,
    engine: Engine,
    resolve: Callable[[str], object],
    waiting: OnWait = lambda seconds, what: None,
) -> Run:
    """Start a program on every rank; gives the run at once.

    Raises UsageError, ShippingError or LaunchError, each before any rank has started.
    """
    fit = engine.fit(options.runtime, options.n, options.env)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    try:
        files = Record.create(name)
        path = files.program(what.name)
        module_file.write(what, path)
    except OSError as problem:
        raise LaunchError(
            f"the run's files cannot be written: {problem}. What to do: set XLA_NB_HOME to a "
            "folder of yours that has space"
        ) from None
    order = Order(
        run=name,
        runtime=options.runtime,
        program=str(path),
        record=str(files.path),
        entry=what.entry,
        takes_lock=what.takes_lock,
        by_name=frozenset(what.defines),
        n=options.n,
        user_env=options.env,
        ranks=fit.ranks,
        device=fit.device,
        env=fit.env,
        cwd=_directory(),
        sys_path=tuple(sys.path),
        authkey=bytes(multiprocessing.current_process().authkey),
        inheritance=Inheritance.of_this_process(),
    )
    try:
        sock = _start(what, args, order, fit, engine, waiting)
    except BaseException:
        files.close({"run": name, "ok": False, "headline": "not started", "ranks": []})
        raise
    run = Run(name, what.label, files, engine, options, resolve)
    for text in [*what.notes, *fit.notices]:
        run.take(events.Notice(text=text))
    run.follow(sock)
    return run


def _start(
    what: Program,
    args: tuple[object, ...],
    order: Order,
    fit: Fit,
    engine: Engine,
    waiting: OnWait,
) -> socket.socket:
    parcel = _pack(what, args)
    try:
        return engine.start(order, parcel, fit.imports, waiting)
    finally:
        os.close(parcel)


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise LaunchError(
            "the notebook's working directory no longer exists. What to do: go to one that does, "
            "`import os; os.chdir('/a/folder')`, and run the cell again"
        ) from None


def _pack(what: Program, args: tuple[object, ...]) -> int:
    groups = [*what.groups, {ARGUMENTS: args}]
    try:
        return pickling.send(groups, what.defines)
    except Exception as problem:
        named = [*what.groups, {f"--args[{n}]": value for n, value in enumerate(args)}]
        raise pickling.explain(named, what.defines, what.origins, problem) from None
