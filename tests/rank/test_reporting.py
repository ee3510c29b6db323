"""`report` and `progress`: in a rank, outside a rank, and in processes started by a rank."""

import itertools
import json
import math
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from xla_nb import progress, report
from xla_nb.rank import reporting
from xla_nb.record.figures import History
from xla_nb.record.files import Losses


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rank-0.history"


def begin(path, told=None):
    """Begin the book of the calling thread; reported losses are appended to `told`."""
    return reporting.begin(path, Losses(path, ([] if told is None else told).append))


@pytest.fixture
def book(path):
    """The book of the test's thread, as if the thread ran a rank."""
    yield begin(path)
    reporting.end()


@pytest.fixture
def reported(book, path):
    """Returns the rows written so far: (step, figures) of each report."""
    return lambda: [tuple(json.loads(line)[2:]) for line in path.read_text().splitlines()]


class Lazy:
    """The used part of an XLA tensor; `read` counts reads."""

    device = SimpleNamespace(type="xla")
    read = 0

    def __init__(self, value, shape=()):
        self.value, self.shape = value, shape

    def numel(self):
        return math.prod(self.shape)

    def detach(self):
        return self

    def clone(self):
        return Lazy(self.value, self.shape)

    def cpu(self):
        Lazy.read += 1
        return torch.tensor(self.value)


@pytest.fixture
def sync(monkeypatch):
    """torch_xla's step marker; `sync()` runs the step closures."""
    closures = []

    def sync():
        due, closures[:] = list(closures), []
        for closure in due:
            closure()

    compiled = SimpleNamespace(_check_tensor_need_materialization=lambda ts: [True] * len(ts))
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(_XLAC=compiled))
    model = SimpleNamespace(add_step_closure=closures.append, unlazy=lambda tensors: None)
    monkeypatch.setitem(sys.modules, "torch_xla.core.xla_model", model)
    monkeypatch.setattr(Lazy, "read", 0)
    return sync


# ---------------------------------------------------------------- outside a rank


def test_reporting_outside_a_rank_does_nothing(path):
    report(step=3, loss=object())
    assert not path.exists()


def test_progress_outside_a_rank_only_iterates():
    loop = progress([1, 2, 3])
    assert (list(loop), len(loop)) == ([1, 2, 3], 3)


def test_reporting_after_the_rank_ended_does_nothing(path):
    begin(path)
    report(loss=1.0)
    reporting.end()
    report(loss=2.0)
    assert History({0: path})["loss"] == {0: [1.0]}


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        np.float32(2),
        np.int64(2),
        np.array(2.0),
        np.array([[2.0]]),
        torch.tensor(2.0),
        torch.tensor([2], dtype=torch.int8),
        torch.tensor(2.0, dtype=torch.bfloat16),
        torch.tensor(2.0, requires_grad=True),
    ],
    ids=repr,
)
def test_figure_may_be_a_number_or_one_element_array(reported, value):
    report(loss=value)
    assert reported() == [(0, {"loss": 2.0})]


def test_booleans_are_figures(reported):
    report(right=True, wrong=torch.tensor(False))
    assert reported() == [(0, {"right": 1.0, "wrong": 0.0})]


def test_nan_and_infinity_round_trip(book, path):
    report(loss=math.nan, top=math.inf)
    history = History({0: path})
    assert math.isnan(history["loss"][0][0])
    assert history["top"][0] == [math.inf]


def test_figures_reported_together_form_one_row(reported):
    report(loss=1.0, accuracy=0.5)
    report(loss=2.0)
    assert reported() == [(0, {"loss": 1.0, "accuracy": 0.5}), (1, {"loss": 2.0})]


def steps(path, name):
    return [row["step"] for row in History({0: path}).rows if name in row]


def test_figures_of_two_loops_have_separate_steps(book, path):
    for epoch in range(3):
        for _ in range(4):
            report(loss=1.0)
        report(val_loss=2.0 + epoch)
    assert steps(path, "loss") == list(range(12))
    assert steps(path, "val_loss") == [0, 1, 2]


def test_figures_sometimes_reported_together_share_steps(book, path):
    for n in range(6):
        report(loss=1.0, **({"accuracy": 0.5} if n % 3 == 2 else {}))
    assert steps(path, "loss") == list(range(6))
    assert steps(path, "accuracy") == [2, 5]


@pytest.mark.parametrize("step", [7, np.int64(7), torch.tensor(7)], ids=repr)
def test_report_accepts_a_step(reported, step):
    report(step=step, loss=1.0)
    assert reported() == [(7, {"loss": 1.0})]


@pytest.mark.parametrize("value", [torch.ones(2, 3), torch.ones(0), np.ones(2)], ids=repr)
def test_figure_without_exactly_one_number_is_refused_by_name(book, path, value):
    with pytest.raises(TypeError, match=r"xla_nb\.report\(loss=…\) takes (one|a) number"):
        report(fine=1.0, loss=value)
    assert not path.exists()


def test_large_tensor_is_refused_with_its_shape(book):
    with pytest.raises(TypeError, match=r"not a tensor of shape \(2, 3\)"):
        report(loss=torch.ones(2, 3))


@pytest.mark.parametrize("value", [None, "high", [1.0], 1j, {}, 10**400], ids=lambda v: str(v)[:9])
def test_non_numeric_figure_is_refused_by_name(book, value):
    with pytest.raises(TypeError, match=rf"report\(loss=…\) .*, not {type(value).__name__}"):
        report(loss=value)


def test_non_numeric_step_is_refused(book):
    with pytest.raises(TypeError, match=r"report\(at=…\): each row has the rank and the time"):
        report(at=1.0, loss=2.0)
    with pytest.raises(TypeError, match=r"report\(step=…\) takes a number, not str"):
        report(step="last", loss=1.0)


def test_refused_report_is_not_counted(book, path):
    with pytest.raises(TypeError):
        report(loss="high")
    report(loss=1.0)
    assert [row["step"] for row in History({0: path}).rows] == [0]


def test_full_disk_is_reported_once_and_figures_are_written_later(tmp_path):
    full, told = tmp_path / "rank-0.history", []
    full.symlink_to("/dev/full")
    begin(full, told)
    report(loss=1.0)
    report(loss=2.0)
    assert len(told) == 1
    assert told[0].startswith("Cannot write all of its figures: No space left on device")
    full.unlink()
    reporting._books.here()._file.close()  # it is open on /dev/full
    report(loss=3.0)
    reporting.end()
    assert History({0: full})["loss"][0] == [1.0, 2.0, 3.0]


# ---------------------------------------------------------------- figures on the device


def test_training_thread_does_not_read_device_tensors(sync, book, path):
    for step in range(10):
        report(loss=Lazy(float(step)))
        sync()
    assert Lazy.read == 0
    book.settle()
    assert History({0: path})["loss"] == {0: list(map(float, range(10)))}


def test_tensor_is_not_read_before_its_step_is_launched(sync, book, path):
    report(loss=Lazy(1.0))
    book.settle()
    assert not path.exists()
    sync()
    book.settle()
    assert path.exists()


def test_large_device_tensor_is_refused_immediately(sync, book):
    with pytest.raises(TypeError, match=r"report\(loss=…\) takes one number, .* \(4,\)"):
        report(loss=Lazy(1.0, (4,)))


def test_numbers_reported_with_a_tensor_share_its_row(sync, book, path):
    report(loss=Lazy(1.0), rate=0.5)
    report(rate=0.25)
    sync()
    book.settle()
    history = History({0: path})
    assert [row["step"] for row in history.rows] == [0, 1]
    assert (history["loss"], history["rate"]) == ({0: [1.0]}, {0: [0.5, 0.25]})


def test_figures_without_step_markers_are_read_in_batches(sync, book, path):
    for step in range(reporting._WAITING + 3):
        report(loss=Lazy(float(step)))
    book.settle()
    assert History({0: path})["loss"] == {0: list(map(float, range(reporting._WAITING + 1)))}


def test_pending_figures_are_read_at_the_end(sync, path):
    begin(path)
    for step in range(5):
        report(loss=Lazy(float(step)))
    reporting.end()
    assert History({0: path})["loss"] == {0: [0.0, 1.0, 2.0, 3.0, 4.0]}


# ---------------------------------------------------------------- loops


def names(book):
    return [loop.label for loop in book.loops]


def test_loop_counts_finished_items(book):
    done = []
    loop = progress("abc", label="letters")
    for _ in loop:
        done.append(loop.done)
    assert (done, loop.done, loop.total, loop.finished) == ([0, 1, 2], 3, 3, True)


def test_label_with_surrogates_is_escaped(book):
    assert progress("abc", label="a\ud800").label == "a\\ud800"


def test_loop_is_listed_from_its_first_item(book):
    loop = progress(range(3), label="a")
    assert book.loops == []
    next(iter(loop))
    assert names(book) == ["a"]


def test_nested_loops_are_listed_outermost_first(book):
    seen = []
    for _ in progress(range(2), label="epochs"):
        for _ in progress(range(1), label="batches"):
            seen.append(names(book))
    assert seen == [["epochs", "batches"]] * 2


def test_items_containing_another_loop_are_not_counted(book):
    for _ in progress(range(2)):
        list(progress(range(5)))
    list(progress(range(3)))
    assert book.items == 13


def test_finished_loop_is_listed_until_the_next_begins(book):
    list(progress(range(2), label="train"))
    assert names(book) == ["train"]
    list(progress(range(2), label="eval"))
    assert names(book) == ["eval"]


def test_loop_left_by_break_is_finished(book):
    loop = progress(range(10))
    for item in loop:
        if item == 2:
            break
    assert (loop.done, loop.finished) == (2, True)


def test_loop_that_raises_is_finished(book):
    def failing():
        yield 1
        raise ValueError

    loop = progress(failing())
    with pytest.raises(ValueError):
        list(loop)
    assert (loop.done, loop.finished) == (1, True)


def test_iterating_a_loop_again_restarts_it(book):
    loop = progress([1, 2])
    assert list(loop) == list(loop)
    assert (loop.done, book.loops) == (2, [loop])


class Endless:
    """Like a DataLoader over an iterable dataset: `__len__` raises TypeError."""

    def __iter__(self):
        return itertools.count()

    def __len__(self):
        raise TypeError("no length")


@pytest.mark.parametrize("items", [(n for n in range(3)), Endless()], ids=["generator", "loader"])
def test_iterable_without_a_length_has_no_total(items):
    loop = progress(items)
    assert list(itertools.islice(loop, 3)) == [0, 1, 2]
    assert loop.total is None
    with pytest.raises(TypeError, match="has no length; pass total="):
        len(loop)


@pytest.mark.parametrize(
    ("given", "total"),
    [(np.int64(5), 5), (4.2, 5), (torch.tensor(5), 5), (-1, None), (float("nan"), None)],
)
def test_total_is_converted_to_int_or_none(given, total):
    kept = progress([1], total=given).total
    assert (kept, type(kept)) == (total, type(total))


def test_non_numeric_total_is_refused_immediately():
    with pytest.raises(TypeError, match=r"progress\(total=…\) takes a number, not str"):
        progress([1], total="many")


def test_label_is_converted_to_text(book):
    assert progress([1], label=5).label == "5"


def test_explicit_total_is_used(book):
    loop = progress((n for n in range(3)), total=5)
    assert (len(loop), list(loop), loop.done) == (5, [0, 1, 2], 3)


# ---------------------------------------------------------------- threads and processes


def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_user_thread_reports_for_its_rank(reported, book):
    def work():
        report(loss=3.0)
        list(progress("ab", label="in a thread"))

    in_a_thread(work)
    assert reported() == [(0, {"loss": 3.0})]
    assert names(book) == ["in a thread"]


def test_ranks_of_one_process_have_separate_figures(book, path, tmp_path):
    def other():
        begin(tmp_path / "rank-1.history")
        report(loss=2.0)
        reporting.end()

    report(loss=1.0)
    in_a_thread(other)
    history = History({0: path, 1: tmp_path / "rank-1.history"})
    assert history["loss"] == {0: [1.0], 1: [2.0]}


def test_process_forked_by_a_rank_reports_nothing(book, path):
    child = os.fork()
    if child == 0:
        report(loss=1.0)
        os._exit(list(progress([3])) != [3] or bool(book.loops))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not path.exists()


def test_only_the_owner_can_read_figures(book, path):
    before = os.umask(0)
    try:
        report(loss=1.0)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------- with torch_xla

# Later cells do not repeat imports in the function.
CELL = """
%%xla_spawn -n 2 -o lazy --view none
def lazy_figures(rank):
    import torch, torch_xla, xla_nb
    weight = torch.ones((), device=torch_xla.device()) * (rank + 1)
    for step in range(4):
        loss = weight * step
        xla_nb.report(loss=loss, half=step / 2)
        torch_xla.sync()
    total = weight * 1
    xla_nb.report(total=total)
    total += 100
    torch_xla.sync()
    for step in range(70):
        xla_nb.report(step=10 * step, unsynced=weight * step)
"""


COMPUTED = """
%%xla_spawn -n 1 -o computed --view none
def reports_what_is_computed(rank):
    import json, pathlib, time, torch, torch_xla, xla_nb
    from xla_nb.rank import reporting
    weight = torch.ones(3, device=torch_xla.device())
    for step in xla_nb.progress(range(40)):
        loss = step * weight.sum()
        torch_xla.sync()
        xla_nb.report(loss=loss)
    path, deadline = pathlib.Path(reporting._books.here().path), time.monotonic() + 60
    while time.monotonic() < deadline:
        rows = path.read_text().splitlines() if path.exists() else []
        if len(rows) == 40: return [json.loads(row)[-1]["loss"] for row in rows]
        time.sleep(0.01)
""".strip()


PENDING = """
%%xla_spawn -n 1 -o pending --view none
def accumulates(rank):
    import torch, torch_xla, torch_xla.debug.metrics as metrics, xla_nb
    weight = torch.ones(3, device=torch_xla.device())
    torch_xla.sync(wait=True)
    before = (metrics.metric_data("ExecuteTime") or (0,))[0]
    for part in xla_nb.progress(range(2)):
        weight = weight + 1
        xla_nb.report(total=weight.sum())
    torch_xla.sync(wait=True)
    return metrics.metric_data("ExecuteTime")[0] - before
""".strip()


@pytest.fixture(scope="module")
def lazy(kernel):
    """A kernel whose run `lazy` has reported tensors on the device."""
    kernel.ok(CELL.strip())
    return kernel


def test_history_has_tensors_of_each_rank_in_order(lazy):
    losses = {0: [0.0, 1.0, 2.0, 3.0], 1: [0.0, 2.0, 4.0, 6.0]}
    assert lazy.value(f"lazy.history['loss'] == {losses}") == "True"
    assert lazy.value("lazy.history['half'][1]") == "[0.0, 0.5, 1.0, 1.5]"


def test_tensor_changed_after_reporting_keeps_its_reported_value(lazy):
    assert lazy.value("lazy.history['total']") == "{0: [1.0], 1: [2.0]}"


def test_tensor_reported_after_last_sync_is_read_when_the_loop_ends(kernel):
    kernel.ok(COMPUTED)
    assert kernel.value("computed.results[0] == [3.0 * n for n in range(40)]") == "True"
    assert kernel.value("computed.output(0, 'err')") == "''"


def test_figures_of_a_loop_ending_before_sync_wait_for_the_next_step(kernel):
    kernel.ok(PENDING)
    assert kernel.value("pending.results[0]") == "1"


def test_tensors_are_read_without_sync(lazy):
    assert lazy.value("lazy.history['unsynced'][1] == [2.0 * n for n in range(70)]") == "True"


def test_reading_tensors_does_not_count_as_a_fallback(lazy):
    assert lazy.value("[lazy.sample(rank).fallbacks for rank in (0, 1)]") == "[{}, {}]"


def test_history_becomes_a_pandas_frame(lazy):
    lazy.ok("frame = lazy.history.frame()")
    columns = ["rank", "step", "at", "loss", "half", "total", "unsynced"]
    assert lazy.value("list(frame.columns)") == repr(columns)
    assert (
        lazy.value("frame[frame['rank'] == 1]['loss'].dropna().tolist()") == "[0.0, 2.0, 4.0, 6.0]"
    )
    assert lazy.value("int(frame['step'].max())") == "690"
