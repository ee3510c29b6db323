"""How long a rank has made no progress, and what counts as progress."""

import pytest

from xla_nb.monitor.activity import Track
from xla_nb.monitor.state import RankState
from xla_nb.record.sample import LOCK, Loop, Sample

RANK = RankState(2, phase="running", pid=7)
EPOCH = 1_000_000.0  # the clock of the rank's host is independent of ours


def sample(now, **figures):
    """A sample taken at `now` on our clock."""
    return Sample(at=EPOCH + now, **{"since": EPOCH, **figures})


class Looked:
    """A track first watched at 0, and its status after watching it again."""

    def __init__(self, written=0, rank=RANK, **figures):
        self.track = Track()
        self.look(0.0, written, rank, **figures)

    def look(self, now, written=0, rank=RANK, **figures):
        self.track.add(sample(now, **figures))
        self.track.watch(rank, written, now)
        return self.track.status(rank, now, {})


def waiting(since, operation="all_reduce", missing=(1,)):
    return {
        "activity": "waiting",
        "since": EPOCH + since,
        "operation": operation,
        "missing": missing,
    }


# ---------------------------------------------------------------- progress


@pytest.mark.parametrize(
    "progress",
    [
        {"steps": 1},
        {"graphs": 1},
        {"locks": 1},
        {"compiles": 1},
        {"fallbacks": {"aten::nonzero": 1}},
        {"loops": (Loop(label="", done=1, total=None, rate=None),)},
        {"written": 1},
    ],
    ids=lambda progress: next(iter(progress)),
)
def test_counters_and_output_are_progress(progress):
    assert Looked().look(100.0, **progress).quiet == 0.0


@pytest.mark.parametrize(
    "sign",
    [{"place": "Cell In[1], line 2"}, {"memory": 5}, {"cpu": 99.0}, {"activity": "compiling"}, {}],
    ids=lambda sign: next(iter(sign), "nothing"),
)
def test_signs_of_life_alone_are_not_progress(sign):
    assert Looked().look(100.0, **sign).quiet == 100.0


def test_starting_to_run_is_progress():
    looked = Looked(rank=RankState(2, phase="starting"))
    assert looked.look(100.0).quiet == 0.0


def test_progress_restarts_the_clock():
    looked = Looked()
    looked.look(50.0, steps=1)
    assert looked.look(80.0, steps=1).quiet == 30.0


def test_output_during_one_collective_is_not_progress():
    looked = Looked(**waiting(0.0))
    assert looked.look(100.0, written=80, **waiting(0.01)).quiet == 100.0
    assert looked.look(200.0, written=80, **waiting(0.0)).quiet == 200.0


@pytest.mark.parametrize(
    "later",
    [waiting(40.0), waiting(0.0, operation="all_gather"), {}],
    ids=["next call", "other operation", "no longer waiting"],
)
def test_completing_a_collective_is_progress(later):
    assert Looked(**waiting(0.0)).look(100.0, **later).quiet == 0.0


def test_repeated_attempts_to_acquire_the_lock_are_not_progress():
    looked = Looked(**waiting(0.0, LOCK))
    assert looked.look(50.0).quiet == 50.0
    assert looked.look(100.0, **waiting(99.0, LOCK)).quiet == 100.0


def test_rank_without_samples_is_judged_by_its_files():
    track = Track()
    track.watch(RANK, 0, 0.0)
    track.watch(RANK, 0, 50.0)
    assert track.status(RANK, 50.0, {}).quiet == 50.0
    assert track.status(RANK, 50.0, {}).unheard
    track.watch(RANK, 9, 60.0)
    assert track.status(RANK, 60.0, {}).quiet == 0.0
    assert not track.status(RANK, 60.0, {}).unheard


# ---------------------------------------------------------------- activity


def test_waiting_time_is_measured_by_the_clock_of_the_rank():
    status = Looked().look(100.0, **waiting(70.0))
    assert status.lasting == 30.0
    assert (status.operation, status.missing) == ("all_reduce", (1,))
    assert status.in_collective
    assert not status.waits_for_lock


def test_waiting_time_grows_without_new_samples():
    looked = Looked(**waiting(-30.0))
    assert looked.track.status(RANK, 100.0, {}).lasting == 130.0


def test_waiting_for_the_lock_is_not_a_collective():
    status = Looked().look(100.0, **waiting(70.0, LOCK))
    assert status.waits_for_lock
    assert not status.in_collective


@pytest.mark.parametrize(("cpu", "computes"), [(0.02, False), (0.1, False), (0.3, True)])
def test_rank_using_a_fifth_of_a_cpu_is_computing(cpu, computes):
    looked = Looked(cpu=500.0)  # used long ago
    looked.look(60.0, cpu=500.0)
    looked.look(66.0, cpu=500.0 + 6 * cpu)
    status = looked.look(72.0, cpu=500.0 + 12 * cpu)
    assert status.computes is computes
    assert status.cpu == pytest.approx(cpu)


def test_cpu_share_is_unknown_at_first():
    assert Looked(cpu=9.0).look(0.5, cpu=9.5).cpu is None


def test_rank_without_new_samples_is_unheard():
    looked = Looked()
    assert not looked.look(5.0).unheard
    looked.track.watch(RANK, 0, 100.0)  # the same sample again
    assert looked.track.status(RANK, 100.0, {}).unheard
