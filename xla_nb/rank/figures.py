"""matplotlib's backend on ranks: `plt.show()` displays the open figures and closes them.

matplotlib imports it by its name. It draws as Agg does.
"""

from __future__ import annotations

from typing import Any

from matplotlib import pyplot
from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from xla_nb.rank import displays


class FigureManager(FigureManagerBase):
    """One figure of pyplot's."""

    def show(self) -> None:
        displays.display(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, **_: Any) -> None:
        show_open()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager


def show_open() -> None:
    """Display the figures that are open, and close them."""
    try:
        for manager in Gcf.get_all_fig_managers():
            displays.display(manager.canvas.figure)
    finally:
        pyplot.close("all")


def show_left_open(returned: object) -> None:
    """The same at the end of a rank's function, unless the user has chosen another backend. Of
    those, what the function returned is displayed as its result."""
    if pyplot.get_backend() not in (displays.BACKEND, *displays.INLINE):
        return
    if displays.is_figure(returned):
        pyplot.close(returned)  # type: ignore[arg-type]
    if Gcf.get_all_fig_managers():
        show_open()
