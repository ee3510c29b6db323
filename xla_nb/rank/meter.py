"""A rank's meter: a thread that samples what the rank is doing, and sends its stack on request.

It must not disturb the rank: it reads counters that torch_xla and Linux keep anyway, holds the
GIL for microseconds a few times a second, and raises nothing.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import operator
import os
import random
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType, ModuleType
from typing import Any

from xla_nb import memory
from xla_nb.messages.channel import Sender
from xla_nb.messages.events import RankAt
from xla_nb.program import tracebacks
from xla_nb.rank.asking import askers
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.reporting import Book, Progress
from xla_nb.rank.step_changes import StepChanges
from xla_nb.record import private, sample
from xla_nb.record.files import Record, is_of_disk
from xla_nb.record.sample import DATA, INPUT, Activity, Loop, Sample, ticks
from xla_nb.runtimes import Counts, Prepared
from xla_nb.stopwatch import Wait

#: Average seconds between samples, and between checks for a request for stacks.
TICK = 0.25
#: Seconds before the first sample of a process.
_FIRST_DELAY = 0.02
_IDLE_TICKS = 40  # ticks between samples of an idle live rank
_WINDOW = 30.0  # a loop's rate is measured over one to two times so many seconds,
_MIN_WINDOW = 1.0  # and known after so many
_STALL, _STALL_ITEMS = 3.0, 10  # a loop is stalled after so many seconds and item times
_COMPILING_SHARE = 0.1  # an item compiled if compiling took this share of the time between looks
_LONGEST = 300  # most characters of an operation in a sample
_BLOCKED_AFTER = 1.0  # seconds in one blocking call after which the rank counts as blocked


class Compiling:
    """Detects whether a graph is being compiled: a look-up missed, and compilation is not done.

    torch_xla has no counter for that. Misses minus compiles is not enough: some graphs are compiled
    without a look-up, and a compilation may fail. So the difference is compared with its minimum so
    far, which is reset at every hit, since a rank that looks up a graph is not compiling.
    (Executions do not help: the previous step may execute while this one is compiled.)
    """

    def __init__(self) -> None:
        self._min_pending = self._hits = self._misses = 0
        self._start: tuple[float, int] | None = None  # time, and compiles then

    def lasting(self, counts: Counts, now: float) -> float | None:
        """Seconds since the compilation in progress was first seen; None if there is none."""
        pending = counts.misses - counts.compiles
        hit = counts.hits != self._hits and counts.misses == self._misses
        self._min_pending = pending if hit else min(self._min_pending, pending)
        self._hits, self._misses = counts.hits, counts.misses
        if pending == self._min_pending:
            self._start = None
            return None
        if self._start is None or self._start[1] != counts.compiles:
            self._start = now, counts.compiles
        return now - self._start[0]


class Rates:
    """Items per second of each loop over its last half to whole minute, excluding the first item
    and items that compiled. Loops at the same depth with the same label and total share a rate
    (labels may differ in numbers: `epoch 3`), so short loops have one, and the next begins with
    it."""

    def __init__(self) -> None:
        #: By loop, at the last look: items, the time when they were done, and seconds of compiling.
        self._marks: dict[Progress[Any], tuple[int, float, float]] = {}
        self._paces: dict[object, _Pace] = {}  # by depth, label and total
        self._compiled = 0.0  # seconds, until the last look

    def look(
        self, loops: list[Progress[Any]], compiled: float = 0.0, now: float = 0.0
    ) -> tuple[Loop, ...]:
        """The loops with their rates. `compiled`: seconds of compiling until `now`."""
        # Compiling since the last look may have happened before or after an item was done: it
        # counts for both.
        compiled_before, self._compiled = min(compiled, self._compiled), compiled
        previous, self._marks = self._marks, {}
        shown = []
        for depth, loop in enumerate(loops):
            label = re.sub(r"\d+", "0", loop.label)
            pace = self._paces.setdefault((depth, label, loop.total), _Pace())
            mark = loop.done, loop.at, compiled_before
            done, at, compiled_at = previous.get(loop, mark)
            items, seconds = mark[0] - done, mark[1] - at
            if items > 0 and done and compiled - compiled_at <= _COMPILING_SHARE * seconds:
                pace.add(items, seconds)
            self._marks[loop] = mark if items else (done, at, compiled_at)
            since = max(0.0, now - loop.at)
            shown.append(
                Loop(
                    label=loop.label,
                    done=loop.done,
                    total=loop.total,
                    rate=pace.rate(0.0 if loop.finished else since),
                    since=since,
                    finished=loop.finished,
                    number=loop.number,
                )
            )
        return tuple(shown)


@dataclass
class _Pace:
    """Items and the seconds that they took, in the last full half minute and since then."""

    previous: tuple[int, float] = 0, 0.0
    items: int = 0
    seconds: float = 0.0

    def add(self, items: int, seconds: float) -> None:
        if self.seconds > _WINDOW:
            self.previous, self.items, self.seconds = (self.items, self.seconds), 0, 0.0
        self.items, self.seconds = self.items + items, self.seconds + seconds

    def rate(self, since: float) -> float | None:
        """Items per second; None if unknown, and if the next item, which has taken `since` so far,
        takes so much longer than others that the loop counts as stalled."""
        seconds = self.previous[1] + self.seconds
        if seconds < _MIN_WINDOW:
            return None
        rate = (self.previous[0] + self.items) / seconds
        return None if since > max(_STALL, _STALL_ITEMS / rate) else rate


class Meter:
    """A meter of the thread that creates it, which runs the user's function on a rank: it writes
    samples to the record, and sends the rank's place whenever the record's `stacks_request` is
    touched. Use it in a `with` statement.

    `has_returned`: the function has returned, and its result is being sent."""

    def __init__(
        self,
        rank: int,
        record: Record,
        labels: Container[str],
        sender: Sender,
        book: Book,
        gauges: Prepared,
        lock: SharedLock,
    ) -> None:
        self._rank, self._record, self._labels = rank, record, labels
        self._sender, self._book, self._gauges, self._lock = sender, book, gauges, lock
        self._every = ticks(gauges.ranks)
        self.has_returned = False
        self._handler: object = None  # of SIGINT, while a program runs; None over all programs
        self._changes = StepChanges(labels)
        self._initial_counts = Counts()
        self._initial: dict[str, float] = {}
        self._idle_since: float | None = None  # idle since, at the last tick
        self._thread = threading.get_ident()
        self._standstill = Standstill(self._thread, sample.silence(gauges.ranks))
        self._memory: int | None = None
        self._compiling = Compiling()
        self._rates = Rates()
        self._activity: tuple[Activity, float] = ("running", time.time())
        self._file: int | None = None
        self._written = 0
        self._ticks, self._answered = 0, 0
        self.is_over = False
        self._sampling = threading.Lock()

    def __enter__(self) -> None:
        sampler().begin(self)

    def __exit__(self, *_: object) -> None:
        sampler().end(self)

    def begin_program(self) -> None:
        """Measure only the program that begins now: the process may have run others before."""
        self._handler = signal.getsignal(signal.SIGINT)
        with contextlib.suppress(Exception):  # a failing backend: the first sample reports it
            self._initial_counts, self._initial = self._gauges.counts(), self._totals()

    def _totals(self) -> dict[str, float]:
        """What this thread's process has counted since it began, over all its programs, as fields
        of a sample. Waits in collectives may not be visible."""
        waited = self._gauges.waited()
        return {
            **({} if waited is None else {"waited": waited}),
            "data_waited": self._book.loading.seconds,
            "first_data_waited": self._book.loading.first.seconds,
            "lock_waited": self._lock.waited(self._thread),
            "locks": self._lock.taken,
        }

    def _counts(self) -> Counts:
        """Counts of this program; counters that the user's code has cleared restart at 0."""
        now, initial = self._gauges.counts(), self._initial_counts
        if now.compiles < initial.compiles or now.hits < initial.hits:
            self._initial_counts = initial = Counts()
        return Counts(*map(operator.sub, now, initial))

    def tick(self) -> None:
        """Sample if due; called in another thread than the metered one."""
        with self._sampling:
            if not self.is_over:
                self._safely(self._tick)
                self._ticks += 1

    def end(self) -> None:
        """Take the last sample in this thread: a short cell would wait long for another one."""
        with self._sampling:
            self._changes.end()
            if not self.is_over:
                self._safely(lambda: self._sample(ends=True))
                self._finish()

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as problem:  # a failing backend must not fail the rank
            print(f"xla_nb: stopped sampling this rank: {problem}", file=sys.stderr)
            self._finish()

    def _finish(self) -> None:
        self.is_over = True
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the user's code has closed it
                os.close(file)

    def _tick(self) -> None:
        mtime = _mtime(self._record.stacks_request)
        if mtime != self._answered:
            self._answered = mtime
            place, stack = tracebacks.locate(self._thread, self._labels)
            self._sender.send(RankAt(rank=self._rank, place=place, stack=stack))
        if self._is_due(self._ticks):
            self._sample()

    def _is_due(self, tick: int) -> bool:
        """Whether to sample. An idle rank is sampled once, then every `_IDLE_TICKS` ticks."""
        idle_since, previous = self._book.idle.since, self._idle_since
        self._idle_since = idle_since
        if idle_since is not None:
            return idle_since != previous or tick % _IDLE_TICKS == 0
        return tick % self._every == 0

    def _sample(self, ends: bool = False) -> None:
        self._book.settle()
        memory.own.count(anew=not ends)
        line = sample.encode(self._measure())
        try:
            self._write(line)
        except OSError as problem:
            if not is_of_disk(problem):
                raise
            # The next sample may fit.
            self._book.losses.note("its samples (line, memory, progress)", problem)

    def _write(self, line: bytes) -> None:
        """Overwrite the last sample in one write, padded with spaces where it was longer."""
        if self._file is None:
            self._file = private.writing(self._record.of_rank(self._rank, "now"))
        os.pwrite(self._file, line.ljust(self._written), 0)
        self._written = max(self._written, len(line))

    def _measure(self) -> Sample:
        now, clock = time.time(), time.monotonic()
        counts, changes = self._counts(), self._changes
        initial = self._initial
        totals: Any = {name: n - initial.get(name, 0) for name, n in self._totals().items()}
        asker = askers.of(self._thread)
        question = asker.waiting if asker is not None else None
        waiting = self._lock.waiting(self._thread) or question or self._gauges.waiting()
        is_of_program = self._handler is not None
        is_left = is_of_program and (self.has_returned or tracebacks.is_in_ours(self._thread))
        if self._memory is None or not is_left:  # it is freed afterwards
            self._memory = memory.own.nbytes
        compiling = self._compiling.lasting(counts, clock)
        lasting = compiling or 0.0
        if is_of_program:
            changes.watch(counts)
        self._check_blocking(waiting)
        place = tracebacks.innermost(self._thread, self._labels)  # at once: of that call
        sampled_at = time.time()  # not earlier: an interrupt may have moved the thread
        call = DATA if self._book.loading.since is not None else self._standstill.call
        used, limit = self._gauges.memory() or (None, None)
        return Sample(
            at=sampled_at,
            activity=self._set_activity(waiting, compiling, now),
            since=self._activity[1],
            place=place,
            operation=waiting.operation[:_LONGEST] if waiting else call,
            missing=waiting.missing if waiting else (),
            memory=self._memory,
            free=memory.own.free,
            cpu=time.process_time(),
            device_used=used,
            device_limit=limit,
            compiles=counts.compiles,
            compile_seconds=counts.compile_seconds,
            compiling=lasting,
            blocked=self._standstill.seconds,
            idle=self._book.idle.seconds,
            steps=counts.steps,
            graphs=counts.hits + counts.misses,
            items=self._book.items,
            changes_at=changes.place,
            change=changes.change,
            fallbacks_at=dict(changes.fallbacks),
            returned=self.has_returned,
            heeds=signal.getsignal(signal.SIGINT) is self._handler,
            fallbacks=counts.fallbacks,
            loops=self._rates.look(self._book.loops, counts.compile_seconds + lasting, now),
            **totals,
        )

    def _check_blocking(self, waiting: Wait | None) -> None:
        """Check whether the rank is blocked in a way that is not counted elsewhere."""
        operation = INPUT if waiting and waiting.operation == INPUT else ""
        is_counted = waiting or self._book.idle.since is not None or self._book.loading.since
        self._standstill.look(operation if is_counted else None)

    def _set_activity(self, waiting: Wait | None, compiling: float | None, now: float) -> Activity:
        activity: Activity = "running" if compiling is None else "compiling"
        start = None if compiling is None else time.monotonic() - compiling
        standstill = self._standstill
        if standstill.call and time.monotonic() - standstill.since >= _BLOCKED_AFTER:
            activity, start = "blocked", standstill.since
        if waiting:
            activity, start = "waiting", waiting.since
        if (idle_since := self._book.idle.since) is not None:
            activity, start = "idle", idle_since
        if start is not None:
            self._activity = activity, now - (time.monotonic() - start)
        elif activity != self._activity[0]:
            self._activity = activity, now
        return activity


class Sampler:
    """The thread that runs a process's meters while there are any.

    A program of live ranks shares the thread with the meter of the ranks themselves: starting or
    waking a thread takes as long as a short cell where there are more ranks than cores.
    """

    def __init__(self) -> None:
        self._meters: list[Meter] = []
        self._lock = threading.Lock()
        self._runs = False

    def begin(self, meter: Meter) -> None:
        with self._lock:
            if not self._runs:
                threading.Thread(target=self._run, name="xla_nb-meter", daemon=True).start()
                self._runs = True
            self._meters.append(meter)

    def end(self, meter: Meter) -> None:
        """Have the meter take its last sample, and remove it."""
        meter.end()
        with self._lock:
            self._meters.remove(meter)

    def _run(self) -> None:
        pause = _FIRST_DELAY
        rng = random.Random()  # not the user's generator; jitter, as a step may last a tick
        while True:
            time.sleep(pause)
            with self._lock:
                meters = list(self._meters)
                if not meters:
                    self._runs = False
                    return
            for meter in meters:
                meter.tick()
            pause = TICK * rng.uniform(0.5, 1.5)


#: The sampler of this process, always the same.
sampler = functools.cache(Sampler)


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 # no Path, as in Record
    except FileNotFoundError:
        return 0


# ---------------------------------------------------------------- blocking calls

# A call of the standard library (`time.sleep`, `Queue.get`) is reported only if certain: the thread
# uses no processor time, and is in a C function of a module that calls only the system. Such a
# function has no frame: it is found by looking up the names in the bytecode there. A thread that
# waits for its device uses no time either, but is not in such a call.

_STDLIB, _OURS = f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[1]}/"
#: Modules in C that call the system, but no Python objects.
_SYSTEM = {
    *("time", "select", "posix", "fcntl", "_io", "_signal", "_socket", "_ssl"),
    *("_queue", "_thread", "_multiprocessing"),
}
_LATE = 2 * TICK  # seconds between looks, from which most of the time was not in this call
_MOMENT = 0.0005  # seconds in which a running thread uses some processor time
#: Instructions that load a name, and those that do not change what was loaded.
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")
_SILENT = ("PUSH_NULL", "PRECALL", "KW_NAMES")
#: Functions that may keep the dict to which a frame's variables are copied until Python 3.12.
_KEEPING = {"locals", "vars", "dir", "eval", "exec"}


class Standstill:
    """The blocking call that a thread is in, `call`, since `since` (by `time.monotonic()`); and
    the `seconds` it has been in any so far. A look that finds a call counts all time since the
    previous look, so calls between two looks count by their share on average. Looks are late while
    a C function holds the GIL: then the thread's processor time does not count. After `most`
    seconds without one, the process may have been stopped, and nothing is counted."""

    def __init__(self, thread: int, most: float) -> None:
        self.call, self.since, self.seconds = "", 0.0, 0.0
        self._most = most
        self._thread, self._clock = thread, time.pthread_getcpuclockid(thread)
        self._cpu, self._last_look = 0.0, time.monotonic()

    def look(self, known: str | None = None) -> None:
        """Check the thread; may be called in any thread. `known`: what it is known to do now."""
        now, cpu = time.monotonic(), time.clock_gettime(self._clock)
        if cpu != self._cpu:
            self.since = now
            if known is None and threading.get_ident() != self._thread:
                time.sleep(_MOMENT)
        is_still = known is None and time.clock_gettime(self._clock) == cpu
        self.call = _blocking_call(self._thread) if is_still else known or ""
        elapsed = now - self._last_look
        if self.call and elapsed < self._most:
            on_processor = cpu - self._cpu if elapsed > _LATE else 0.0
            self.seconds += max(0.0, elapsed - on_processor)
        self._cpu, self._last_look = cpu, now


def _blocking_call(thread: int) -> str:
    """The outermost call of the standard library, if the thread is in a system call; else "".

    Code is analyzed while no frame is referenced, and frames only briefly: the frame of a function
    that returns meanwhile would keep its tensors, and a step's graph would have them as results."""
    frame = sys._current_frames()[thread]
    position = frame.f_code, frame.f_lasti
    del frame
    _names(*position)
    innermost = frame = sys._current_frames()[thread]
    if (frame.f_code, frame.f_lasti) != position:
        return ""
    stdlib_call = ""
    while _is_stdlib(frame.f_code.co_filename) and frame.f_back is not None:
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        stdlib_call, frame = _format_name(frame.f_globals.get("__name__", ""), name), frame.f_back
    if not frame.f_code.co_filename.startswith(_OURS):
        with contextlib.suppress(Exception):  # from any user's object
            module, name = _qualified_name(_callee(innermost))
            if module in _SYSTEM and (module != "time" or name == "sleep"):  # no clocks
                return stdlib_call or _format_name(module, name)
    return ""


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "-packages/" not in file


def _format_name(module: str, name: str) -> str:
    """`Queue.get` for a method, `time.sleep` for a function."""
    if "." in name and not name.startswith("_"):
        return name
    return f"{module.partition('.')[0].replace('posix', 'os')}.{name.rpartition('.')[2]}"


def _qualified_name(callee: object) -> tuple[str, str]:
    """The module and name of a function in C."""
    match callee:
        case MethodDescriptorType():
            return callee.__objclass__.__module__, callee.__qualname__
        case BuiltinFunctionType(__self__=ModuleType() as module):
            return module.__name__, callee.__qualname__
        case BuiltinFunctionType():
            return type(callee.__self__).__module__, callee.__qualname__
    return "", ""


def _callee(frame: FrameType) -> object:
    """The callee of the frame. Raises an exception if it cannot be found by names."""
    code = frame.f_code
    load, first, *attributes = _names(code, frame.f_lasti)
    if load == "LOAD_GLOBAL" or not code.co_flags & inspect.CO_OPTIMIZED:
        callee = frame.f_globals.get(first, frame.f_builtins.get(first))
    elif _KEEPING.isdisjoint(code.co_names):
        variables = frame.f_locals
        callee = variables[first]
        if isinstance(variables, dict):  # a copy, which would keep its values alive
            variables.clear()
    for name in attributes:
        callee = inspect.getattr_static(callee, name)
    return callee


@functools.lru_cache(maxsize=64)
def _names(code: CodeType, offset: int) -> list[str]:
    """How the code at that offset finds its callee: the instruction that loads the first name, that
    name, and those of attributes. They start where the call does; no other instruction does."""
    loads: dict[object, list[str]] = {}
    for op in dis.get_instructions(code):
        start = op.positions and (op.positions.lineno, op.positions.col_offset)
        if op.offset == offset:
            return loads.get(start, []) if "CALL" in op.opname else []
        if op.opname in ("LOAD_ATTR", "LOAD_METHOD") and start in loads:
            loads[start].append(op.argval)
        elif op.opname.startswith(_LOADS) and isinstance(op.argval, str):
            loads[start] = [op.opname, op.argval]
        elif op.opname not in _SILENT and not isinstance(op.argval, tuple):  # keyword names
            loads.pop(start, None)
    return []
