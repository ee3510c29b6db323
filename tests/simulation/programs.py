"""Ranks run many programs one after another, like cells of a notebook; many of them fail.

The plan of each program is derived from a seed, so every rank knows what to do and what each
collective must return. Ranks do not wait for each other between programs.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import Tensor

from tests.simulation import this_rank
from xla_nb.simulation.agreement import CollectiveMismatch
from xla_nb.simulation.collectives import Reduction, _Meeting
from xla_nb.simulation.memory import Walk
from xla_nb.simulation.mesh import Mesh

SIZES = (3, 40_000, 150_000)  # elements: for a frame, for a board, for memory or streams
FAILURES = (
    "nothing",
    "raises before",
    "raises after",
    "raises inside",
    "is interrupted",
    "is interrupted twice",
    "returns early",
    "calls another",
)


class Bad(Exception):
    """The error that a plan makes a rank raise."""


@dataclass(frozen=True)
class Plan:
    """The steps of a program's members. `victim` fails at step `at`, as `failure` says."""

    number: int
    members: tuple[int, ...]
    steps: tuple[tuple[str, int, tuple[tuple[int, ...], ...]], ...]  # operation, elements, groups
    victim: int
    failure: str
    at: int
    delay: float  # seconds until an interrupt


def plan(seed: int, number: int, size: int) -> Plan:
    """Plan program `number`. Even-numbered programs do not fail and run on all ranks."""
    choose = random.Random(f"{seed} {number}")
    everyone = range(size)
    checks = number % 2 == 0
    members: Sequence[int] = everyone
    if not checks and choose.random() < 0.3:
        members = sorted(choose.sample(everyone, choose.randint(2, size)))
    steps = []
    for index in range(len(SIZES) * 2 if checks else choose.randint(1, 4)):
        count = SIZES[index % 3] if checks else choose.choice(SIZES)
        operations = ["sum", "gather", "exchange", "rendezvous"]
        if len(members) < size:
            operations.remove("rendezvous")
        groups = _groups(choose, members, size)
        steps.append((choose.choice(operations), count, groups))
    failure = "nothing" if checks else choose.choice(FAILURES)
    at = choose.randrange(len(steps))
    return Plan(
        number,
        tuple(members),
        tuple(steps),
        choose.choice(members),
        failure,
        at,
        choose.choice((0, 0.0005, 0.002, 0.01)) * choose.random(),
    )


def _groups(choose: random.Random, members: Sequence[int], size: int) -> tuple[Any, ...]:
    """No groups (all ranks), or equal-sized groups of the members."""
    whole = len(members) == size
    if whole and choose.random() < 0.6:
        return ()
    shuffled = choose.sample(members, len(members))
    count = choose.choice([n for n in range(2, len(members) + 1) if len(members) % n == 0])
    return tuple(tuple(shuffled[n : n + count]) for n in range(0, len(members), count))


def values(number: int, step: int, rank: int, count: int) -> Tensor:
    """Whole numbers, so that sums are exact in any order."""
    return (torch.arange(count) % 97 + 7 * number + 31 * step + 1000 * rank).float()


def call(step: int, plan: Plan, rank: int) -> None:
    """Run a step and check its result."""
    operation, count, groups = plan.steps[step]
    group = next((each for each in groups if rank in each), range(xr.world_size()))
    rows = [values(plan.number, step, other, count) for other in group]
    lists = [list(each) for each in groups] or None
    if operation == "rendezvous":
        sent = [values(plan.number, step, other, count).numpy().tobytes() for other in ALL]
        assert xm.rendezvous(f"{step}", sent[rank], []) == sent, "a wrong payload"
        return
    mine = values(plan.number, step, rank, count).to("xla")
    if operation == "sum":
        got, right = xm.all_reduce("sum", mine, groups=lists), sum(rows[1:], rows[0])
    elif operation == "gather":
        got, right = xm.all_gather(mine, groups=lists), torch.cat(rows)
    else:
        parts, here = len(group), list(group).index(rank)
        whole = count // parts * parts
        got = xm.all_to_all(mine[:whole], 0, 0, parts, groups=lists)
        right = torch.cat([row[:whole].chunk(parts)[here] for row in rows])
    assert torch.equal(got.cpu(), right), f"{operation} of {count} numbers is wrong"


ALL: list[int] = []


def run(plan: Plan, rank: int) -> None:
    for step in range(len(plan.steps)):
        fails = plan.victim == rank and plan.at == step
        if fails and plan.failure == "raises before":
            raise Bad
        if fails and plan.failure == "returns early":
            return
        if fails and plan.failure == "calls another":
            xm.all_reduce("max", torch.ones(5).to("xla"), groups=[list(plan.members)])
            return
        with inside(plan) if fails else nothing():
            call(step, plan, rank)
        if fails and plan.failure == "raises after":
            raise Bad


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def inside(plan: Plan) -> Iterator[None]:
    """Make the victim fail inside a collective: while it reduces, between two chunks of memory or
    of a stream, or while it waits."""
    if plan.failure.startswith("is interrupted"):
        with interrupted(plan.delay, 2 if plan.failure.endswith("twice") else 1):
            yield
        return
    if plan.failure != "raises inside":
        yield
        return
    owner, name = [
        (Reduction, "fold"),
        (Walk, "_collect"),
        (_Meeting, "_meet_again"),
        (Mesh, "poll"),
    ][plan.number // 2 % 4]
    own = getattr(owner, name)
    counted = iter(range(1000))

    def fail(*arguments: Any) -> Any:
        if next(counted) == plan.number % 3:
            raise Bad
        return own(*arguments)

    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, own)


SENDERS: list[threading.Thread] = []


@contextmanager
def interrupted(delay: float, times: int) -> Iterator[None]:
    """Send a real signal during the rest of the program, or after it."""

    def send() -> None:
        for _ in range(times):
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGINT)

    SENDERS.append(threading.Thread(target=send))
    SENDERS[-1].start()
    yield


def interrupt(_: int, frame: FrameType | None) -> None:
    """Raise inside a running program; ignore signals between programs, as between cells."""
    while frame is not None:
        if frame.f_code is run.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back


def many_programs(rank: int) -> dict[str, int]:
    """Count the ways in which programs ended on this rank."""
    seed, count = int(os.environ["SEED"]), int(os.environ["PROGRAMS"])
    size = xr.world_size()
    ALL[:] = range(size)
    signal.signal(signal.SIGINT, interrupt)
    ends: dict[str, int] = {}
    for number in range(1, count + 1):
        program = plan(seed, number, size)
        if rank not in program.members:
            continue
        this_rank.begin(number, program.members if len(program.members) < size else None)
        end = how(lambda program=program: run(program, rank), program, rank)  # type: ignore[misc]
        this_rank.leave(end)
        ends[end] = ends.get(end, 0) + 1
        while SENDERS:
            SENDERS.pop().join()
    return ends


def how(work: Callable[[], None], plan: Plan, rank: int) -> str:
    """Run a program and return how it ended; fail if the plan does not allow that."""
    try:
        work()
    except (Bad, KeyboardInterrupt) as error:
        assert plan.victim == rank, f"{plan}: {error!r}"
        return f"raised {type(error).__name__}"
    except CollectiveMismatch as error:
        assert plan.failure not in ("nothing",), f"{plan}: {error}"
        return "raised CollectiveMismatch"
    except BaseException as error:
        raise AssertionError(f"rank {rank} in {plan}: {error!r}") from error
    return "returned"


# ---------------------------------------------------------------- single behaviors


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except CollectiveMismatch as error:
        return str(error)
    return "nothing"


def summed(rank: int, count: int = 3, groups: list[list[int]] | None = None) -> float:
    """The largest element of the sum of `rank + 1` over the ranks."""
    return (
        xm.all_reduce("sum", torch.full((count,), rank + 1.0).to("xla"), groups=groups).max().item()
    )


def on_some_ranks(rank: int) -> list[object]:
    """Program 1 runs on ranks 0 and 2, and program 2 on all."""
    found: list[object] = []
    if rank in (0, 2):
        this_rank.begin(1, [0, 2])
        found += [summed(rank, count, [[0, 2]]) for count in SIZES]
        found += [told(lambda: summed(rank)), told(lambda: summed(rank, groups=[[0, 2], [1, 3]]))]
        found += [
            told(lambda: summed(rank, groups=[[0, 2, 3], [1]])),
            told(lambda: xm.rendezvous("all")),
        ]
        this_rank.leave("returned")
    this_rank.begin(2)
    return [*found, summed(rank)]


def process_groups(rank: int) -> list[object]:
    """Rank 0 raises before the process group exists. The next program creates it with a subgroup,
    which a later program uses alone; the last program re-creates the process group."""
    this_rank.begin(1)
    found: list[object] = []
    init = functools.partial(dist.init_process_group, "xla", init_method="xla://")
    if rank == 0:
        this_rank.leave("raised ValueError")
    else:
        # Another rank may have failed for the same reason and be named as well.
        found.append("rank 0: raised ValueError" in told(init))
        this_rank.leave("raised CollectiveMismatch")
    this_rank.begin(2)
    init()
    pair = dist.new_group([1, 3])
    this_rank.leave("returned")
    if rank in (1, 3):
        this_rank.begin(3, [1, 3])
        value = torch.full((2,), float(rank)).to("xla")
        dist.all_reduce(value, group=pair)
        found.append(value.cpu().tolist())
        found.append(told(lambda: dist.all_reduce(value)).partition(",")[0])
        this_rank.leave("returned")
    this_rank.begin(4)
    dist.destroy_process_group()
    init()
    gloo = dist.new_group(backend="gloo")
    number = torch.ones(1)
    dist.all_reduce(number, group=gloo)
    dist.destroy_process_group()
    init()
    dist.all_reduce(number, group=dist.new_group(backend="gloo"))
    return [*found, number.item()]


def a_thread_that_outlives_its_program(rank: int) -> list[object]:
    """A thread of rank 0 is waiting for the other ranks when its program ends."""
    begun = Path(os.environ["FOLDER"], "begun")
    found: list[object] = []
    this_rank.begin(1)
    if rank == 0:
        thread = threading.Thread(target=lambda: found.append(told(lambda: summed(rank, SIZES[2]))))
        thread.start()
        until(lambda: this_rank.waiting() is not None)
    else:
        until(begun.exists)
    this_rank.leave("returned")
    this_rank.begin(2)
    begun.touch()
    right = [summed(rank, count) for count in SIZES]
    if rank == 0:
        thread.join()
    return [*found, *right]


def a_thread_that_is_busy_in_a_collective(rank: int) -> list[object]:
    """A thread of rank 0 is inside an all_reduce in shared memory when rank 0 begins the next
    program; the other ranks have given up."""
    found: list[object] = []
    gather, begun, goes_on = Walk._collect, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        if threading.current_thread() is thread:
            begun.set()
            assert goes_on.wait(60)
        gather(*arguments)

    def call() -> None:
        found.append(told(lambda: summed(rank, SIZES[2])))

    Walk._collect = slow  # type: ignore[method-assign]
    this_rank.begin(1)
    thread = threading.Thread(target=call)
    if rank == 0:
        thread.start()
        assert begun.wait(60)
    else:
        call()
    this_rank.leave("returned")
    this_rank.begin(2)
    threading.Timer(0.2, goes_on.set).start()
    right = [summed(rank, count) for count in SIZES]
    if rank == 0:
        thread.join()
    return [*found, *right]


def a_thread_of_an_earlier_program(rank: int) -> list[object]:
    """A thread of an earlier program and the main thread call a collective at the same time."""
    found: list[object] = []
    starts = threading.Event()

    def call() -> None:
        starts.wait()
        found.append(told(lambda: summed(rank + 100)))

    this_rank.begin(1)
    thread = threading.Thread(target=call, name="trainer")
    thread.start()
    this_rank.leave("returned")
    told_between = told(lambda: summed(rank))
    this_rank.begin(2)
    starts.set()
    found.append(summed(rank))
    thread.join()
    return [told_between, *sorted(found, key=str)]


def ends_without_having_read(rank: int) -> float:
    """Rank 3 skips a thousand programs whose ends the other ranks announce to each other."""
    if rank != 3:
        for number in range(1, 1001):
            this_rank.begin(number, [0, 1, 2])
            this_rank.leave("returned")
    this_rank.begin(1001)
    return summed(rank)


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def what_a_failed_program_left_pending(rank: int) -> list[object]:
    """Program 1 fails on rank 0 after and inside collectives whose results nobody has read. Then
    each rank alone executes its pending operations."""

    def fails(value: Tensor) -> Tensor:
        reduced = xm.all_reduce("sum", value + 1)
        if rank == 0:
            raise Bad
        return reduced * 2

    this_rank.begin(1)
    in_place = torch.full((2,), float(rank)).to("xla") + 1
    xm.all_reduce("sum", [in_place])
    pending = xm.all_reduce("sum", in_place * 2) + rank
    for call in (
        fails,
        torch_xla.compile(fails, full_graph=True),
        torch.compile(fails, backend="openxla"),
    ):
        try:
            call(in_place)
        except Bad:
            continue
    this_rank.leave("raised Bad" if rank == 0 else "returned")
    this_rank.begin(2, [rank])
    waited = this_rank.waited()
    torch_xla.sync()
    found = [in_place.cpu().tolist(), (pending - rank).cpu().tolist()]
    alone = this_rank.waited() == waited
    this_rank.leave("returned")
    this_rank.begin(3)
    return [*found, alone, torch_xla._XLAC._get_allow_execution(), summed(rank)]
