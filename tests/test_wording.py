"""Wording of counts, lists, durations and shortened texts."""

import math

import pytest

from xla_nb.wording import (
    exactly,
    in_one_line,
    lasting,
    listed,
    ranks,
    several,
    shortened,
    took,
    without_middle,
)


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 hosts"), (1, "1 host"), (1200, "1,200 hosts")]
)
def test_a_count_has_a_singular_or_plural_noun(number, shown):
    assert several(number, "host") == shown


@pytest.mark.parametrize(
    ("items", "options", "shown"),
    [
        ([], {}, "none"),
        (["a"], {}, "a"),
        ([1, 2, 4], {"last": "or"}, "1, 2 or 4"),
        (["a", "b", "c"], {"most": 3}, "a, b and c"),
        (["a", "b", "c", "d"], {"most": 2}, "a, b and 2 more"),
    ],
)
def test_a_list_ends_with_its_last_item_or_the_number_of_further_ones(items, options, shown):
    assert listed(items, **options) == shown


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([3], "rank 3"), ([2, 0, 1, 7], "ranks 0–2, 7"), (range(0, 40, 2), "and 8 more")],
)
def test_ranks_are_folded_into_spans(numbers, shown):
    assert ranks(numbers).endswith(shown)


def test_a_long_text_ends_with_an_ellipsis_within_its_length():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert in_one_line("a\n  b\tc", 6) == "a b c"


def test_a_long_path_keeps_its_start_and_end():
    assert without_middle("/a/b", 4) == "/a/b"
    assert without_middle("/home/me/runs/rank-0.out", 13) == "/home/…-0.out"


def test_a_duration_set_by_the_user_is_shown_exactly():
    times = (0.5, 30, 60, 90, 1800, 7200, 7325)
    told = ["0.5 s", "30 s", "1 min", "1 min 30 s", "30 min", "2 h", "2 h 2 min 5 s"]
    assert [exactly(seconds) for seconds in times] == told


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((-1, "0 s"), (0.5, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min 59 s")),
        *((7529, "2 h 5 min"), (math.nan, "0 s")),
    ],
)
def test_a_growing_duration_is_rounded_down(seconds, words):
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((-1, "0 ms"), (0.0021, "2.1 ms"), (0.083, "83 ms"), (0.9996, "1 s"), (1.254, "1.25 s")),
        *((59.94, "59.9 s"), (59.96, "1 min"), (125.9, "2 min 5 s"), (7529, "2 h 5 min")),
    ],
)
def test_a_measured_duration_has_three_digits_below_a_minute_and_then_whole_seconds(seconds, words):
    assert took(seconds) == words
