"""A few random kills; `make chaos` does two hundred."""

import pytest

from tests.chaos.kills import SIGNALS, VICTIMS, rounds


@pytest.mark.slow
def test_a_run_outlives_nothing_it_should_not_and_says_what_happened():
    done = list(rounds(2, seed=20261122))
    assert [(one.victim, one.number.name, one.faults) for one in done if one.faults] == []


@pytest.mark.chaos
def test_every_kind_of_kill_is_survived():
    done = list(rounds(len(VICTIMS) * len(SIGNALS), seed=7))
    assert {(one.victim, one.number) for one in done} == {(v, s) for v in VICTIMS for s in SIGNALS}
    assert [(one.victim, one.number.name, one.faults) for one in done if one.faults] == []
