"""Which view a run gets when nobody says: the panel where a page looks on that can show it.

The rule: what cannot be known is not assumed; text is right everywhere. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Literal

ViewName = Literal["panel", "text", "none"]


def view(parent: Mapping[str, Any], names: Container[str], modules: Container[str]) -> ViewName:
    """The view for a cell.

    parent   the kernel's message that the cell runs for, {} outside a kernel
    names    of the notebook's namespace; modules: those that are imported
    """
    if "anywidget" not in modules and not _installed("anywidget"):
        return "text"
    # JupyterLab, Notebook 7 and VS Code name the cell; nbclient, papermill and consoles do not.
    if "cellId" in parent.get("metadata", {}):
        return "panel"
    if "google.colab" in modules or "__vsc_ipynb_file__" in names:
        return "panel"
    return "text"


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
