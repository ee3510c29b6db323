"""Whether anybody sees a view, by what its pages answer."""

import pytest

from xla_nb.views.panel import answers as module
from xla_nb.views.panel.answers import AWAY, Answers


@pytest.fixture
def after(monkeypatch):
    """Lets so many seconds pass."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def passed(seconds):
        now[0] += seconds

    return passed


LONG = AWAY + 1


def test_a_page_that_never_answered_is_not_missing(after):
    answers = Answers()
    answers.asked()
    after(LONG)
    assert not answers.missing
    answers.end()
    assert not answers.missing


def test_a_page_that_owes_an_answer_for_long_is_missing(after):
    answers = Answers()
    answers.answered("page")
    answers.asked()
    after(AWAY - 1)
    answers.asked()
    assert not answers.missing
    after(2)
    assert answers.missing
    answers.answered("page")
    assert not answers.missing


def test_a_page_that_is_asked_nothing_owes_nothing(after):
    answers = Answers()
    answers.answered("page")
    after(LONG)
    assert not answers.missing


def test_a_reloaded_page_shows_the_view_but_not_its_end(after):
    answers = Answers()
    answers.answered("first")
    answers.asked()
    answers.answered("reloaded")
    after(LONG)
    assert not answers.missing
    answers.end()
    assert answers.missing


@pytest.mark.parametrize("hears", [True, False])
def test_a_kernel_that_heard_nobody_since_its_cell_began_cannot_tell(after, hears):
    answers = Answers()
    answers.answered("page")
    after(1)
    answers.busy_since = module.time.monotonic()
    if hears:
        after(1)
        answers.answered("page")
    answers.asked()
    after(LONG)
    answers.end()
    assert answers.missing == hears


def test_a_second_page_beside_the_first_changes_nothing(after):
    answers = Answers()
    for page in ("first", "second"):
        answers.answered(page)
    answers.asked()
    after(1)
    answers.answered("first")
    after(LONG)
    assert not answers.missing
    answers.end()
    after(LONG)
    assert not answers.missing
