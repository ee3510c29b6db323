"""A clean process that imports torch_xla once and forks a fresh job for every scenario.

Reads requests as lines of JSON, each a list of jobs to run concurrently, and answers each with
their exit statuses. The ranks' results are in the jobs' folders, one file per rank.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch_xla.distributed.xla_multiprocessing  # noqa: F401  # so that jobs need not

from tests.simulation import programs, scenarios, this_rank
from tests.support.fork_job import fork_job
from xla_nb.messages.orders import HostGroup
from xla_nb.runtimes import xla
from xla_nb.runtimes.forking import Lifecycle


def serve() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        pids = [fork_job(partial(run_job, job)) for job in json.loads(line)]
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), flush=True)


def run_job(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a broken pool sends it to other ranks
    os.environ.update(job["env"], FOLDER=str(folder))
    if job["files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (job["files"], job["files"]))
    address = job["address"] and tuple(job["address"])  # JSON turns tuples into lists
    group = HostGroup(job["hosts"], job["index"], address)
    chips.append(xla.prepare(SimpleNamespace(device="CPU", ranks=job["ranks"], host_group=group)))
    if not (child := os.fork()):  # like cell code that forks before the ranks start
        os._exit(0)
    os.waitpid(child, 0)
    main = partial(run_rank, job["scenario"], job["folder"])
    chips[0].start(Lifecycle(enter, main, lambda death: None))


#: In a job and its ranks: the prepared runtime.
chips: list[xla.Chips] = []


def enter(local_rank: int, processes: int) -> None:
    chips[0].join(local_rank, processes)


def run_rank(scenario: str, folder: str, rank: int) -> None:
    signal.alarm(int(os.environ.get("ALARM", "60")))  # no test waits forever
    result: tuple[str, Any]
    try:
        module = scenarios if hasattr(scenarios, scenario) else programs
        result = "returned", getattr(module, scenario)(rank)
        this_rank.leave("returned")
    except BaseException as error:
        this_rank.leave(f"raised {type(error).__name__}")
        result = type(error).__name__, f"{error}\n{traceback.format_exc()}"
    unfinished = Path(folder, f"{rank}.partial")
    unfinished.write_bytes(pickle.dumps(result))
    unfinished.rename(Path(folder, f"{rank}.result"))


if __name__ == "__main__":
    serve()
    os._exit(0)  # torch takes seconds to shut down
