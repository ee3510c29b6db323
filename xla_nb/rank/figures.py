"""matplotlib's backend on ranks: `plt.show()` displays the open figures and closes them.

matplotlib imports it by name. It draws with Agg.
"""

from __future__ import annotations

from typing import Any

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from xla_nb.rank import displays


class FigureManager(FigureManagerBase):
    """The manager of one pyplot figure."""

    def show(self) -> None:
        displays.display(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, **_: Any) -> None:
        displays.show_open_figures()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager
