"""A clean process that imports torch_xla, JAX and torchax, and forks a job for each scenario.

Reads requests as JSON lines, and answers each when its job has ended. The job's folder has the
ranks' results, in the format of real ranks, and their exit statuses in `deaths`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import jax  # noqa: F401
import torch_xla  # noqa: F401
import torchax  # noqa: F401

from tests.support.fork_job import fork_job
from tests.support.worlds import scenarios
from xla_nb.messages.events import ProcessDied
from xla_nb.pickling import results
from xla_nb.runtimes import jax_world
from xla_nb.runtimes.forking import Lifecycle, forget_exit_handlers, fork_ranks


def serve() -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    print(json.dumps({"threads": threads, "backend": jax_world.backend_started()}), flush=True)
    for line in sys.stdin:
        pid = fork_job(partial(run_job, **json.loads(line)))
        print(os.waitpid(pid, 0)[1], flush=True)


def run_job(scenario: str, ranks: int, folder: str, env: dict[str, str]) -> None:
    home = Path(folder)
    redirect(home, "job")
    os.environ.update(env)
    forget_exit_handlers()
    jax_world.install_guard(ranks)
    entry = scenarios.load(scenario)
    coordinator = jax_world.Coordinator(ranks)
    world = jax_world.World(coordinator.address, ranks, "cpu", ranks)
    deaths: dict[int, int] = {}

    def enter(rank: int, count: int) -> None:
        signal.alarm(60)  # no test waits forever
        redirect(home, f"{rank}")
        (home / f"{rank}.pid").write_text(str(os.getpid()))
        began = time.monotonic()
        try:
            jax_world.join(world, rank)
        except BaseException as error:
            send_home(home, rank, type(error).__name__, str(error))
            raise
        (home / f"{rank}.joined").write_text(str(time.monotonic() - began))

    def main(rank: int) -> None:
        try:
            how, value = "returned", entry(rank)
        except BaseException as error:
            error = jax_world.consequence(error) or error
            how, value = type(error).__name__, str(error)
        try:
            send_home(home, rank, how, value)
        except Exception as error:
            send_home(home, rank, type(error).__name__, f"{error}. {getattr(error, 'advice', '')}")
        jax_world.leave(how)

    def report(death: ProcessDied) -> None:
        deaths[death.pid] = death.status

    try:
        fork_ranks(ranks, Lifecycle(enter, main, report))
    finally:
        coordinator.close()
        (home / "deaths").write_text(json.dumps(deaths))


def send_home(home: Path, rank: int, how: str, value: object) -> None:
    path = home / f"{rank}.result"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        results.pack_home((how, value)).write(fd)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(fd)


def redirect(home: Path, stem: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for stream, name in ((1, "out"), (2, "err")):
        fd = os.open(home / f"{stem}.{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(fd, stream)
        os.close(fd)


if __name__ == "__main__":
    serve()
    os._exit(0)  # torch takes seconds to shut down
