"""How the elements of two ranks differ."""

import math

import numpy as np
import pytest

from xla_nb.rank.variables import Values
from xla_nb.run.comparing import difference


def sent(elements, dtype="<f4"):
    array = np.array(elements, dtype)
    return Values("x", "", array.dtype.str, array.tobytes())


def figures(one, other, dtype="<f4"):
    found = difference(sent(one, dtype), sent(other, dtype))
    return found.count, found.of, found.largest


def test_differing_elements_are_counted_and_the_largest_difference_is_told():
    assert figures([1, 2, 3], [1, 2.5, 1]) == (2, 3, 2.0)
    assert figures([1, 2], [1, 9], "<i8") == (1, 2, 7.0)
    assert figures([True, False], [True, True], "?") == (1, 2, 1.0)
    assert figures([1 + 1j], [1 - 1j], "<c8") == (1, 1, 2.0)


def test_nan_differs_from_numbers_only():
    assert figures([math.nan, 1, math.nan], [math.nan, math.nan, 2]) == (2, 3, None)


def test_a_difference_from_infinity_is_infinite():
    assert figures([math.inf, 1], [1, 1]) == (1, 2, math.inf)


@pytest.mark.parametrize(("one", "other"), [([255], [0]), ([0], [255])])
def test_unsigned_numbers_do_not_wrap(one, other):
    assert figures(one, other, "u1") == (1, 1, 255.0)


def test_texts_are_counted():
    assert figures(["a", "b"], ["a", "c"], "<U1") == (1, 2, None)


def test_what_was_not_sent_is_said():
    gone = Values("x", "", why="it is not there any more")
    assert difference(sent([1]), gone).why == "not counted: it is not there any more"


def test_of_other_lengths_or_types_these_are_said():
    assert difference(sent([1]), sent([1, 2])).why == "1 and 2 items"
    assert difference(sent([1]), sent([1], "<i8")).why == "float32 and int64"
