"""Live ranks as a still picture in a notebook's cell, drawn again whenever a cell of theirs ends.

For notebooks without a page, and for the text view: it is drawn in the notebook's own thread, while
a cell is executed, since such front ends hear of nothing else.
"""

from __future__ import annotations

from typing import Any

from xla_nb.run.recorded import RecordedRun
from xla_nb.views import observer, picture


class StillGroup:
    """Shows them in the cell that is being executed."""

    def __init__(self, run: RecordedRun) -> None:
        from IPython.display import DisplayHandle

        self._run = run
        self._observer = observer.Observer(run)  # reads each cell's figures once
        handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
        handle.display(self._bundle(), raw=True)
        self._handle = handle

    def draw(self) -> None:
        """Show how they are now."""
        self._handle.update(self._bundle(), raw=True)

    def move(self, where: str) -> None:
        """Show nothing more here: the ranks are shown in another cell."""
        told = f"These live ranks are shown in {where}."
        self._handle.update({"text/plain": told}, raw=True)

    def _bundle(self) -> dict[str, Any]:
        return picture.bundle(self._observer.look()) | self._run.as_data()
