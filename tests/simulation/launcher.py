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

import torch.distributed as dist
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla._internal import pjrt

from tests.simulation import programs, scenarios, this_rank
from tests.support.fork_job import fork_job
from xla_nb.runtimes import xla
from xla_nb.simulation import host


def serve() -> None:
    store = 0
    answer: Any
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request == "open store":
            store, answer = fork_store()
        elif request == "close store":
            os.kill(store, signal.SIGKILL)
            answer = os.waitpid(store, 0)[1]
        else:
            pids = [fork_job(partial(run_job, job)) for job in request]
            answer = [os.waitpid(pid, 0)[1] for pid in pids]
        print(json.dumps(answer), flush=True)


def fork_store() -> tuple[int, int]:
    """Fork a process that serves a TCPStore; return its pid and port."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(served.port).encode())
        signal.pause()
    os.close(writer)
    port = int(os.read(reader, 10))
    os.close(reader)
    return pid, port


def run_job(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a broken pool sends it to other ranks
    os.environ.update(job["env"], FOLDER=str(folder))
    share = job["share"]
    if share.get("store"):  # JSON turns tuples into lists
        share["store"] = tuple(share["store"])
    if job["files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (job["files"], job["files"]))
    host.install(host.HostShare(**share))
    if not (child := os.fork()):  # like cell code that forks before the ranks start
        os._exit(0)
    os.waitpid(child, 0)
    pjrt.initialize_multiprocess = enter
    xmp.spawn(run_rank, args=(job["scenario"], job["folder"]), start_method="fork")


own_way_in = pjrt.initialize_multiprocess


def enter(local_rank: int, processes: int) -> None:
    """Start a rank as a run does: its function runs in the main thread, which gets signals."""
    pools = SimpleNamespace(ThreadPoolExecutor=xla._device_pool)
    pjrt.concurrent = SimpleNamespace(futures=pools)
    own_way_in(local_rank, processes)


def run_rank(rank: int, scenario: str, folder: str) -> None:
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
