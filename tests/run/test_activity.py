"""How long a rank has made no progress, and what counts as progress."""

import pytest

from xla_nb.record.sample import LOCK, Loop, Sample
from xla_nb.run.activity import Track
from xla_nb.run.state import RankState

RANK = RankState(2, phase="running", pid=7)
EPOCH = 1_000_000.0  # the clock of the rank's host has nothing to do with ours


def sample(now, **figures):
    """A sample that is taken at `now` of our clock."""
    return Sample(at=EPOCH + now, **{"since": EPOCH, **figures})


class Looked:
    """A clock with a look at 0, and what it says after another one."""

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
def test_what_a_rank_counts_or_writes_is_progress(progress):
    assert Looked().look(100.0, **progress).quiet == 0.0


@pytest.mark.parametrize(
    "sign",
    [{"place": "Cell In[1], line 2"}, {"memory": 5}, {"cpu": 99.0}, {"activity": "compiling"}, {}],
    ids=lambda sign: next(iter(sign), "nothing"),
)
def test_what_only_shows_that_it_lives_is_none(sign):
    assert Looked().look(100.0, **sign).quiet == 100.0


def test_to_have_begun_is_progress():
    looked = Looked(rank=RankState(2, phase="starting"))
    assert looked.look(100.0).quiet == 0.0


def test_the_clock_starts_again_with_progress():
    looked = Looked()
    looked.look(50.0, steps=1)
    assert looked.look(80.0, steps=1).quiet == 30.0


def test_what_a_rank_writes_while_it_waits_in_one_collective_is_no_progress():
    looked = Looked(**waiting(0.0))
    assert looked.look(100.0, written=80, **waiting(0.01)).quiet == 100.0
    assert looked.look(200.0, written=80, **waiting(0.0)).quiet == 200.0


@pytest.mark.parametrize(
    "later",
    [waiting(40.0), waiting(0.0, operation="all_gather"), {}],
    ids=["the next one", "another", "out of it"],
)
def test_to_get_through_a_collective_is_progress(later):
    assert Looked(**waiting(0.0)).look(100.0, **later).quiet == 0.0


def test_to_try_for_the_lock_again_and_again_is_no_progress():
    looked = Looked(**waiting(0.0, LOCK))
    assert looked.look(50.0).quiet == 50.0
    assert looked.look(100.0, **waiting(99.0, LOCK)).quiet == 100.0


def test_without_a_sample_its_files_tell():
    track = Track()
    track.watch(RANK, 0, 0.0)
    track.watch(RANK, 0, 50.0)
    assert track.status(RANK, 50.0, {}).quiet == 50.0
    assert track.status(RANK, 50.0, {}).unheard
    track.watch(RANK, 9, 60.0)
    assert track.status(RANK, 60.0, {}).quiet == 0.0
    assert not track.status(RANK, 60.0, {}).unheard


# ---------------------------------------------------------------- what it does


def test_how_long_it_has_waited_is_of_its_own_clock():
    status = Looked().look(100.0, **waiting(70.0))
    assert status.lasting == 30.0
    assert (status.operation, status.missing) == ("all_reduce", (1,))
    assert status.in_collective
    assert not status.waits_for_lock


def test_a_wait_goes_on_while_no_sample_comes():
    looked = Looked(**waiting(-30.0))
    assert looked.track.status(RANK, 100.0, {}).lasting == 130.0


def test_a_wait_for_the_lock_is_no_collective():
    status = Looked().look(100.0, **waiting(70.0, LOCK))
    assert status.waits_for_lock
    assert not status.in_collective


@pytest.mark.parametrize(("cpu", "computes"), [(0.02, False), (0.1, False), (0.3, True)])
def test_a_rank_computes_that_used_a_fifth_of_a_cpu_lately(cpu, computes):
    looked = Looked(cpu=500.0)  # of long ago
    looked.look(60.0, cpu=500.0)
    looked.look(66.0, cpu=500.0 + 6 * cpu)
    status = looked.look(72.0, cpu=500.0 + 12 * cpu)
    assert status.computes is computes
    assert status.cpu == pytest.approx(cpu)


def test_its_share_of_a_cpu_is_not_known_at_once():
    assert Looked(cpu=9.0).look(0.5, cpu=9.5).cpu is None


def test_a_rank_whose_samples_stop_is_unheard():
    looked = Looked()
    assert not looked.look(5.0).unheard
    looked.track.watch(RANK, 0, 100.0)  # the same sample again
    assert looked.track.status(RANK, 100.0, {}).unheard
