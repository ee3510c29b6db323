"""Counts, lists and shortened texts, as people read them."""

import pytest

from xla_nb.wording import in_one_line, listed, ranks, several, shortened


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 hosts"), (1, "1 host"), (1200, "1,200 hosts")]
)
def test_a_count_has_its_noun(number, shown):
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
def test_a_list_ends_with_its_last_or_with_how_many_more(items, options, shown):
    assert listed(items, **options) == shown


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([3], "rank 3"), ([2, 0, 1, 7], "ranks 0-2, 7"), (range(0, 40, 2), "and 8 more")],
)
def test_ranks_are_folded_into_spans(numbers, shown):
    assert ranks(numbers).endswith(shown)


def test_a_long_text_ends_with_an_ellipsis_within_its_length():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert in_one_line("a\n  b\tc", 6) == "a b c"
