"""The view that a run gets by itself."""

import pytest

from xla_nb.views import choose

LAB = {"metadata": {"cellId": "7b0a", "trusted": True}}
NBCLIENT = {"metadata": {}}


def chosen(parent, names=(), modules=("anywidget",)):
    return choose.view(parent, names, modules)


def test_a_page_that_names_the_cell_gets_the_panel():
    assert chosen(LAB) == "panel"


@pytest.mark.parametrize("parent", [NBCLIENT, {}], ids=["nbclient", "a terminal"])
def test_who_does_not_name_it_gets_text(parent):
    assert chosen(parent) == "text"


def test_colab_and_vs_code_are_known_by_what_they_leave_in_the_kernel():
    assert chosen({}, modules={"anywidget", "google.colab"}) == "panel"
    assert chosen({}, names={"__vsc_ipynb_file__"}) == "panel"


def test_without_anywidget_there_is_text(monkeypatch):
    monkeypatch.setattr(choose, "_installed", lambda name: False)
    assert chosen(LAB, modules=()) == "text"
