"""Which line changes between steps that compile, from what a few steps have made."""

import pytest

from xla_nb.rank.step_changes import _change, _Creation


def step(rows):
    """A step that makes a full batch at line 8, and a part of it at line 10."""
    part = [_Creation("line 10", "__getitem__", ((rows, 4),), ())] if rows else []
    return [_Creation("line 8", "ones", ((64, 4),), ()), *part]


@pytest.mark.parametrize("first", [0, 1])
def test_line_whose_shape_changes_in_every_second_step_is_found(first):
    steps = [step(63 - n if n % 2 else 0) for n in range(first, first + 6)]
    compiled = [n % 2 == 1 for n in range(first, first + 6)]
    found = _change(steps, compiled)
    assert found is not None and found[0] == "line 10"
