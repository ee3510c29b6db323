"""How long a rank has waited in collectives, and how long such a wait is."""

import pytest

from xla_nb.simulation import waits as under_test
from xla_nb.simulation.waits import Waits


@pytest.fixture
def waited(monkeypatch):
    """The waits of these seconds."""
    now = [100.0]
    monkeypatch.setattr(under_test.time, "monotonic", lambda: now[0])

    def waited(*lengths):
        waits = Waits()
        for seconds in lengths:
            waits.start("all_reduce", tuple)
            now[0] += seconds
            waits.stop()
        return waits

    return waited


def test_the_usual_wait_is_that_of_most_of_the_waiting(waited):
    assert waited(*[0.1] * 50, 2.0).usual == 0.125  # to a power of two
    assert waited(*[0.1] * 50, 3.0, 3.0, 3.0).usual == 4.0


def test_a_program_has_no_usual_wait_before_it_has_waited(waited):
    waits = waited(1.0)
    waits.begin()
    assert (waits.usual, waits.seconds) == (0.0, 1.0)
