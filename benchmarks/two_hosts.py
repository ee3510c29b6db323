"""`all_reduce` over two simulated hosts of two ranks, in turn with gloo in four processes.

The hosts are jobs on this machine that meet at a store, like the hosts of a Ray cluster. Ours goes
from device to device; gloo's is the bare `all_reduce` of tensors that are on the host already.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import Row

ROUNDS = 5
COUNTS = [4_250_000] * 2
TIMES = 8


def rows(rounds: int = ROUNDS) -> Iterator[Row]:
    ours, copies, gloo = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        ended = subprocess.run(
            [sys.executable, "-m", __spec__.name], capture_output=True, text=True, check=True
        )
        for name, taken in (("ours", ours), ("copies", copies), ("gloo", gloo)):
            found = re.search(rf"{name} ([\d.]+)", ended.stdout)
            assert found, ended.stderr
            taken.append(float(found[1]))
    both, raw = statistics.median(ours), statistics.median(gloo)
    what = "all_reduce of 34 MB in two, 2 hosts of 2 ranks, "
    yield Row(f"{what}/ gloo's", both, raw, "ms")
    most = 1.5 * raw + statistics.median(copies)
    yield Row(f"{what}/ 1.5 of gloo's and a copy", both, most, "ms", aim=1)


def timed(step: Callable[[], object]) -> float:
    """The median time of a call in milliseconds, without the first two."""
    taken = []
    for _ in range(2 + TIMES):
        begun = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken[2:])


def rank(index: int) -> None:
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    device = torch_xla.device()
    values = [torch.ones(count, device=device) for count in COUNTS]
    torch_xla.sync(wait=True)

    def reduce() -> None:
        xm.all_reduce("sum", values, scale=0.25)
        torch_xla.sync(wait=True)

    def copy() -> None:
        held = [value.cpu().to(device) for value in values]
        torch_xla.sync(wait=True)
        del held

    figures = timed(reduce), timed(copy)
    if index == 0:
        print("ours", figures[0], "copies", figures[1], flush=True)


def host(index: int, port: int) -> None:
    import torch_xla.distributed.xla_multiprocessing as xmp

    from xla_nb.messages.orders import HostGroup
    from xla_nb.simulation import host

    host.install(2, HostGroup(2, index, ("127.0.0.1", port)))
    xmp.spawn(rank, start_method="fork")


def gloo(index: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=index, world_size=4)
    torch.set_num_threads(1)
    values = [torch.ones(count) for count in COUNTS]
    figure = timed(lambda: [dist.all_reduce(value) for value in values])
    if index == 0:
        print("gloo", figure, flush=True)


def forked(work: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def main() -> None:
    import torch.distributed as dist
    import torch_xla  # noqa: F401  # imported once, before forking

    from xla_nb.topology import addresses

    reader, writer = os.pipe()

    def serve() -> None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        signal.pause()

    server = forked(serve)
    port = int(os.read(reader, 10))
    with addresses.hold_port("127.0.0.1") as held:
        held_port = held.getsockname()[1]
        for pid in [forked(lambda index=index: host(index, held_port)) for index in range(2)]:  # type: ignore[misc]
            os.waitpid(pid, 0)
    for pid in [forked(lambda index=index: gloo(index, port)) for index in range(4)]:  # type: ignore[misc]
        os.waitpid(pid, 0)
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)


if __name__ == "__main__":
    main()
