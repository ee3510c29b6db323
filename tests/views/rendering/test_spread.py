"""The lines of many ranks as a mean and a band."""

import math

from xla_nb.views.rendering import figures


def over_ranks(lines):
    """The mean and the band over ranks."""
    spread = figures.over_ranks(lines)
    return [one[:2] for one in spread], [(one.x, one.min, one.max) for one in spread]


def drawn(points):
    return [(x, y) for x, y in points if not math.isnan(y)]


def test_mean_and_band_of_ranks_with_the_same_steps():
    mean, band = over_ranks({0: [(0.0, 1.0), (1.0, 3.0)], 1: [(0.0, 3.0), (1.0, 7.0)]})
    assert mean == [(0.0, 2.0), (1.0, 5.0)]
    assert band == [(0.0, 1.0, 3.0), (1.0, 3.0, 7.0)]


def test_nonfinite_values_are_ignored():
    mean, _ = over_ranks({0: [(0.0, math.nan), (1.0, 2.0)], 1: [(0.0, 1.0), (1.0, math.inf)]})
    assert drawn(mean) == [(0.0, 1.0), (1.0, 2.0)]
    assert over_ranks({0: [(0.0, math.nan)]}) == ([], [])


def test_rank_does_not_count_where_its_value_is_not_finite():
    steps = [float(n) for n in range(5)]
    whole = {rank: [(x, 1.0 + rank) for x in steps] for rank in range(2)}
    mean, band = over_ranks({**whole, 1: [(x, math.nan if x == 2 else 2.0) for x in steps]})
    assert drawn(mean) == [(0.0, 1.5), (1.0, 1.5), (2.0, 1.0), (3.0, 1.5), (4.0, 1.5)]
    assert (2.0, 1.0, 1.0) in band
    mean, _ = over_ranks(
        {rank: [(x, math.nan if x == 2 else 1.0) for x in steps] for rank in range(2)}
    )
    assert [x for x, _ in drawn(mean)] == [0.0, 1.0, 3.0, 4.0]
    assert [x for x, y in mean if math.isnan(y)] == [2.0]  # the line has a gap


def test_mean_has_gap_where_number_of_ranks_changes():
    lines = {0: [(float(x), 1.0) for x in range(4)], 1: [(0.0, 3.0), (1.0, 3.0)]}
    mean, _ = over_ranks(lines)
    assert drawn(mean) == [(0.0, 2.0), (1.0, 2.0), (2.0, 1.0), (3.0, 1.0)]
    assert [x for x, y in mean if math.isnan(y)] == [1.5]


def test_mean_ends_before_a_few_steps_of_ranks_ahead():
    lines = {0: [(float(x), 9.0 * (x == 2)) for x in range(3)], 1: [(0.0, 0.0), (1.0, 0.0)]}
    assert over_ranks(lines) == ([(0.0, 0.0), (1.0, 0.0)], [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0)])
    newest = {0: [(0.0, 0.0), (8.0, 0.0), (9.0, 0.0)], 1: [(0.0, 0.0), (8.0, 0.0), (11.0, 0.0)]}
    assert over_ranks(newest)[0] == [(0.0, 0.0), (8.0, 0.0)]
    steps = [(float(x), 0.0) for x in range(100)]
    assert over_ranks({0: steps, 1: steps[:95]})[0] == steps[:95]
    assert drawn(over_ranks({0: steps, 1: steps[:80]})[0]) == steps
    far = {rank: [(float(x), 0.0) for x in range(3 + rank)] for rank in range(3)}
    assert over_ranks(far)[0] == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]
    assert over_ranks({0: [(0.0, 1.0)], 1: []})[0] == [(0.0, 1.0)]


def test_mean_has_bounded_points_including_the_last():
    lines = {rank: [(float(x), 1.0) for x in range(rank, 5000, 7)] for rank in range(7)}
    mean, _ = over_ranks(lines)
    assert len(drawn(mean)) <= 401
    assert mean[-1][0] == 4999.0


def test_each_step_counts_its_ranks():
    lines = {rank: [(float(x), 1.0) for x in range(3 + 2 * rank)] for rank in range(3)}
    counted = {one.x: one.ranks for one in figures.over_ranks(lines) if one.ranks}
    assert counted == {0: 3, 1: 3, 2: 3, 3: 2, 4: 2, 5: 1, 6: 1}
