"""Figures of matplotlib in a rank: `plt.show()`, and those that its function leaves."""

import base64
import sys
import types

import pytest

from xla_nb.rank import displays
from xla_nb.rank.displays import Screen
from xla_nb.record.displays import read
from xla_nb.record.files import Record

pytestmark = pytest.mark.leaves("files")  # matplotlib keeps its fonts open


@pytest.fixture
def shown(tmp_path):
    """A rank's screen, and what it shows."""
    record = Record(tmp_path)
    displays.screens.begin(Screen(record, 0))
    yield lambda: read(record.displays(0))
    displays.screens.end()


def texts(shown):
    return [display.text for display in shown()]


@pytest.fixture
def pyplot(monkeypatch):
    """matplotlib as a rank has it."""
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    before = matplotlib.rcParams["backend"]
    monkeypatch.delenv("MPLBACKEND", raising=False)
    displays._choose_backend(matplotlib)
    pyplot.switch_backend(matplotlib.rcParams["backend"])
    yield pyplot
    pyplot.close("all")
    pyplot.switch_backend(before)


def pictures(shown):
    return [base64.b64decode(one.data["image/png"])[:4] for one in shown()]


def test_plt_show_displays_the_open_figures_and_closes_them(shown, pyplot):
    pyplot.plot([1, 2])
    pyplot.figure()
    pyplot.plot([3, 4])
    pyplot.show()
    assert pictures(shown) == [b"\x89PNG"] * 2
    assert texts(shown)[0] == "<Figure size 640x480 with 1 Axes>"
    assert pyplot.get_fignums() == []


def test_one_figure_can_be_shown(shown, pyplot):
    figure, axes = pyplot.subplots()
    axes.plot([1])
    figure.show()
    assert len(pictures(shown)) == 1


def test_figures_left_open_are_displayed_at_the_end(shown, pyplot):
    pyplot.plot([1, 2])
    displays.show_what_is_left(None)
    assert len(pictures(shown)) == 1
    assert pyplot.get_fignums() == []


def test_a_figure_that_is_returned_is_displayed_once(shown, pyplot):
    figure, axes = pyplot.subplots()
    axes.plot([1])
    displays.show_what_is_left(figure)
    (one,) = shown()
    assert one.result
    assert "image/png" in one.data


def test_figures_that_were_closed_are_not_displayed(shown, pyplot):
    pyplot.plot([1, 2])
    pyplot.close()
    displays.show_what_is_left(None)
    assert shown() == []


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_with_a_backend_of_the_users_choice_nothing_is_displayed(shown, pyplot):
    pyplot.switch_backend("Agg")
    pyplot.plot([1, 2])
    pyplot.show()
    displays.show_what_is_left(None)
    assert shown() == []


def test_a_variable_of_the_users_chooses_the_backend(monkeypatch):
    parameters = types.SimpleNamespace(rcParams={"backend": "Agg"})
    monkeypatch.setenv("MPLBACKEND", "Agg")
    displays._choose_backend(parameters)
    assert parameters.rcParams == {"backend": "Agg"}
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    displays._choose_backend(parameters)
    assert parameters.rcParams == {"backend": displays.BACKEND}


def test_matplotlib_is_not_imported_for_those_who_do_not_use_it(shown, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # its import would fail
    displays.show_what_is_left(types.SimpleNamespace(a=1))
    assert shown() == []
