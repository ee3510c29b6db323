"""When the variables of live ranks are asked for, for a page that shows them."""

import queue
import threading

import pytest

from xla_nb.errors import LaunchError
from xla_nb.messages import events
from xla_nb.run.group import Withdrawn
from xla_nb.run.state import Programs
from xla_nb.views.panel.variables import AskedVariables
from xla_nb.views.variables import Variables


class Asked:
    """The variables of a page; ranks answer what `answers` has, and time is what a test says."""

    def __init__(self):
        self.programs = Programs()
        self.answers = queue.Queue()
        self.heard = threading.Event()
        self.asked = 0
        self.shown = AskedVariables(self.programs, self._ask, self.heard.set)

    def _ask(self):
        self.asked += 1
        answer = self.answers.get(timeout=60)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, given=None):
        """Have the ranks answer, and wait until that is heard."""
        self.heard.clear()
        self.answers.put(Variables([], 2) if given is None else given)
        assert self.heard.wait(60)

    def begins(self, number):
        began = events.ProgramBegan(number=number, run="r", label=f"In[{number}]", ranks=(0, 1))
        self.programs.begin(began)

    def ends(self, number):
        ended = events.ProgramEnded(number=number, outcome="finished", headline="")
        self.programs.end(ended)

    def opened(self):
        """Open the section, and have the first answer told."""
        self.shown.open()
        assert self.shown.news()["state"] == "asking"
        self.answer()
        return self.shown.news()


@pytest.fixture
def asked():
    return Asked()


def test_nothing_is_asked_before_the_page_shows_them(asked):
    assert asked.shown.news() == {}
    assert not asked.shown.is_news


def test_what_was_answered_is_told_once(asked):
    told = asked.opened()
    assert (told["state"], told["old"], told["summary"]) == ("shown", False, "0 names on 2 ranks")
    assert asked.shown.news() == {}
    assert not asked.shown.is_news


def test_after_a_cell_they_are_old_until_the_page_asks_again(asked):
    asked.opened()
    asked.begins(1)
    assert asked.shown.news()["state"] == "busy"
    asked.ends(1)
    told = asked.shown.news()
    assert (told["state"], told["old"]) == ("shown", True)
    assert asked.shown.news() == {}
    asked.shown.open()
    assert asked.shown.news()["state"] == "asking"
    asked.answer()
    assert asked.shown.news()["after"] == "In[1]"


def test_what_is_wanted_while_a_cell_runs_is_asked_for_behind_it(asked):
    asked.begins(1)
    asked.shown.open()
    assert asked.shown.news()["state"] == "busy"
    assert not asked.shown.is_news
    asked.ends(1)
    assert asked.shown.is_news
    assert asked.shown.news()["state"] == "asking"
    asked.answer()


def test_what_has_given_way_is_asked_for_again(asked):
    asked.shown.open()
    asked.shown.news()
    asked.answer(Withdrawn("Withdrawn"))
    assert asked.shown.is_news
    asked.shown.news()
    asked.answer()
    assert asked.asked == 2


def test_ranks_that_are_gone_are_asked_once(asked):
    asked.shown.open()
    asked.shown.news()
    asked.answer(LaunchError("Rank 1 exited with status 3."))
    assert asked.shown.news()["problem"] == "Rank 1 exited with status 3."
    assert asked.shown.news() == {}
    assert asked.asked == 1
