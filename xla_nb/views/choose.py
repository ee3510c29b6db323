"""Choose and create the view of a run.

The panel needs a page that can show it. If that is not certain, a run is shown as text, which works
everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from importlib.util import find_spec
from typing import Any

from xla_nb.errors import UsageError
from xla_nb.run.options import ViewName
from xla_nb.run.run import Run
from xla_nb.views import picture
from xla_nb.views.loop import View
from xla_nb.views.rank_outputs import Beside
from xla_nb.views.text import CellTextView, TextView


def default(
    parent: Mapping[str, Any], names: Container[str], modules: Container[str] = sys.modules
) -> ViewName:
    """Return the best view that the front end can show.

    parent   the kernel's message that started the cell, {} outside a kernel
    names    names in the notebook's namespace
    modules  names of imported modules
    """
    can_import = "anywidget" in modules or find_spec("anywidget")
    return "panel" if can_import and _has_page(parent, names, modules) else "text"


def _has_page(
    parent: Mapping[str, Any], names: Container[str], modules: Container[str] = sys.modules
) -> bool:
    """Return whether a page shows the cell while it runs. JupyterLab, Notebook 7 and VS Code send
    the cell's id; nbclient, papermill and consoles do not."""
    if "cellId" in parent.get("metadata", {}):
        return True
    return "google.colab" in modules or "__vsc_ipynb_file__" in names


def make(name: ViewName, run: Run, *, behind: bool = False) -> View:
    """Create the view `name` of `run`, to be followed in a thread (`behind`) or here. If that
    fails, the run is stopped, because nobody would notice it.

    Raises UsageError if the panel's library is missing.
    """
    try:
        if name == "none":
            return View()
        view = _panel(run) if name == "panel" else _text(run)
        return Beside(view, run, behind=behind)
    except BaseException:
        run.stop("Stopped because its view could not be shown")
        raise


def _panel(run: Run) -> View:
    try:
        from xla_nb.views.panel.view import PanelView  # slow to import, and may be missing
    except ImportError as error:
        raise UsageError(
            f"The panel needs anywidget, which cannot be imported: {error}. "
            "Run `%pip install anywidget`, or use `--view text`."
        ) from None
    return PanelView(run)


def _text(run: Run) -> View:
    shell = picture.kernel()
    if shell is None:
        return TextView(run)
    parent: dict[str, Any] = getattr(shell, "get_parent", dict)()
    return CellTextView(run, watched=_has_page(parent, shell.user_ns))
