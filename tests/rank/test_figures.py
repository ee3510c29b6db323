"""Matplotlib figures in a rank: `plt.show()`, and figures that its function leaves open."""

import base64
import sys
import types

import pytest

from xla_nb.rank import displays
from xla_nb.rank.displays import Screen
from xla_nb.record.displays import read
from xla_nb.record.files import Losses, Record

pytestmark = pytest.mark.leaves("files")  # matplotlib keeps its fonts open


@pytest.fixture
def shown(tmp_path):
    """Starts a rank's screen; returns the displays that it shows."""
    record = Record(tmp_path)
    displays.screens.begin(Screen(record, 0, Losses(tmp_path, print)))
    yield lambda: read(record.displays(0))
    displays.screens.end()


def texts(shown):
    return [display.text for display in shown()]


@pytest.fixture
def pyplot(monkeypatch):
    """pyplot set up as on a rank."""
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


def test_plt_show_displays_and_closes_open_figures(shown, pyplot):
    pyplot.plot([1, 2])
    pyplot.figure()
    pyplot.plot([3, 4])
    pyplot.show()
    assert pictures(shown) == [b"\x89PNG"] * 2
    assert texts(shown)[0] == "<Figure size 640x480 with 1 Axes>"
    assert pyplot.get_fignums() == []


def test_figure_show_displays_one_figure(shown, pyplot):
    figure, axes = pyplot.subplots()
    axes.plot([1])
    figure.show()
    assert len(pictures(shown)) == 1


def test_open_figures_are_displayed_at_the_end(shown, pyplot):
    pyplot.plot([1, 2])
    displays.show_what_is_left(None)
    assert len(pictures(shown)) == 1
    assert pyplot.get_fignums() == []


def test_returned_figure_is_displayed_once(shown, pyplot):
    figure, axes = pyplot.subplots()
    axes.plot([1])
    displays.show_what_is_left(figure)
    (one,) = shown()
    assert one.result
    assert "image/png" in one.data


def test_closed_figures_are_not_displayed(shown, pyplot):
    pyplot.plot([1, 2])
    pyplot.close()
    displays.show_what_is_left(None)
    assert shown() == []


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_user_chosen_backend_displays_nothing(shown, pyplot):
    pyplot.switch_backend("Agg")
    pyplot.plot([1, 2])
    pyplot.show()
    displays.show_what_is_left(None)
    assert shown() == []


def test_environment_variable_chooses_the_backend(monkeypatch):
    parameters = types.SimpleNamespace(rcParams={"backend": "Agg"})
    monkeypatch.setenv("MPLBACKEND", "Agg")
    displays._choose_backend(parameters)
    assert parameters.rcParams == {"backend": "Agg"}
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    displays._choose_backend(parameters)
    assert parameters.rcParams == {"backend": displays.BACKEND}


def test_matplotlib_is_not_imported_unless_used(shown, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # its import would fail
    displays.show_what_is_left(types.SimpleNamespace(a=1))
    assert shown() == []
