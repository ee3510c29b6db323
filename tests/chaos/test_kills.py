"""A few random kills; `make chaos` does two hundred."""

import pytest

from tests.chaos.kills import SIGNALS, VICTIMS, rounds


@pytest.mark.slow
def test_killed_runs_are_reported_and_leave_nothing_behind():
    done = list(rounds(2, seed=20261122))
    assert [(one.victim, one.number.name, one.faults) for one in done if one.faults] == []


@pytest.mark.chaos
def test_kills_of_every_victim_with_every_signal_are_handled():
    done = list(rounds(len(VICTIMS) * len(SIGNALS), seed=7))
    assert {(one.victim, one.number) for one in done} == {(v, s) for v in VICTIMS for s in SIGNALS}
    assert [(one.victim, one.number.name, one.faults) for one in done if one.faults] == []
