"""The default view of a run."""

from types import SimpleNamespace

import pytest

from xla_nb.views import choose

LAB = {"metadata": {"cellId": "7b0a", "trusted": True}}
NBCLIENT = {"metadata": {}}


def default(parent, names=(), modules=("anywidget",)):
    return choose.default(parent, names, modules)


def test_front_end_that_sends_cell_id_gets_the_panel():
    assert default(LAB) == "panel"


@pytest.mark.parametrize("parent", [NBCLIENT, {}], ids=["nbclient", "terminal"])
def test_front_end_without_cell_id_gets_text(parent):
    assert default(parent) == "text"


def test_colab_and_vs_code_get_the_panel_without_cell_id():
    assert default({}, modules={"anywidget", "google.colab"}) == "panel"
    assert default({}, names={"__vsc_ipynb_file__"}) == "panel"


def test_text_is_used_without_anywidget(monkeypatch):
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    assert default(LAB, modules=()) == "text"


def test_run_is_stopped_if_its_view_cannot_be_created(monkeypatch):
    def broken(run):
        raise OSError

    monkeypatch.setattr(choose, "_text", broken)
    reasons = []
    with pytest.raises(OSError):
        choose.make("text", SimpleNamespace(stop=reasons.append))
    assert reasons == ["Stopped because its view could not be shown"]
