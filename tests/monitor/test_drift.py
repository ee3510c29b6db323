"""The cell in which ranks drifted apart."""

import pytest
import torch

from tests.monitor.test_variable_comparison import pending
from tests.support.variables import compared
from xla_nb.monitor.drift import Watch
from xla_nb.monitor.variable_comparison import compare

EQUAL = compared({"x": torch.ones(2)}, {"x": torch.ones(2)}, {"x": torch.ones(2)})
APART = compared({"x": torch.ones(2)}, {"x": torch.ones(2)}, {"x": torch.zeros(2)})
PENDING = compare({rank: [pending("x")] for rank in range(3)})
WHO = "rank 2 (norm 1.41421 (ranks 0, 1), 0 (rank 2))"


class SentenceWatch(Watch):
    """A watch that returns only sentences."""

    def after(self, cell, compared):
        return [one.sentence for one in super().after(cell, compared)]


@pytest.fixture
def watch():
    return SentenceWatch(["x"])


def test_cell_in_which_ranks_drifted_apart_is_reported_once(watch):
    assert watch.after("Cell In[6]", EQUAL) == []
    assert watch.after("Cell In[7]", APART) == [
        f"`x` has differed between ranks since Cell In[7]: {WHO}"
    ]
    assert watch.after("Cell In[8]", APART) == []


def test_drift_is_reported_again_after_ranks_have_agreed(watch):
    for cell, state in ("In[1]", EQUAL), ("In[2]", APART), ("In[3]", EQUAL):
        watch.after(cell, state)
    (line,) = watch.after("In[4]", APART)
    assert "since In[4]" in line


def test_rank_that_drifts_later_is_reported():
    watch, ones = Watch(["x"]), {"x": torch.ones(2)}
    states = [[ones] * 5, [ones] * 4 + [{"x": torch.zeros(2)}]]
    states.append([ones] * 3 + [{"x": torch.zeros(2)}] * 2)
    told = [watch.after(f"In[{n}]", compared(*each)) for n, each in enumerate(states)]
    assert [[one.ranks for one in each] for each in told] == [[], [(4,)], [(3, 4)]]
    assert "after In[2]: " in told[2][0].sentence
    assert watch.after("In[3]", compared(*states[1])) == []


def test_cell_is_not_blamed_if_the_value_was_pending_before(watch):
    watch.after("Cell In[4]", EQUAL)
    assert watch.after("Cell In[5]", PENDING) == []
    assert watch.after("Cell In[6]", APART) == [
        f"`x` differs between ranks after Cell In[6]: {WHO}"
    ]


def test_cell_is_not_blamed_if_ranks_differed_from_the_start(watch):
    assert watch.after("Cell In[3]", APART) == [
        f"`x` differs between ranks after Cell In[3]: {WHO}"
    ]


def test_difference_at_the_start_of_the_watch_is_reported_without_a_cell(watch):
    assert watch.after("", APART) == [f"`x` already differs between ranks: {WHO}"]
    assert watch.after("Cell In[3]", APART) == []


def test_difference_since_the_start_of_the_watch_is_blamed_on_the_first_cell(watch):
    assert watch.after("", EQUAL) == []
    assert watch.after("Cell In[3]", APART) == [
        f"`x` has differed between ranks since Cell In[3]: {WHO}"
    ]


def test_name_missing_on_a_rank_is_reported(watch):
    watch.after("Cell In[1]", EQUAL)
    gone = compared({"x": torch.ones(2)}, {}, {"x": torch.ones(2)})
    assert watch.after("Cell In[2]", gone) == [
        "`x` has differed between ranks since Cell In[2]: missing on rank 1"
    ]


def test_unwatched_names_are_not_reported():
    assert Watch(["y"]).after("Cell In[1]", APART) == []


OWN = compared({"x": 1}, {"x": 2}, {"x": 3})


def test_drift_is_wrong_if_values_were_equal_or_most_ranks_agree():
    watch = Watch(["x"])
    watch.after("Cell In[1]", EQUAL)
    (drift,) = watch.after("Cell In[2]", OWN)
    assert drift.wrong
    (drift,) = Watch(["x"]).after("Cell In[1]", APART)
    assert (drift.wrong, drift.ranks) == (True, (2,))


def test_values_that_always_differed_are_wrong_only_once_a_majority_forms():
    watch = Watch(["x"])
    (own,) = watch.after("Cell In[1]", OWN)
    assert not own.wrong
    assert watch.after("Cell In[2]", OWN) == []
    (drift,) = watch.after("Cell In[3]", APART)
    assert drift.wrong


def test_each_leaf_that_drifts_later_is_reported_with_its_cell(watch):
    def parts(*each):
        return compared(*({"x": {"a": a, "b": b}} for a, b in each))

    watch.after("Cell In[1]", parts((1, 1), (1, 1), (1, 1)))
    (first,) = watch.after("Cell In[2]", parts((1, 1), (2, 1), (3, 1)))
    assert "since Cell In[2]" in first and "'b'" not in first
    assert watch.after("Cell In[3]", parts((1, 1), (2, 1), (3, 1))) == []
    (second,) = watch.after("Cell In[4]", parts((1, 1), (2, 1), (3, 5)))
    assert "since Cell In[4]: rank 2 (['b']" in second and "'a'" not in second
