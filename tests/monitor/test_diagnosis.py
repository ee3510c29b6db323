"""The one-sentence diagnosis of a run: what ended it, what slows it down, or how many ranks run."""

import ast
from dataclasses import replace

import pytest

from xla_nb.messages.events import Concluded, HangReported
from xla_nb.monitor.activity import Window
from xla_nb.monitor.diagnosis import Diagnoser, ended
from xla_nb.monitor.snapshot import Card, Diagnosis, Snapshot, Trouble
from xla_nb.record.sample import INPUT, LOCK, Sample

PATIENCE = 60  # seconds


def diagnose(snapshot, paces):
    return Diagnoser().look(snapshot, paces)


def snapshot(*cards, **fields):
    fields = {"cell": "Cell In[3]", "headline": f"{len(cards)} ranks running"} | fields
    return Snapshot(run="20260101-000000-abcdef", record="/r", now=200.0, cards=cards, **fields)


def card(rank, phase="running", line=5, waited=0.0, operation="", missing=(), **fields):
    activity = "waiting" if phase == "waiting" else "running"
    since = 200.0 - waited
    sample = Sample(at=200.0, since=since, activity=activity, operation=operation, missing=missing)
    place = f"Cell In[3], line {line}"
    return Card(rank, phase=phase, **{"sample": sample, "place": place} | fields)


def waiting(rank, waited, missing, operation="all_reduce sum f32[2]", line=9):
    return card(rank, "waiting", line, waited, operation, missing)


def said(*cards, paces=None, **fields):
    return diagnose(snapshot(*cards, **fields), paces or {}).sentence


def hang_report(verdict, *culprits, at=199.5):
    return HangReported(verdict=verdict, ranks=(0, 1), groups=(), culprits=culprits, at=at)


def trouble(*ranks, first=True):
    return Trouble(ranks, first, "ValueError: boom", "Cell In[3], line 7", "", told=True)


# ---------------------------------------------------------------- no problems


def test_healthy_run_shows_number_of_ranks():
    assert diagnose(snapshot(card(0), card(1)), {}) == Diagnosis("2 ranks running", "calm", ())


def test_run_without_ranks_is_starting():
    assert said(headline="Starting") == "Starting"


def test_question_to_user_takes_precedence_over_waiting_ranks():
    asks, other = waiting(1, 1.0, (), INPUT, line=4), waiting(0, 20.0, (1,))
    found = diagnose(snapshot(other, asks), {})
    assert found.sentence == "Rank 1 waits for an answer at line 4"
    assert found.ranks == (1,)


def test_question_names_line_only_if_all_ranks_ask_there():
    first, second = (waiting(rank, 1.0, (), INPUT, line=4) for rank in (0, 1))
    other = waiting(1, 1.0, (), INPUT, line=7)
    assert said(first, second) == "Ranks 0, 1 wait for an answer at line 4"
    assert said(first, other) == "Ranks 0, 1 wait for an answer"


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("ok", "fields", "level"),
    [
        (True, {}, "calm"),
        (False, {"troubles": (trouble(1, 0),)}, "bad"),
        (False, {"stopping": "Stopped by the Stop button"}, "calm"),
        (False, {}, "bad"),
    ],
)
def test_ended_run_shows_its_headline(ok, fields, level):
    ended = snapshot(waiting(0, 50.0, (1,)), card(1), headline="How it went", ok=ok, **fields)
    found = diagnose(ended, {})
    assert (found.sentence, found.level) == ("How it went", level)


def test_rank_that_returned_before_a_collective_is_marked():
    ended = snapshot(card(0, "failed"), card(1, "early"), ok=False, troubles=(trouble(0),))
    assert diagnose(ended, {}).ranks == (1,)


# ---------------------------------------------------------------- hangs, stops, failures


@pytest.mark.parametrize(
    ("at", "told"), [(199.5, ""), (198.0, " (reported 2 s ago)"), (185.0, " (reported 15 s ago)")]
)
def test_hang_shows_age_of_its_report(at, told):
    hang = hang_report("Rank 0 has been waiting 4 s for rank 1", at=at)
    assert said(card(0), hang=hang) == f"Rank 0 has been waiting 4 s for rank 1{told}"


def test_hang_takes_precedence_over_everything_else():
    hang = hang_report("Rank 1 is in `queue.get` at line 4", 1)
    found = diagnose(snapshot(waiting(0, 50.0, (1,)), card(1), hang=hang, stopping="why"), {})
    assert found == Diagnosis("Rank 1 is in `queue.get` at line 4", "bad", (1,))


def test_hang_marks_all_its_ranks_if_none_is_to_blame():
    hang = hang_report("Rank 0 has been waiting 9 s for rank 1; rank 1 for rank 0")
    assert diagnose(snapshot(card(0), card(1), card(2), hang=hang), {}).ranks == (0, 1)


def test_stopping_run_shows_reason_and_ranks_still_running():
    why = "Stopped by the Stop button"
    found = diagnose(snapshot(card(0), card(1, "stopped"), stopping=why, headline=why), {})
    assert found == Diagnosis("Stopped by the Stop button; 1 rank still running", "warning", ())


def test_failure_is_shown_while_other_ranks_still_run():
    cards = card(0), card(1, "failed"), card(2)
    found = diagnose(snapshot(*cards, headline="Rank 1 failed", troubles=(trouble(1),)), {})
    assert found == Diagnosis("Rank 1 failed; 2 ranks still running", "bad", (1,))


def test_failure_counts_other_ranks_as_waiting_if_all_wait():
    cards = card(0, "waiting"), card(1, "failed"), card(2, "waiting")
    found = diagnose(snapshot(*cards, headline="Rank 1 failed", troubles=(trouble(1),)), {})
    assert found.sentence == "Rank 1 failed; 2 ranks still waiting"


# ---------------------------------------------------------------- waiting


def test_wait_shows_ranks_duration_and_line_of_late_rank():
    others = (waiting(rank, 16.9, (2,)) for rank in (0, 1, 3))
    found = diagnose(snapshot(*others, card(2, line=6)), {})
    told = "3 ranks have been waiting 16 s for rank 2, at line 6"
    assert found == Diagnosis(told, "warning", (2,))


def test_single_waiting_rank_is_named():
    assert (
        said(waiting(0, 4.0, (1,)), card(1)) == "Rank 0 has been waiting 4 s for rank 1, at line 5"
    )


def test_short_wait_is_not_shown():
    assert said(waiting(0, 2.0, (1,)), card(1)) == "2 ranks running"


def test_waits_of_different_length_show_the_longest():
    told = "2 ranks have been waiting up to 30 s for rank 2, at line 5"
    assert said(waiting(0, 30.0, (2,)), waiting(1, 4.0, (2,)), card(2)) == told


def test_longest_of_several_waits_is_shown():
    cards = waiting(0, 5.0, (1,)), card(1), waiting(2, 40.0, (3,), "all_gather"), card(3, line=8)
    assert said(*cards) == "Rank 2 has been waiting 40 s for rank 3, at line 8"


def test_rank_that_joined_the_collective_is_no_longer_late():
    cards = waiting(0, 9.0, (1, 2)), waiting(1, 4.0, (2,)), card(2)
    assert said(*cards) == "2 ranks have been waiting up to 9 s for rank 2, at line 5"


def test_wait_lasts_until_now_unless_clocks_may_differ():
    sample = Sample(at=199.2, since=194.5, activity="waiting", operation="all_reduce", missing=(1,))
    late = card(0, "waiting", sample=sample, since=194.5)
    assert said(late, card(1)).startswith("Rank 0 has been waiting 5 s for rank 1")
    hosts = {"hosts": ("a", "b")}  # their clocks may differ
    assert said(late, card(1), **hosts).startswith("Rank 0 has been waiting 4 s for rank 1")


def test_rank_that_ended_after_the_sample_is_not_late():
    ended = card(1, "finished", since=200.1)
    assert said(waiting(0, 8.0, (1,)), ended) == "2 ranks running"


def test_moving_data_is_not_a_wait():
    assert said(waiting(0, 20.0, ()), waiting(1, 20.0, ())) == "2 ranks running"


def test_late_ranks_at_different_lines_show_no_line():
    cards = waiting(0, 9.0, (1, 2)), card(1, line=5), card(2, line=6)
    assert said(*cards) == "Rank 0 has been waiting 9 s for ranks 1, 2"


@pytest.mark.parametrize(
    ("late", "does"),
    [
        (card(1, "compiling"), ", compiling at line 5"),
        (Card(1, phase="starting"), ", still starting"),
        (card(1, "finished"), ", which has returned"),
        (card(1, "waiting", 7, 1.0, LOCK), ", which waits for `lock` at line 7"),
        (
            card(1, "waiting", 7, 1.0, LOCK, (0,)),
            ", which waits for `lock` at line 7, held by rank 0",
        ),
        (card(1, "waiting", 7, 1.0, "all_gather f32[2]"), ", in all_gather at line 7"),
        (card(1, place="Cell In[2], line 4"), ", at Cell In[2], line 4"),
        (card(1, place=""), ""),
    ],
)
def test_wait_shows_what_late_rank_does(late, does):
    assert said(waiting(0, 9.0, (1,)), late) == f"Rank 0 has been waiting 9 s for rank 1{does}"


def test_wait_for_lock_names_its_holder():
    cards = waiting(0, 9.0, (1,), LOCK), card(1, line=4)
    assert said(*cards) == "Rank 0 has been waiting 9 s for `lock`, which rank 1 holds, at line 4"
    assert said(waiting(0, 9.0, (), LOCK), card(1)) == "Rank 0 has been waiting 9 s for `lock`"


def test_wait_names_lock_holder_among_the_waiting_ranks():
    late = card(1, "waiting", 7, 1.0, LOCK, (2,))
    cards = waiting(0, 9.0, (1,)), late, waiting(2, 9.0, (1,))
    told = (
        "2 ranks have been waiting 9 s for rank 1, which waits for `lock` at line 7, held by rank 2"
    )
    assert said(*cards) == told


def test_rank_waiting_for_its_own_lock_is_shown():
    told = "Rank 0 has been waiting 9 s for `lock`, which it holds itself"
    assert said(waiting(0, 9.0, (0,), LOCK), card(1)) == told


def test_holder_of_lock_is_not_shown_waiting_for_it():
    cards = waiting(0, 9.0, (1,), LOCK), card(1, "waiting", 7, 1.0, LOCK)
    assert said(*cards) == "Rank 0 has been waiting 9 s for `lock`, which rank 1 holds"


def test_period_at_end_of_error_is_not_repeated():
    found = said(
        card(0, "failed"),
        card(1),
        headline="Rank 0 failed.",
        troubles=(Trouble((0,), True, "x", "", ""),),
    )
    assert found == "Rank 0 failed; 1 rank still running"


def test_stopped_run_reports_that_it_mostly_compiled():
    graphs = Concluded(kind="graphs", sentence="90 s of it compiling 9 graphs", calm=True)
    told = ended("Stopped by an interrupt", graphs, ok=False, elapsed=100.0)
    assert told == "Stopped by an interrupt; ended after 1 min 40 s, 90 s of it compiling 9 graphs"


# ---------------------------------------------------------------- the slowest rank


def pace(seconds=50.0, steps=100, newest=None, **more):
    """The recent counts of a rank."""
    newest = newest or Sample(at=200.0, since=200.0, steps=1000)
    nothing = {"compiles": 0, "compiling": 0.0, "waited": 0.0, "locked": 0.0, "data": 0.0}
    nothing |= {"blocked": 0.0, "fallbacks": {}}
    counted = {"steps": steps, "executed": steps, "newest": newest} | nothing | more
    return Window(seconds, **counted)


def crowd(*waits, **more):
    """The diagnosis of ranks with these waiting times."""
    paces = {rank: pace(waited=wait, **more) for rank, wait in enumerate(waits)}
    return diagnose(snapshot(*map(card, paces)), paces)


def test_slow_rank_is_named_with_time_others_waited():
    found = crowd(14.0, 13.5, 0.5, 14.5)
    told = "The others waited at least 13 s of the last 50 s for rank 2"
    assert found == Diagnosis(told, "warning", (2,))


def test_slow_rank_of_two_is_named():
    told = "The other waited at least 25 s of the last 50 s for rank 1"
    assert crowd(25.0, 0.0).sentence == told


@pytest.mark.parametrize(("wait", "least"), [(5.68, "5.6 s"), (13.9, "13 s")])
def test_minimum_waiting_time_is_not_rounded_up(wait, least):
    told = f"The others waited at least {least} of the last 50 s for rank 2"
    assert crowd(wait, wait, 0.0).sentence == told


def test_several_slow_ranks_are_named_together():
    found = crowd(*[15.0] * 5, 0.0, 0.5)
    assert found.sentence.endswith(" for ranks 5, 6")
    assert crowd(15.0, 15.0, 0.0, 0.0).ranks == (2, 3)


@pytest.mark.parametrize(
    ("waits", "more"),
    [
        pytest.param([2.5, 2.5, 0.0], {}, id="short waits"),
        pytest.param([15.0, 15.0, 10.0], {}, id="slow rank waits too"),
        pytest.param([20.0, 8.0, 20.0, 12.0], {}, id="slow rank changed"),
        pytest.param([None, None, None], {}, id="unknown waits"),
        pytest.param([15.0, 15.0, 0.0], {"steps": 5}, id="few steps"),
        pytest.param([1.5, 1.5, 0.0], {"seconds": 2.0}, id="just started"),
        pytest.param([15.0, 0.0, 0.0, 0.0], {}, id="most ranks slow"),
        pytest.param([0.0], {}, id="single rank"),
    ],
)
def test_slow_rank_is_not_named_without_evidence(waits, more):
    assert crowd(*waits, **more).level == "calm"


def test_waits_from_samples_of_different_times_are_not_compared():
    def lately(at):
        return Sample(at=at, since=at, steps=1000)

    waits = [(0.0, 199.0), (3.0, 199.0), (3.0, 199.0), (0.1, 196.0)]
    own = {rank: pace(9.0, 16, lately(at), waited=w) for rank, (w, at) in enumerate(waits)}
    assert diagnose(snapshot(*map(card, own)), own).level == "calm"


def test_slow_rank_may_have_a_different_step_count():
    paces = {0: pace(waited=15.0), 1: pace(steps=150)}  # includes a validation on this rank only
    told = "The other waited at least 15 s of the last 50 s for rank 1"
    assert diagnose(snapshot(card(0), card(1)), paces).sentence == told


def test_ranks_without_known_steps_are_not_compared():
    paces = {0: pace(waited=15.0), 1: pace(), 2: None}
    assert diagnose(snapshot(*map(card, paces)), paces).level == "calm"


# ---------------------------------------------------------------- repeated compilation


def again(place="", compiles=40, steps=40, compiling=30.0):
    """A rank that compiles in each step, with the line if known."""
    change = "gives a new shape {often} ((8, 3), then (8, 4))" if place else ""
    newest = Sample(at=200.0, since=200.0, changes_at=place, change=change)
    return pace(steps=steps, compiles=compiles, compiling=compiling, newest=newest)


COST = "compiled a new graph; compiling took 30 s of the last 50 s"


def test_recompilation_names_line_that_changes_in_each_step():
    each, other = again("Cell In[3], line 12"), again("Cell In[3], line 12", 30)
    found = diagnose(snapshot(card(0), card(1)), {0: each, 1: each})
    told = f"Line 12 gives a new shape in each step ((8, 3), then (8, 4)), so each {COST}"
    assert found == Diagnosis(told, "warning", ())
    told = f"Line 12 gives a new shape in many steps ((8, 3), then (8, 4)), so these {COST}"
    assert said(card(0), card(1), paces={0: each, 1: other}) == told


def test_recompilation_in_a_third_of_the_steps_is_of_all_ranks_that_do_about_the_same():
    place = "Cell In[3], line 12"
    told = said(card(0), card(1), paces={0: again(place, 33, 100), 1: again(place, 29, 100)})
    assert " in many steps " in told
    assert " so these compiled a new graph; " in told


def test_recompilation_names_cell_of_line_in_another_cell():
    told = said(card(0), paces={0: again("Cell In[2], line 4")})
    assert told.startswith("Cell In[2], line 4 gives a new shape in each step")


def test_recompilation_names_ranks_if_not_all_and_line_if_known():
    found = diagnose(snapshot(card(0), card(1)), {0: pace(), 1: again()})
    assert found == Diagnosis(f"Each step of rank 1 {COST}", "warning", (1,))
    known = said(card(0), card(1), paces={0: pace(), 1: again("Cell In[3], line 12")})
    assert known.endswith(f"then (8, 4)), so each step of rank 1 {COST}")
    alone = said(card(0, "finished"), card(1), paces={1: again()})
    assert alone == f"Each step of rank 1 {COST}"
    both = said(card(0), card(1), paces={0: again(), 1: again()})
    assert both == f"Each step {COST}"


def test_cost_of_recompilation_is_that_of_the_slowest_rank():
    told = said(card(0), card(1), paces={0: again(compiling=5.0), 1: again(compiling=16.3)})
    assert told == "Each step compiled a new graph; compiling took up to 16 s of the last 50 s"


def test_recompilation_is_of_all_ranks_though_some_are_just_behind():
    others = {0: again(compiling=1.9), 1: again(compiling=2.1), 2: again("", 9, 9, 1.8)}
    cards = [card(rank) for rank in others]
    assert said(*cards, paces=others) == "3 ranks running"  # not yet a tenth of the time
    others = {rank: replace(pace, compiling=5 + pace.compiling) for rank, pace in others.items()}
    told = "Each step compiled a new graph; compiling took up to 7.1 s of the last 50 s"
    assert said(*cards, paces=others) == told


def test_recompilation_counts_new_graphs_per_step():
    two = again(compiles=81)
    assert " compiled 2 new graphs; " in said(card(0), card(1), paces={0: two, 1: two})
    assert " compiled new graphs; " in said(card(0), card(1), paces={0: two, 1: again()})


def test_recompilation_explains_a_slow_rank():
    told = said(card(0), card(1), paces={0: pace(waited=33.0), 1: replace(again(), waited=0.0)})
    assert told == f"Each step of rank 1 {COST}"


@pytest.mark.parametrize(
    ("compiles", "steps", "compiling"),
    [(7, 7, 30), (20, 40, 30), (3, 1000, 30), (40, 2, 30), (40, 40, 1.9)],
)
def test_few_or_cheap_compilations_are_normal(compiles, steps, compiling):
    usual = again(compiles=compiles, steps=steps, compiling=compiling)
    assert said(card(0), paces={0: usual}) == "1 ranks running"


# ---------------------------------------------------------------- fallbacks, data


def test_operator_on_cpu_in_every_step_is_shown():
    slow = pace(fallbacks={"aten::nonzero": 100, "aten::unique": 10})
    assert said(card(0), paces={0: slow}) == "Every step ran aten::nonzero on the CPU"


def test_operator_on_cpu_names_ranks_if_not_all():
    slow = pace(fallbacks={"aten::nonzero": 100})
    told = said(card(0), card(1), paces={0: pace(), 1: slow})
    assert told == "Every step of rank 1 ran aten::nonzero on the CPU"


def test_several_cpu_operators_are_counted():
    slow = pace(fallbacks={f"aten::{name}": 200 for name in "abc"})
    told = "Every step ran aten::a, aten::b and 1 more on the CPU"
    assert said(card(0), paces={0: slow}) == told


def loading(data, steps=30):
    return pace(data=data, newest=Sample(at=200.0, since=200.0, steps=steps))


def test_waiting_for_data_is_shown():
    found = diagnose(snapshot(card(0), card(1)), {0: loading(20.0), 1: loading(20.0)})
    assert found == Diagnosis("Waiting for data took 20 s of the last 50 s", "warning", ())


def test_single_rank_waiting_for_data_is_marked():
    found = diagnose(snapshot(card(0), card(1)), {0: loading(20.0), 1: loading(0.0)})
    assert found == Diagnosis(
        "Waiting for data took 20 s of the last 50 s on rank 0", "warning", (0,)
    )


def test_waiting_for_data_is_not_told_of_some_ranks_before_all_are_known():
    own = {0: loading(20.0), 1: loading(20.0), 2: None}
    assert said(*map(card, own), paces=own) == "3 ranks running"


def test_first_wait_for_data_is_left_out():
    newest = Sample(at=200.0, since=200.0, steps=30)
    assert said(card(0), paces={0: pace(data=45.0, first_data=40.0, newest=newest)}) == (
        "1 ranks running"
    )
    told = "Waiting for data took 15 s of the last 50 s, not counting the first batch"
    assert said(card(0), paces={0: pace(data=45.0, first_data=30.0, newest=newest)}) == told
    told = "Waiting for data took 15 s of the last 50 s"
    assert said(card(0), paces={0: pace(data=16.0, first_data=1.0, newest=newest)}) == told


def test_waiting_for_data_explains_a_slow_rank():
    newest = Sample(at=200.0, since=200.0, steps=100)
    slow = pace(data=16.0, waited=0.0, newest=newest)
    other = pace(waited=17.0, newest=newest)
    told = "Waiting for data took 16 s of the last 50 s on rank 1"
    assert said(card(0), card(1), paces={0: other, 1: slow}) == told
    busy = replace(slow, data=6.0)  # explains only a small part
    told = "The other waited at least 17 s of the last 50 s for rank 1"
    assert said(card(0), card(1), paces={0: other, 1: busy}) == told


def test_waiting_for_data_includes_ranks_with_similar_waits():
    found = diagnose(snapshot(card(0), card(1)), {0: loading(11.0), 1: loading(9.0)})
    assert found == Diagnosis("Waiting for data took up to 11 s of the last 50 s", "warning", ())


def test_longest_wait_for_data_is_shown_despite_few_steps():
    own = {0: loading(12.0), 1: loading(45.0, steps=9), 2: loading(11.0)}
    found = diagnose(snapshot(*map(card, own)), own)
    assert found.sentence == "Waiting for data took 45 s of the last 50 s on rank 1"


def test_waiting_for_lock_is_shown():
    paces = {0: pace(locked=0.5), 1: pace(locked=30.0), 2: pace(locked=40.0)}
    found = diagnose(snapshot(card(0), card(1), card(2)), paces)
    told = "Waiting for the `lock` took up to 40 s of the last 50 s on ranks 1, 2"
    assert found == Diagnosis(told, "warning", (1, 2))


@pytest.mark.parametrize(("data", "steps"), [(9.0, 1000), (45.0, 29)])
def test_short_or_initial_waits_for_data_are_normal(data, steps):
    assert said(card(0), paces={0: loading(data, steps)}) == "1 ranks running"


# ---------------------------------------------------------------- no flicker


def at(now, *cards, paces=None):
    return replace(snapshot(*cards), now=now), paces or {}


AGAIN = {0: again()}


def test_sentence_about_steps_stays_for_a_moment():
    diagnoser = Diagnoser()
    told = [
        diagnoser.look(*at(now, card(0), paces=paces)).sentence
        for now, paces in ((100.0, AGAIN), (101.0, {}), (102.0, AGAIN), (104.0, {}), (106.0, {}))
    ]
    assert told == [f"Each step {COST}"] * 3 + ["1 ranks running"] * 2


def test_sentence_does_not_stay_after_one_of_its_ranks_ends():
    diagnoser, both = Diagnoser(), {0: AGAIN[0], 1: AGAIN[0]}
    assert "compiled" in diagnoser.look(*at(100.0, card(0), card(1), paces=both)).sentence
    left = diagnoser.look(*at(100.2, card(0), card(1, "finished"), paces={}))
    assert left.sentence == "2 ranks running"  # the headline of this test


def test_numbers_in_sentence_stay_for_a_moment():
    diagnoser = Diagnoser()
    told = []
    for n in range(5):
        more = replace(AGAIN[0], compiling=40.0 + n)
        told.append(diagnoser.look(*at(100.0 + n, card(0), paces={0: more})).sentence)
    assert [sentence.split()[8] for sentence in told] == ["40", "40", "40", "43", "43"]


def test_another_problem_is_shown_at_once():
    diagnoser = Diagnoser()
    told = [diagnoser.look(*at(100.0, card(0), paces=AGAIN)).sentence]
    told.append(diagnoser.look(*at(100.5, card(0), paces={0: loading(20.0)})).sentence)
    assert [one.split()[0] for one in told] == ["Each", "Waiting"]


def test_sentence_about_steps_does_not_return_after_a_long_wait():
    diagnoser = Diagnoser()
    assert "compiled" in diagnoser.look(*at(100.0, card(0), card(1), paces=AGAIN)).sentence
    long_wait = at(101.0, waiting(0, 9.0, (1,)), card(1))
    assert "been waiting" in diagnoser.look(*long_wait).sentence
    assert diagnoser.look(*at(101.2, card(0), card(1))).sentence == "2 ranks running"


def test_finished_wait_is_no_longer_shown():
    diagnoser = Diagnoser()
    assert "been waiting" in diagnoser.look(*at(100.0, waiting(0, 9.0, (1,)), card(1))).sentence
    assert diagnoser.look(*at(100.2, card(0), card(1))).sentence == "2 ranks running"


def test_problem_of_a_cell_is_not_shown_for_idle_live_ranks():
    diagnoser = Diagnoser()
    assert "compiled" in diagnoser.look(*at(100.0, card(0), paces=AGAIN)).sentence
    resting = diagnoser.look(*at(100.2, card(0, "idle"), paces=AGAIN))
    assert resting.sentence == "1 ranks running"  # the headline of this test


def test_problem_of_busy_ranks_does_not_name_idle_ranks():
    paces = {0: AGAIN[0], 1: AGAIN[0]}
    ranks = [card(0), card(1), card(2, "idle")]
    assert said(*ranks, paces=paces) == f"Each step of ranks 0, 1 {COST}"


def test_problem_is_not_shown_after_run_ends():
    diagnoser = Diagnoser()
    diagnoser.look(*at(100.0, card(0), paces=AGAIN))
    ended = replace(snapshot(card(0, "finished")), now=100.2, ok=True, headline="1 rank finished")
    assert diagnoser.look(ended, AGAIN).sentence == "1 rank finished"


# ---------------------------------------------------------------- real ranks

LOOK = """
import time
from xla_nb.views.observer import Observer
def diagnosed(run, about):
    '''The first diagnosis whose sentence has these words, and whom it is about.'''
    observer, deadline = Observer(run), time.monotonic() + 60
    while time.monotonic() < deadline and not run.done:
        observer.sample()
        seen = observer.snapshot()
        if about in seen.diagnosis.sentence:
            return seen.diagnosis.sentence, seen.diagnosis.ranks
        time.sleep(0.1)
    return seen.diagnosis.sentence, ()
"""
SLOW = """
%%xla_spawn -n 3 -o busy --bg --view none
def main(rank, flag={flag!r}):
    import time, torch, torch_xla
    import torch_xla.core.xla_model as xm
    from pathlib import Path
    x = torch.ones(8, 8, device=torch_xla.device())
    while not xm.mesh_reduce("over", Path(flag).exists(), any):
        y = x @ x
        time.sleep(0.05 + 0.03 * (rank == 1))
        xm.all_reduce("sum", [y])
        torch_xla.sync()
"""
LATE = """
%%xla_spawn -n 3 -o busy --bg --view none
def main(rank, flag={flag!r}):
    import time, torch, torch_xla
    import torch_xla.core.xla_model as xm
    from pathlib import Path
    while rank == 1 and not Path(flag).exists():
        time.sleep(0.25)  # with few moments in which it waits for a core
    xm.all_reduce("sum", torch.ones(2, device=torch_xla.device()))
"""
SHAPES = """
%%xla_spawn -n 2 -o busy --bg --view none
def main(rank, flag={flag!r}):
    import time, torch, torch_xla
    from pathlib import Path
    size = 8
    while not Path(flag).exists():
        size += 1
        x = torch.ones(size, 8, device=torch_xla.device())
        for _ in range(20):
            x = torch.sin(x)
        torch_xla.sync()
"""
DATA = """
%%xla_spawn -n 2 -o busy --bg --view none
def main(rank, flag={flag!r}):
    import time, torch, torch_xla
    from pathlib import Path
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 10_000
        def __getitem__(self, index):
            time.sleep(0.02)
            return torch.ones(2)
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
        torch_xla.sync()
        time.sleep(0.02)
        if Path(flag).exists():
            break
"""


@pytest.fixture
def diagnosed(kernel, soon, tmp_path):
    """Returns the first diagnosis of a cell that contains these words."""
    flag = tmp_path / "over"
    kernel.ok(LOOK)

    def diagnosed(cell, about):
        kernel.ok(cell.strip().format(flag=str(flag)))
        return ast.literal_eval(kernel.value(f"diagnosed(busy, {about!r})"))

    yield diagnosed
    flag.touch()
    kernel.ok(f"busy.wait({PATIENCE})")


def line_of(cell, words):
    return next(n for n, line in enumerate(cell.strip().splitlines(), 1) if words in line)


def test_rank_that_sleeps_in_each_step_is_named_as_slow(diagnosed):
    sentence, ranks = diagnosed(SLOW, "waited at least")
    assert sentence.startswith("The others waited at least ")
    assert sentence.endswith(" for rank 1")
    assert ranks == (1,)


def test_late_rank_is_named_with_its_line(diagnosed):
    sentence, ranks = diagnosed(LATE, "waiting 4 s")
    line = line_of(LATE, "time.sleep")
    assert sentence == f"2 ranks have been waiting 4 s for rank 1, in time.sleep at line {line}"
    assert ranks == (1,)


def test_cell_that_compiles_in_each_step_is_shown_with_line(diagnosed):
    sentence, _ = diagnosed(SHAPES, "gives a new shape")
    assert sentence.startswith(f"Line {line_of(SHAPES, 'torch.ones')} gives a new shape in each ")


def test_slow_data_loader_is_shown(diagnosed):
    sentence, _ = diagnosed(DATA, "for data")
    assert sentence.startswith("Waiting for data took ")
