"""tqdm's bar for notebooks is its plain one in a rank, which has no page to draw widgets on.

The plain one's lines become bars of the panel (views/observer.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported


def draw_as_text() -> None:
    """Give `tqdm.notebook` its plain bar, now or once it is imported."""
    when_imported("tqdm.notebook", _draw_as_text)


def _draw_as_text(notebook: ModuleType) -> None:
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    class tqdm_notebook(tqdm):  # type: ignore[misc]
        __doc__ = tqdm.__doc__
        __module__ = notebook.__name__

        def __init__(self, *args: Any, display: bool = True, **settings: Any) -> None:
            super().__init__(*args, **settings)

        def display(
            self, msg: str | None = None, pos: int | None = None, close: bool = False, **_: Any
        ) -> None:
            """As the notebook's, which also takes the colour of a widget's bar."""
            if close:
                self.clear()
            else:
                super().display(msg, pos)

    def trange(*numbers: int, **settings: Any) -> tqdm_notebook:
        return tqdm_notebook(range(*numbers), **settings)

    tqdm_notebook.__qualname__ = "tqdm_notebook"
    vars(notebook).update(
        tqdm=tqdm_notebook, tqdm_notebook=tqdm_notebook, trange=trange, tnrange=trange
    )
