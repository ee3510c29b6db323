"""Where live ranks are shown beside their cells: in one cell at a time, the one that asked last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from xla_nb import api, live_questions, notebook
from xla_nb.run.group import Group
from xla_nb.views import observer, picture, saved
from xla_nb.views.picture import StillGroup

if TYPE_CHECKING:
    from xla_nb.views.panel.group import GroupPanel

_END = 5.0  # seconds that a panel has to show the end


@functools.cache
def _shown() -> dict[str, GroupPanel | StillGroup]:
    """What shows the groups of this process, by the names of their runs."""
    return {}


def show(group: Group, shut_down: Callable[[], None]) -> None:
    """Show live ranks in the cell that is being executed, and no longer in an earlier one.
    `shut_down` ends them. A terminal gets them as text, as they are now."""
    if picture.kernel() is None:
        print(saved.render_text(observer.observe(group.run)))
        return
    here, before = notebook.current(), _shown().pop(group.run.name, None)
    if before is not None and here is not None:
        before.move(f"Cell In[{here.number}]")
    if group.run.done:
        StillGroup(group.run)
    else:
        as_panel = _view() == "panel"
        _shown()[group.run.name] = _panel(group, shut_down) if as_panel else StillGroup(group.run)


def started(group: Group, shut_down: Callable[[], None]) -> None:
    """The same for ranks that have just been started, where there is a notebook to show them."""
    if picture.kernel() is not None and _view() != "none":
        show(group, shut_down)


def changed(group: Group) -> None:
    """They are all there, or a cell of theirs has ended: told in the notebook's own thread."""
    shown = _shown().get(group.run.name)
    if isinstance(shown, StillGroup):
        shown.draw()


def ended(group: Group) -> None:
    """They have ended."""
    shown = _shown().pop(group.run.name, None)
    if isinstance(shown, StillGroup):
        shown.draw()
    elif shown is not None:
        shown.join(_END)


def _view() -> str:
    here = notebook.current()
    asked = here.settings.get("view") if here else None
    return str(asked or api.default_view())


def _panel(group: Group, shut_down: Callable[[], None]) -> GroupPanel:
    from xla_nb.views.panel.group import GroupPanel  # slow to import

    panel = GroupPanel(group.run, lambda: live_questions.variables(group, yields=True), shut_down)
    panel.follow()
    return panel
