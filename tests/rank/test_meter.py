"""A rank's meter: its samples and its answers to requests; it never disturbs the rank."""

import ast
import contextlib
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from xla_nb.rank import meter, reporting
from xla_nb.rank.lock import SharedLock
from xla_nb.rank.meter import Compiling, Meter, Rates
from xla_nb.rank.reporting import progress
from xla_nb.record.files import Losses, Record
from xla_nb.record.sample import LOCK, decode
from xla_nb.runtimes import Counts, xla
from xla_nb.stopwatch import Wait

PATIENCE = 60  # seconds


def until(look):
    """The first true value that `look` returns."""
    deadline = time.monotonic() + PATIENCE
    while not (value := look()):
        assert time.monotonic() < deadline, f"nothing came within {PATIENCE} s"
        time.sleep(0.01)
    return value


# ---------------------------------------------------------------- compilations


def counted(hits=0, misses=0, compiles=0):
    return Counts(hits, misses, compiles)


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([(0, 0, 0, False), (0, 1, 0, True), (0, 1, 1, False)], id="first graph"),
        pytest.param(
            [(0, 1, 0, True), (0, 2, 1, True), (0, 2, 2, False)], id="two consecutive graphs"
        ),
        pytest.param([(5, 1, 1, False), (9, 1, 1, False)], id="cached graphs"),
        pytest.param(
            [(5, 1, 1, False), (9, 2, 1, True), (9, 2, 1, True)], id="new graph after cached graphs"
        ),
        pytest.param(
            [(0, 1, 4, False), (0, 2, 4, True), (0, 2, 5, False)],
            id="compiled without cache lookup",
        ),
        pytest.param([(0, 1, 0, True), (0, 1, 0, True), (1, 1, 0, False)], id="failed compilation"),
        pytest.param(
            [(0, 1, 0, True), (1, 1, 0, False), (1, 2, 0, True), (1, 2, 1, False)],
            id="new graph after failed compilation",
        ),
        pytest.param([(3, 2, 2, False), (0, 0, 0, False)], id="counters cleared by the user"),
    ],
)
def test_cache_miss_counts_as_compiling_until_compiled(looks):
    compiling = Compiling()
    answers = [compiling.lasting(counted(*counts), 0.0) is not None for *counts, _ in looks]
    assert answers == [expected for *_, expected in looks]


def test_compilation_time_starts_when_first_seen():
    compiling = Compiling()
    looks = [
        (0.0, counted(), None),
        (1.0, counted(misses=1), 0.0),
        (3.5, counted(misses=1), 2.5),
        (4.0, counted(misses=2, compiles=1), 0.0),  # the next one
        (5.0, counted(misses=2, compiles=2), None),
        (9.0, counted(misses=3, compiles=2), 0.0),
    ]
    for now, counts, seconds in looks:
        assert compiling.lasting(counts, now) == seconds


# ---------------------------------------------------------------- rates of loops


@pytest.fixture
def rate():
    """Computes a loop's rate from its progress, the time and the seconds spent compiling."""
    rates = Rates()

    def rate(loop, done, now, compiled=0.0):
        loop.done, loop.at = done, now
        return rates.look([loop], compiled)[0].rate

    return rate


@pytest.fixture
def loop():
    return progress(range(1000), label="train")


def test_loop_state_has_label_and_progress(loop):
    loop.done = 7
    (state,) = Rates().look([loop])
    assert (state.label, state.done, state.total) == ("train", 7, 1000)


def test_rate_is_known_after_one_second_excluding_first_item(rate, loop):
    told = [rate(loop, 5 * half, half / 2) for half in range(6)]
    assert told == [None] * 3 + [10] * 3


def test_rate_excludes_everything_before_a_compiling_item(rate, loop):
    compiled = [0.0, 9.0, 18.0, 26.0]
    assert [rate(loop, n, 10.0 * n, compiled[n]) for n in range(4)] == [None] * 4
    told = [rate(loop, 3 + 10 * n, 30.0 + n, 26.0) for n in range(1, 9)]
    assert told == [None] + [10] * 7  # the first item may have compiled as well


def test_rate_excludes_item_compiling_during_the_look(rate, loop):
    rate(loop, 1, 0.5, 0.8)  # compilation of the next item, which ends at 0.9
    told = {rate(loop, n, 0.9 + 0.05 * (n - 2), 0.9) for n in range(2, 60)}
    assert {one and round(one) for one in told} == {None, 20}


def test_loop_compiling_in_every_step_has_no_rate(rate, loop):
    assert {rate(loop, n, 2.0 * n, 1.8 * n) for n in range(12)} == {None}


def test_rate_covers_at_most_one_minute(rate, loop):
    for second in range(100):
        rate(loop, 10 * second, float(second))
    told = [rate(loop, 990 + n, 99.0 + n) for n in range(1, 100)]
    assert (told[0], told[62:]) == (pytest.approx(10, rel=0.2), [1] * 37)


def test_slow_loop_keeps_its_rate_between_items(rate, loop):
    for n in range(4):
        rate(loop, n, 2.0 * n)
    assert rate(loop, 3, 6.0) == 0.5


def test_restarted_loop_continues_with_its_rate(rate, loop):
    for second in range(6):
        rate(loop, 10 * second, float(second))
    assert [rate(loop, done, 5.0 + done) for done in (2, 12, 13)] == [
        10,
        pytest.approx(50 / 14),
        pytest.approx(51 / 15),
    ]


def test_nested_loops_without_labels_have_their_own_rates():
    rates, outer, inner = Rates(), progress(range(9)), progress(range(9))
    for second in range(9):
        outer.done, outer.at = second // 3, float(second // 3 * 3)
        inner.done, inner.at = second % 3, float(second)
        found = [loop.rate for loop in rates.look([outer, inner])]
    assert found == [pytest.approx(1 / 3), 1]


def test_finished_loop_keeps_its_rate(rate, loop):
    for second in range(6):
        rate(loop, 10 * second, float(second))
    loop.finished = True
    assert rate(loop, 50, 5.0) == 10


def test_stalled_loop_has_no_rate():
    rates, loop = Rates(), progress(range(1000))
    for second in range(6):
        loop.done, loop.at = 10 * second, 100.0 + second
        rates.look([loop])
    assert rates.look([loop], now=107.9)[0].rate == 10
    assert rates.look([loop], now=108.1)[0].rate is None
    loop.finished = True
    assert rates.look([loop], now=200.0)[0].rate == 10


@pytest.mark.parametrize(
    ("label", "total", "told"), [("epoch", 50, 10), ("validate", 50, None), ("epoch", 5, None)]
)
def test_loop_starts_with_rate_of_previous_similar_loop(rate, label, total, told):
    before, after = progress(range(50), label="epoch"), progress(range(total), label=label)
    for second in range(6):
        rate(before, 10 * second, float(second))
    assert rate(after, 1, 7.0) == told


def test_short_loops_share_a_rate():
    rates, found = Rates(), []
    for number in range(3):
        loop = progress(range(15), label=f"train {number}")
        for item in range(1, 16):
            loop.done, loop.at = item, number + 0.05 * item
            found.append(rates.look([loop])[0].rate)
    assert found[15] is None
    assert found[-1] == pytest.approx(20)


# ---------------------------------------------------------------- the meter


class Xlac:
    """The part of torch_xla._XLAC that the meter reads."""

    def __init__(self):
        self.counters = {
            "MarkStep": 4,
            "aten::nonzero": 2,
            "aten::_local_scalar_dense": 3,
            "UncachedCompile": 1,
            "xla::add": 9,
        }
        self.metrics = {"CompileTime": (1, 2.5e9, ())}
        self.memory = None

    def _xla_metric_data(self, name):
        return self.metrics.get(name)

    def _xla_counter_names(self):
        return list(self.counters)

    def _xla_counter_value(self, name):
        return self.counters.get(name)

    def _xla_memory_info(self, device):
        if self.memory is None:
            raise RuntimeError("GetAllocatorStats is not supported")
        return self.memory


class Metered:
    """A meter for the test's thread, with its samples and answers."""

    def __init__(self, folder, xlac):
        self.xlac = xlac
        self.record, self.ranks = Record(folder), 1
        self.path, self.request = self.record.sample(0), folder / "stacks"
        self.book = reporting.Book(folder / "rank-0.history", None)
        self.labels = {__file__}
        self.waiting, self.lock = None, SharedLock()
        self.waited = None
        self.answers = []

    @contextlib.contextmanager
    def __call__(self):
        self.current = self.meter()
        with self.current:
            yield

    def ended(self):
        return self.current.is_over

    def meter(self):
        return Meter(
            0,
            self.record,
            self.labels,
            SimpleNamespace(send=lambda event: self.answers.append((event.place, event.stack))),
            self.book,
            SimpleNamespace(
                ranks=self.ranks,
                counts=lambda: xla.counts(self.xlac),
                waiting=lambda: self.waiting,
                waited=lambda: self.waited,
                memory=lambda: xla.device_memory(self.xlac, "xla:0"),
            ),
            self.lock,
        )

    def sample(self):
        with contextlib.suppress(FileNotFoundError, ValueError):
            return decode(self.path.read_bytes())

    def next_sample(self, looks=1):
        """A sample taken after the call."""
        for _ in range(looks):
            now = time.time()
            seen = until(lambda now=now: (one := self.sample()) and one.at > now and one)
        return seen

    def final(self):
        """The last sample of a function that returns immediately."""
        with self():
            pass
        return self.sample()


@pytest.fixture
def xlac():
    return Xlac()


@pytest.fixture
def metered(tmp_path, xlac, monkeypatch):
    monkeypatch.setattr(meter, "TICK", 0.01)
    return Metered(tmp_path, xlac)


def test_first_sample_is_taken_immediately(metered, monkeypatch):
    monkeypatch.setattr(meter, "TICK", 4.0)
    began = time.time()
    with metered():
        until(metered.sample)
        assert metered.sample().at < began + meter.TICK / 2


def test_second_meter_shares_the_thread(metered, tmp_path, monkeypatch):
    other = Metered(tmp_path / "other", Xlac())
    other.path.parent.mkdir()
    with metered.meter():
        before = threading.active_count()
        for _ in range(3):
            with other.meter():
                other.next_sample(looks=2)
                assert threading.active_count() == before
        metered.next_sample()


def test_sampler_thread_ends_when_nothing_is_left_to_meter(metered):
    before = set(threading.enumerate())
    for _ in range(3):
        with metered.meter():
            until(metered.sample)
        until(lambda: not meter.sampler()._runs)
    until(lambda: set(threading.enumerate()) <= before)


def test_last_sample_is_taken_when_function_returns(metered, xlac):
    with metered():
        metered.next_sample()
        xlac.counters["MarkStep"] = 1000
    assert metered.sample().steps == 1000


def test_sample_has_torch_xla_counters(metered):
    seen = metered.final()
    assert (seen.steps, seen.compiles, seen.compile_seconds) == (4, 1, 2.5)


def test_sample_has_only_operators_that_fell_back_to_the_cpu(metered):
    assert metered.final().fallbacks == {"aten::nonzero": 2}


def test_missing_counters_count_as_zero(metered, xlac):
    xlac.counters, xlac.metrics = {}, {}
    seen = metered.final()
    assert (seen.steps, seen.compiles, seen.compile_seconds, seen.fallbacks) == (0, 0, 0.0, {})


def test_sample_has_process_memory_and_cpu_time(metered):
    seen = metered.final()
    assert 1 << 20 < seen.memory < 1 << 40
    assert 0 < seen.cpu <= time.process_time()


def test_memory_is_frozen_once_the_function_has_returned(metered, monkeypatch):
    # Not the process's real memory: the machine may reclaim its pages in the meantime.
    taken = SimpleNamespace(nbytes=5 << 20, free=None, count=lambda anew: None)
    monkeypatch.setattr("xla_nb.rank.meter.memory.own", taken)
    with metered():
        assert metered.next_sample().memory == 5 << 20
        metered.current.begin_program()
        metered.current.has_returned = True
        taken.nbytes = 105 << 20
        assert metered.next_sample(2).memory == 5 << 20
        metered.current.has_returned = False
        assert until(lambda: metered.sample().memory == 105 << 20)


def test_device_memory_is_sampled_if_backend_reports_it(metered, xlac):
    xlac.memory = {"bytes_used": 5, "bytes_limit": 10}
    seen = metered.final()
    assert (seen.device_used, seen.device_limit) == (5, 10)


def test_device_memory_is_none_if_backend_does_not_report_it(metered):
    with metered():
        seen = metered.next_sample()
    assert (seen.device_used, seen.device_limit) == (None, None)


def test_sample_has_innermost_notebook_line(metered):
    seen = metered.final()
    assert seen.place.startswith(f"{__file__}, line ")


def test_sample_has_running_loops(metered):
    metered.book.begin(progress(range(5), label="epochs"))
    metered.book.items = 7
    seen = metered.final()
    (loop,) = seen.loops
    assert seen.items == 7
    assert (loop.label, loop.done, loop.total) == ("epochs", 0, 5)


def test_rank_in_a_collective_waits_for_missing_ranks(metered):
    since = time.monotonic() - 100
    metered.waiting = SimpleNamespace(operation="all_reduce", since=since, missing=(1, 3))
    seen = metered.final()
    assert (seen.activity, seen.operation, seen.missing) == ("waiting", "all_reduce", (1, 3))
    assert seen.at - seen.since == pytest.approx(100, abs=5)


def test_live_rank_without_work_is_idle(metered):
    metered.book.idle._state = 40.0, None
    metered.book.idle.start()
    seen = metered.final()
    assert seen.activity == "idle"
    assert seen.since <= seen.at
    assert seen.idle >= 40.0


def test_idle_rank_is_sampled_once_and_then_rarely(metered):
    meter_of = metered.meter()
    due = lambda ticks: [tick for tick in ticks if meter_of._is_due(tick)]  # noqa: E731
    assert due(range(3)) == [0, 1, 2]
    metered.book.idle.start()
    assert due(range(3, 90)) == [3, 40, 80]
    metered.book.idle.stop()
    assert due(range(90, 92)) == [90, 91]
    metered.book.idle.start()  # after a cell
    assert due(range(92, 130)) == [92, 120]
    metered.book.idle.stop()
    metered.book.idle.start()  # after a cell that ran between two ticks
    assert due(range(130, 150)) == [130]


def test_sample_has_seconds_of_all_waits_so_far(metered):
    metered.waited = 12.5
    metered.book.loading._state = 4.0, None
    metered.book.loading.first._state = 3.0, None
    seen = metered.final()
    assert (seen.waited, seen.lock_waited) == (12.5, 0.0)
    assert (seen.data_waited, seen.first_data_waited) == (4.0, 3.0)


def test_waited_seconds_are_none_if_unavailable(metered):
    assert metered.final().waited is None


def test_rank_thread_waiting_for_the_lock_is_waiting(metered):
    wait, here = Wait(LOCK, time.monotonic() - 5, (3,)), threading.get_ident()
    metered.lock = SimpleNamespace(
        taken=2,
        waiting=lambda thread: wait if thread == here else None,
        waited=lambda thread: 7.5 if thread == here else 0.0,
    )
    seen = metered.final()
    assert (seen.activity, seen.operation, seen.missing) == ("waiting", LOCK, (3,))
    assert seen.lock_waited == 7.5
    assert seen.at - seen.since == pytest.approx(5, abs=1)


def test_looked_up_graphs_are_counted(metered, xlac):
    xlac.counters |= {"CachedCompile": 3, "UncachedCompile": 2}
    assert metered.final().graphs == 5


def test_long_operation_name_is_truncated(metered):
    metered.waiting = SimpleNamespace(operation="x" * 5000, since=0.0, missing=())
    assert len(metered.final().operation) == meter._LONGEST


def test_rank_with_a_cache_miss_is_compiling(metered, xlac):
    xlac.counters["UncachedCompile"] = 2
    assert metered.final().activity == "compiling"


def test_activity_keeps_its_start_time(metered, xlac):
    with metered():
        first = metered.next_sample()
        xlac.counters["UncachedCompile"] = 2
        changed = metered.next_sample(looks=2)  # one may have been in progress
        later = metered.next_sample(looks=2)
    assert first.since < changed.since == pytest.approx(later.since, abs=0.001)
    assert later.since < later.at


def test_compiling_restarts_with_each_graph(metered, xlac):
    with metered():
        xlac.counters["UncachedCompile"] = 2
        first = metered.next_sample()
        xlac.counters["UncachedCompile"] = 3
        xlac.metrics["CompileTime"] = (2, 3.5e9, ())
        second = metered.next_sample(looks=2)
    assert (first.activity, second.activity) == ("compiling", "compiling")
    assert second.since >= first.at


def test_shorter_sample_replaces_longer_sample(metered, xlac):
    xlac.counters["aten::" + "x" * 500] = 1
    with metered():
        assert len(metered.next_sample().fallbacks) == 2
        del xlac.counters["aten::" + "x" * 500]
        assert metered.next_sample(looks=2).fallbacks == {"aten::nonzero": 2}


def test_meter_writes_figures_of_launched_step(metered):
    class Computed(SimpleNamespace):
        def cpu(self):
            return 3.0

    loss = Computed(device=SimpleNamespace(type="xla"))
    metered.book._synced.append(reporting.Row(0, 1.0, None, {"loss": loss}))
    with metered():
        until(metered.book.path.exists)
    metered.book.close()
    assert "3.0" in metered.book.path.read_text()


def test_only_the_owner_can_read_samples(metered):
    before = os.umask(0)
    try:
        metered.final()
    finally:
        os.umask(before)
    assert metered.path.stat().st_mode & 0o777 == 0o600


def test_counts_from_before_the_program_are_excluded(metered, xlac):
    metered.waited = 5.0
    meter_of = metered.meter()
    meter_of.begin_program()
    xlac.counters |= {"MarkStep": 6, "aten::bincount": 1}
    metered.waited = 5.5
    with meter_of:
        pass
    seen = metered.sample()
    assert (seen.steps, seen.compiles, seen.fallbacks) == (2, 0, {"aten::bincount": 1})
    assert seen.waited == 0.5


def test_counters_cleared_by_the_program_start_at_zero(metered, xlac):
    meter_of = metered.meter()
    meter_of.begin_program()
    xlac.counters, xlac.metrics = {"MarkStep": 3}, {}
    with meter_of:
        pass
    assert metered.sample().steps == 3


# ---------------------------------------------------------------- requests for stacks


def test_request_is_answered_with_place_and_stack(metered):
    with metered():
        metered.request.touch()
        (place, stack), *_ = until(lambda: metered.answers)
    assert place.startswith(f"{__file__}, line ")
    assert "until" in stack


def test_request_is_answered_once(metered):
    with metered():
        metered.request.touch()
        until(lambda: metered.answers)
        metered.next_sample(looks=3)
        assert len(metered.answers) == 1
        os.utime(metered.request, (1, 1))
        until(lambda: len(metered.answers) == 2)


def test_rarely_sampled_rank_answers_requests(metered):
    metered.ranks = 64_000_000
    with metered():
        first = until(metered.sample)
        metered.request.touch()
        until(lambda: metered.answers)
        assert metered.sample() == first


# ---------------------------------------------------------------- errors


def complaints(capsys):
    return capsys.readouterr().err.splitlines()


def test_full_disk_is_reported_once_and_meter_still_answers(metered, tmp_path):
    metered.path.symlink_to("/dev/full")
    told = []
    metered.book.losses = Losses(tmp_path, told.append)
    with metered():
        until(lambda: told)
        metered.request.touch()
        until(lambda: metered.answers)
    assert len(told) == 1
    assert told[0].startswith("Cannot write its samples")


def test_missing_folder_stops_the_meter_with_one_line(metered, capsys):
    metered.record = Record(metered.path.parent / "gone")
    with metered():
        until(metered.ended)
    (line,) = complaints(capsys)
    assert "No such file or directory" in line


def test_file_closed_by_user_code_stops_the_meter_with_one_line(metered, capsys):
    with metered():
        until(metered.sample)
        (file,) = [fd for fd in Path("/proc/self/fd").iterdir() if points_to(fd, metered.path)]
        os.close(int(file.name))
        until(metered.ended)
    (line,) = complaints(capsys)
    assert "Bad file descriptor" in line


def points_to(fd, path):
    with contextlib.suppress(FileNotFoundError):
        return fd.readlink() == path


def test_unreadable_counters_stop_the_meter_with_one_line(metered, xlac, capsys):
    xlac.counters = None
    with metered():
        until(metered.ended)
    assert len(complaints(capsys)) == 1


def test_unsendable_answer_stops_the_meter_with_one_line(metered, capsys):
    metered.answers = None
    metered.request.touch()
    with metered():
        until(metered.ended)
    assert len(complaints(capsys)) == 1


def test_user_errors_pass_through_the_meter(metered):
    with pytest.raises(ZeroDivisionError), metered():
        1 / 0  # noqa: B018
    assert metered.ended()


# ---------------------------------------------------------------- with torch_xla

# Later cells do not repeat imports in the function.
CELL = """
%%xla_spawn -n 2 --args "({flags!r},)" -o stages --bg --view none
def stages_of(rank, flags):
    import time, torch, torch_xla, xla_nb
    import torch_xla.core.xla_model as xm
    import torch_xla.debug.metrics as met
    from pathlib import Path
    x = torch.ones(32, 32, device=torch_xla.device())
    for _ in xla_nb.progress(range(3), label="steps"):
        y = x @ x
        torch_xla.sync()
    while rank == 1 and not Path(flags, "come").exists():
        time.sleep(0.01)
    xm.all_reduce("sum", x)  # rank 0 waits here
    torch_xla.sync()
    length = 1000
    while rank == 0 and not Path(flags, "go").exists():
        y = x @ x
        torch_xla.sync()  # an execution, and at once a compilation
        for n in range(length):
            y = torch.sin(y * (1 + n / 7)) @ x
        torch_xla.sync()  # rank 0 compiles here
        length += 1
    torch.bincount(torch.ones(3, dtype=torch.long, device=x.device))
    steps, (compiles, *_) = met.counter_value("MarkStep"), met.metric_data("CompileTime")
    return steps, compiles
"""
LOOK = """
import dataclasses, time
def stages_at(rank, activity):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not stages.done:
        sample = stages.sample(rank)
        if sample is not None and sample.activity == activity:
            return dataclasses.asdict(sample)
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def stages(kernel, tmp_path_factory):
    """Samples of rank 0 waiting and compiling, final samples of both ranks, and the cell's name."""
    flags = tmp_path_factory.mktemp("flags")
    kernel.ok(LOOK)
    number = kernel.ok(CELL.strip().format(flags=str(flags))).number
    samples = SimpleNamespace(cell=f"Cell In[{number}]")
    try:
        samples.waiting = ast.literal_eval(kernel.value("stages_at(0, 'waiting')"))
        (flags / "come").touch()
        samples.compiling = ast.literal_eval(kernel.value("stages_at(0, 'compiling')"))
    finally:
        for flag in ("come", "go"):
            (flags / flag).touch()
        kernel.ok("stages.wait(60)")
    samples.ends = [
        ast.literal_eval(kernel.value(f"dataclasses.asdict(stages.sample({rank}))"))
        for rank in (0, 1)
    ]
    samples.counted = ast.literal_eval(kernel.value("stages.results"))
    return samples


def line_of(comment):
    (number,) = [n for n, line in enumerate(CELL.strip().splitlines(), 1) if comment in line]
    return number


def test_waiting_rank_names_collective_and_missing_ranks(stages):
    assert "all_reduce" in stages.waiting["operation"]
    assert stages.waiting["missing"] == (1,)
    assert stages.waiting["place"] == f"{stages.cell}, line {line_of('rank 0 waits here')}"


def test_compiling_rank_names_its_line(stages):
    assert stages.compiling["activity"] == "compiling"
    assert stages.compiling["place"] == f"{stages.cell}, line {line_of('rank 0 compiles here')}"


def test_waiting_is_counted_during_and_after_the_wait(stages):
    late, early = stages.ends[1]["waited"], stages.ends[0]["waited"]
    assert 0 < stages.waiting["waited"] <= early
    assert late < early


def test_compilation_in_progress_is_counted_until_done(stages):
    assert stages.compiling["compiling"] >= 0
    assert [end["compiling"] for end in stages.ends] == [0.0, 0.0]


def test_rank_past_the_collective_is_not_waiting(stages):
    assert [end["activity"] for end in stages.ends] == ["running", "running"]
    assert [end["operation"] for end in stages.ends] == ["", ""]


def test_steps_and_compiles_agree_with_torch_xla(stages):
    counts = {rank: (end["steps"], end["compiles"]) for rank, end in enumerate(stages.ends)}
    assert counts == stages.counted
    assert all(end["compile_seconds"] > 0 for end in stages.ends)


def test_cpu_fallback_is_counted_by_name(stages):
    assert [end["fallbacks"] for end in stages.ends] == [{"aten::bincount": 1}] * 2


def test_progress_loop_is_in_samples_of_its_rank(stages):
    for sample in (stages.waiting, *stages.ends):
        (bar,) = sample["loops"]
        assert (bar["label"], bar["done"], bar["total"]) == ("steps", 3, 3)
