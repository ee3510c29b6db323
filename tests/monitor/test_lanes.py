"""A rank's last minute from its samples: how it spent each second, how long steps take."""

from dataclasses import replace

import pytest

from xla_nb.monitor.activity import Slot, Track
from xla_nb.record.sample import DATA, LOCK, Loop, Sample


def track(*samples):
    """A track of samples, each given as its time and its non-default fields."""
    made = Track()
    for at, counted in samples:
        made.add(Sample(at=at, since=at, **counted))
    return made


def parts(slot):
    return pytest.approx((slot.compiling, slot.running, slot.others, slot.data))


# ---------------------------------------------------------------- lanes


def test_single_sample_gives_no_lane():
    assert track((100.0, {"waited": 5.0})).lane == ()


def test_first_sample_counts_from_the_start_unless_that_is_long_ago():
    for at, lane in [(100.5, [(99, 0.25, 0.25), (100, 0.25, 0.25)]), (104.0, [])]:
        made = Track()
        made.add(Sample(at=at, since=at, blocked=0.5), started=99.5)
        found = [(slot.second, slot.running, slot.blocked) for slot in made.lane]
        assert found == lane


def test_time_without_counters_is_running():
    made = track((100.0, {}), (101.0, {}))
    assert made.lane == (Slot(100, running=1.0),)


def test_each_second_shows_its_own_counts():
    made = track(
        (100.0, {"compile_seconds": 1.0, "waited": 2.0, "lock_waited": 0.5, "data_waited": 3.0}),
        (101.0, {"compile_seconds": 1.1, "waited": 2.2, "lock_waited": 0.6, "data_waited": 3.2}),
    )
    assert parts(made.lane[0]) == (0.1, 0.4, 0.3, 0.2)


def test_slots_are_whole_seconds_of_the_clock():
    made = track((100.75, {}), (101.5, {}), (102.25, {}))
    assert [slot.second for slot in made.lane] == [100, 101, 102]
    assert [slot.running for slot in made.lane] == [0.25, 1.0, 0.25]


def test_samples_seconds_apart_are_spread_evenly():
    made = track((100.0, {"waited": 0.0}), (103.0, {"waited": 1.5}))
    assert [(slot.second, slot.running, slot.others) for slot in made.lane] == [
        (second, 0.5, 0.5) for second in (100, 101, 102)
    ]


def test_call_lasts_until_the_wait_that_follows_it():
    """No look sees its end."""
    asleep = {"activity": "blocked", "blocked": 1.0, "waited": 0.0}
    made = track((100.0, {"waited": 0.0}), (101.0, asleep))
    waiting = {"activity": "waiting", "blocked": 1.0, "waited": 0.25, "cpu": 0.05}
    made.add(Sample(at=101.5, since=101.25, **waiting))
    newest = made.lane[-1]
    assert parts(newest) == (0.0, 0.05, 0.25, 0.0)
    assert newest.blocked == pytest.approx(0.2)


def test_only_what_was_counted_is_known_of_a_silent_rank():
    """It may have been stopped (SIGSTOP), which is not running."""
    made = track((100.0, {"waited": 0.0}), (104.0, {"waited": 2.0}), (105.0, {"waited": 2.0}))
    assert [(slot.second, slot.running, slot.others) for slot in made.lane] == [
        *((second, 0.0, 0.5) for second in (100, 101, 102, 103)),
        (104, 1.0, 0.0),
    ]


def test_long_time_without_samples_is_a_gap():
    made = track((100.0, {}), (101.0, {}), (140.0, {}), (141.0, {}))
    assert [slot.second for slot in made.lane] == [100, 140]


def test_idle_time_of_a_live_rank_is_not_running():
    resting = {"activity": "idle", "idle": 4.0}
    made = track((100.0, resting), (109.0, {"idle": 12.0}), (109.5, {"idle": 12.0}))
    assert [(slot.second, slot.running) for slot in made.lane] == [(108, 1.0), (109, 0.5)]
    made.add(Sample(at=120.0, since=110.0, activity="idle", idle=22.0))
    assert [(slot.second, slot.running) for slot in made.lane] == [(108, 1.0), (109, 1.0)]


def test_lane_of_an_idle_rank_shows_its_last_minute_of_work():
    made = track((100.0, {}), (101.0, {"activity": "idle"}))
    for second in range(111, 171, 10):
        made.add(Sample(at=second, since=101.0, activity="idle", idle=second - 101.0))
    assert made.lane == (Slot(100, running=1.0),)


@pytest.mark.parametrize("part", [0.0, 0.4])
def test_lane_never_exceeds_a_minute(part):
    made = track(*((second + part, {}) for second in range(1000)))
    assert len(made.lane) == 60
    assert made.lane[-1].second == 998 + bool(part)


def test_pace_covers_at_least_twenty_seconds_or_ten_steps_and_at_most_a_minute():
    made = track(*((100.7 * n, {"steps": n}) for n in range(3)))
    assert made.pace is None or made.pace.steps == 1
    for each, seconds in [(1.7, 20.4), (3.0, 30.0), (10.0, 60.0)]:
        made = track(*((each * n, {"steps": n}) for n in range(200)))
        assert made.pace.seconds == pytest.approx(seconds)


def test_costs_of_the_last_steps_are_counted_up_to_now():
    steps = [(100.0 + n, {"steps": n, "waited": 0.9 * n}) for n in range(15)]
    rests = [(114.0 + n, {"steps": 14, "waited": 12.6}) for n in range(1, 20)]
    paces = [track(*steps, *rests[:n]).pace for n in (0, 10, 19)]
    assert [(round(one.waited, 1), one.seconds) for one in paces] == [
        (11.7, 13.0), (9.0, 20.0), (9.0, 29.0),
    ]  # fmt: skip


def test_compilation_in_progress_is_counted_only_once():
    made = track(
        (100.0, {"compiling": 0.0}),
        (101.0, {"compiling": 0.75}),
        (102.0, {"compiling": 1.75}),
        (103.0, {"compile_seconds": 2.0}),
    )
    assert [slot.compiling for slot in made.lane] == [0.75, 1.0, 0.25]


def test_compiling_that_is_counted_at_its_end_is_spread_backwards():
    made = track((100.0, {}), (101.0, {}), (102.0, {}), (102.5, {"compile_seconds": 2.0}))
    assert [parts(slot) for slot in made.lane] == [
        (0.5, 0.5, 0, 0),
        (1.0, 0, 0, 0),
        (0.5, 0, 0, 0),
    ]


def test_time_counted_late_is_not_put_before_the_wait_can_have_begun():
    compiled = {"compile_seconds": 3.0, "data_waited": 0.2}
    made = track((100.0, {}), (101.0, {}), (103.0, {"compile_seconds": 2.0}), (104.0, compiled))
    assert parts(made.lane[0]) == (0, 1.0, 0, 0)


def test_decreasing_counters_count_as_zero():
    made = track((100.0, {"waited": 5.0, "compile_seconds": 3.0}), (101.0, {"waited": 1.0}))
    assert made.lane == (Slot(100, running=1.0),)


def test_counts_exceeding_the_elapsed_time_are_cut():
    (slot,) = track((100.0, {}), (101.0, {"waited": 0.8, "data_waited": 0.8})).lane
    assert parts(slot) == (0, 0, 0.8, 0.2)


def test_setting_the_clock_back_restarts_the_lane():
    made = track((100.0, {}), (103.0, {}), (101.0, {}), (102.0, {}))
    assert made.lane == (Slot(100, running=1.0), Slot(101, running=1.0))


def test_lane_is_the_last_minute_and_whole_covers_all_time_in_about_a_hundred_slots():
    made = track(*((float(at), {"data_waited": float(min(at, 2000))}) for at in range(10_001)))
    assert [slot.second for slot in made.lane] == [*range(9940, 10_000)]
    assert 30 <= len(made.whole) <= 180
    assert {slot.wide for slot in made.whole} == {256}
    assert sum(slot.data for slot in made.whole) == 2000
    assert sum(sum(slot.parts) for slot in made.whole) == 10_000
    assert [slot.second for slot in made.whole][:3] == [0, 256, 512]


# ---------------------------------------------------------------- waiting


def test_waiting_share_refers_to_the_whole_lane():
    made = track((100.0, {"waited": 0.0}), (102.0, {"waited": 0.5, "compile_seconds": 1.0}))
    assert made.waits(made.lane) == 0.25


def test_waiting_share_ignores_slots_that_are_not_shown():
    made = track((100.0, {"waited": 0.0}), (103.0, {"waited": 3.0}), (106.0, {"waited": 3.0}))
    assert made.waits(made.lane) == 0.5
    assert made.waits(made.lane[3:]) == 0.0
    assert made.waits(()) is None


def test_waiting_share_is_unknown_if_waits_are_not_counted():
    unseen = track((100.0, {"lock_waited": 0.0}), (102.0, {"lock_waited": 1.0}))
    assert unseen.waits(unseen.lane) is None
    seen = track((100.0, {"waited": 0.0}), (102.0, {"waited": 1.0}))
    assert seen.waits(seen.lane) == 0.5


# ---------------------------------------------------------------- steps


def stepping(seconds, step, start=100.0, each=0.25, **more):
    """Samples of a rank whose steps each take `step` seconds."""
    count = int(seconds / each)
    return [
        (start + each * n, {"steps": 1 + int(each * n / step), "waited": 0.0} | more)
        for n in range(count + 1)
    ]


def test_step_time_is_the_mean_of_the_last_steps():
    assert track(*stepping(10, 0.1)).step == pytest.approx(0.1, rel=0.03)


def test_steady_operation_is_shown_at_its_own_line():
    waits = {"activity": "waiting", "operation": "all_reduce", "place": "Cell In[1], line 7"}
    made = track(
        (100.0, {}),
        (101.9, waits | {"waited": 1.8}),
        (102.0, {"waited": 1.8, "place": "Cell In[1], line 8"}),
    )
    told = made.steady(Sample(at=102.0, since=102.0, place="Cell In[1], line 8"))
    assert (told.operation, told.place) == ("all_reduce", "Cell In[1], line 7")


def test_steady_running_and_loading_are_shown_where_they_were_seen():
    made = track(
        (100.0, {"place": "Cell In[1], line 6"}),
        (101.0, {"place": "Cell In[1], line 6"}),
        (101.9, {"place": "Cell In[1], line 8", "operation": "time.sleep", "blocked": 0.1}),
    )
    sleeps = Sample(at=101.9, since=101.8, place="Cell In[1], line 8", operation="time.sleep")
    assert made.steady(sleeps).place == "Cell In[1], line 6"
    loads = {"operation": DATA, "place": "Cell In[1], line 5"}
    made = track((100.0, {}), (101.0, loads | {"data_waited": 1.0}), (101.5, {"data_waited": 1.5}))
    told = made.steady(Sample(at=101.5, since=101.0, place="Cell In[1], line 9"))
    assert (told.activity, told.operation, told.place) == ("waiting", DATA, "Cell In[1], line 5")


def test_line_of_a_wait_that_is_long_over_is_not_shown():
    early = {"operation": "Queue.put", "blocked": 0.2, "place": "Cell In[1], line 12"}
    steps = [
        (102.0 + n / 4, {"blocked": 0.2 + n / 8, "waited": n / 9, "place": "Cell In[1], line 18"})
        for n in range(12)
    ]
    made = track((100.0, {}), (101.0, early), *steps)
    told = made.steady(made.sample)
    assert (told.activity, told.operation, told.place) == ("waiting", "", "Cell In[1], line 18")


def test_lock_holder_is_hidden_while_ranks_take_turns():
    waits = {"activity": "waiting", "operation": LOCK, "missing": (2,)}
    made = track((100.0, {}), (101.9, waits | {"lock_waited": 1.8}))
    told = made.steady(Sample(at=101.9, since=101.8, **waits))
    assert (told.operation, told.missing) == (LOCK, ())
    assert made.steady(Sample(at=101.9, since=100.1, **waits)).missing == (2,)
    assert made.steady(Sample(at=101.9, since=101.8, activity="running")).operation == ""
    sleeps = Sample(at=101.9, since=101.8, activity="running", operation="time.sleep")
    assert made.steady(sleeps) == replace(sleeps, activity="blocked")


def test_steady_ignores_the_previous_cell_of_live_ranks():
    made = track(*((100.0 + n, {"place": "Cell In[1], line 6"}) for n in range(3)))
    waits = {"activity": "waiting", "operation": "all_reduce", "place": "Cell In[2], line 1"}
    began = Sample(at=102.3, since=102.1, idle=0.01, waited=0.2, **waits)
    made.add(began)
    assert made.steady(began).place == "Cell In[2], line 1"


@pytest.mark.parametrize(("rate", "step"), [(5.0, 0.2), (None, None)])
def test_step_is_an_item_of_the_innermost_loop(rate, step):
    epochs = Loop(label="epochs", done=1, total=3, rate=0.01)
    loop = Loop(label="train", done=5, total=25, rate=rate)
    assert track((100.0, {"items": 5, "steps": 9, "loops": (epochs, loop)})).step == step


def test_slow_steps_are_timed_from_step_to_step():
    assert track(*stepping(17, 3.0)).step == pytest.approx(3.0, rel=0.05)


def test_step_time_is_unknown_before_two_steps():
    assert track((100.0, {"steps": 5}), (101.0, {"steps": 5}), (102.0, {"steps": 6})).pace is None


def test_steps_in_bursts_have_no_step_time():
    """Few bursts cannot be timed: ranks in lockstep would show different times."""
    times = [0.25 * n for n in range(28)]
    steps = [1 + 8 * int(t / 1.6) + min(8, int(t % 1.6 / 0.025)) for t in times]
    bursts = [(100.0 + t, {"steps": n}) for t, n in zip(times, steps, strict=True)]
    assert track(*bursts).step is None


def test_a_few_odd_seconds_leave_the_time_of_a_step_known():
    """Ranks in lockstep would show it or not by chance."""
    steady = stepping(20, 0.1)
    fast = [(at + 20.0, {"steps": told["steps"] + 200}) for at, told in stepping(2, 0.01)]
    slower = [(at + 22.0, {"steps": told["steps"] + 400}) for at, told in stepping(9, 0.1)]
    assert track(*steady, *fast, *slower).step == pytest.approx(0.065, rel=0.1)


def test_compiling_steps_are_left_out():
    before, after = {"compiles": 0}, {"compiles": 2, "compile_seconds": 5.96}
    first = [(at, told | before) for at, told in stepping(2, 0.02)]
    second = [(at + 6.0, told | after) for at, told in stepping(4, 0.02, start=102.0)]
    counted = [(at, told | {"steps": told["steps"] + 102}) for at, told in second]
    assert track(*first, *counted).step == pytest.approx(0.02, rel=0.05)


def test_pause_between_steps_is_left_out_of_their_time():
    early = [(100.0 + n / 4, {"steps": min(n, 1)}) for n in range(20)]
    steps = [(at, told | {"steps": told["steps"] + 1}) for at, told in stepping(5, 0.1, 105.0)]
    assert track(*early, *steps).step == pytest.approx(0.1, rel=0.05)
    assert track(*early, *stepping(1, 0.1, 105.0)).step == pytest.approx(0.1, rel=0.1)
    assert track(*early, (105.0, {"steps": 3})).step is None


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_step_time_is_unknown_while_the_first_steps_compile(steps):
    compiling = [(100.0 + n, {"steps": 1, "compiling": float(n)}) for n in range(29)]
    compiled = {"steps": 1 + steps, "compiles": steps, "compile_seconds": 28.5}
    assert track(*compiling, (129.3, compiled)).step is None


def test_step_time_leaves_out_the_compilation_in_progress():
    made = track(
        *((100.0 + n, {"steps": 1 + n}) for n in range(4)),
        (113.0, {"steps": 5, "compiling": 9.0}),
    )
    assert made.step == pytest.approx(1.0)


def test_step_time_includes_waiting_but_no_compilation():
    made = track(
        (100.0, {"steps": 1, "waited": 0.0}),
        (101.0, {"steps": 2, "waited": 0.0}),
        (106.0, {"steps": 7, "waited": 2.0, "compiles": 5, "compile_seconds": 2.5}),
        (111.0, {"steps": 12, "waited": 4.0, "compiles": 10, "compile_seconds": 5.0}),
    )
    assert made.step == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("graphs", [0, 5])
def test_items_count_as_steps_without_markers_regardless_of_graphs(graphs):
    made = track(*((100.0 + n, {"items": 5 * n, "graphs": graphs * n}) for n in range(4)))
    assert (made.pace.steps, made.pace.seconds, made.pace.executed) == (10, 2.0, 2 * graphs or 10)


def test_items_count_as_steps_under_jax_without_graph_counts():
    assert track(*((100.0 + n, {"items": 5 * n}) for n in range(4))).pace.steps == 10


def test_step_time_is_known_once_samples_are_dense_enough():
    assert track(*stepping(2, 0.3)).step is None
    assert track(*stepping(9, 0.3)).step == pytest.approx(0.3, rel=0.1)


def test_step_time_is_shown_until_the_next_step_is_overdue():
    steps = {"steps": 31, "waited": 0.0}
    assert track(*stepping(9, 0.3), (128.0, steps)).step is not None
    assert track(*stepping(9, 0.3), (131.0, steps)).step is None
    assert track(*stepping(28, 7.0), (141.0, {"steps": 5, "waited": 0.0})).step == 7.0


@pytest.mark.parametrize("markers", [1, 2])
def test_compilations_are_counted_per_step_that_executed_a_graph(markers):
    samples = [(100.0 + n, {"steps": markers * n, "compiles": n, "graphs": n}) for n in range(20)]
    pace = track(*samples).pace
    assert (pace.compiles, pace.executed) == (18, 18)


def test_memory_is_bounded():
    made = track(*stepping(600, 0.01))
    assert len(made._marks) < 150


def test_steps_of_live_ranks_are_those_of_their_newest_cell():
    cell = [(100.0, {"steps": 1}), (101.0, {"steps": 2}), (104.0, {"steps": 6})]
    rests = (104.1, {"steps": 7, "idle": 0.05, "activity": "idle"})
    begins = (110.0, {"steps": 7, "idle": 5.0})
    goes_on = [(at, {"steps": at - 103, "idle": 5.0}) for at in (111, 112, 114)]
    assert track(*cell, rests).pace.steps == 5
    assert track(*cell, rests, begins).pace is None
    made = track(*cell, rests, begins, *goes_on)
    assert (made.pace.steps, made.pace.seconds, made.step) == (3, 3.0, 1.0)
