"""`display` in a rank: what it would show in a notebook goes to the rank's journal of displays.

IPython makes the bundles, with its own formatters, but has no shell here: others take the place of
its functions that would ask one. What is displayed where there is no rank (at the top level of the
cell, which the job executes) is printed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import os
import sys
import traceback
import types
from collections.abc import Mapping
from inspect import getattr_static
from typing import Any

from xla_nb import untrusted
from xla_nb.patching import when_imported
from xla_nb.rank.threads import OfRank
from xla_nb.record.displays import LARGEST, Journal, encode
from xla_nb.record.files import Losses, Record
from xla_nb.wording import listed, size

#: matplotlib's backend on ranks: what takes the place of the notebook's own.
BACKEND = "module://xla_nb.rank.figures"
INLINE = (
    "inline",
    "module://matplotlib_inline.backend_inline",
    "module://ipykernel.pylab.backend_inline",
)
_TEXT = 100_000  # characters of a plain text
#: A widget's model is in the rank, and the page asks the kernel for it.
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Screen:
    """Where one rank displays. A process that the rank has forked displays there too."""

    def __init__(self, record: Record, rank: int, losses: Losses | None = None) -> None:
        self._journal = Journal(record.of_rank(rank, "displays"))
        self._losses = losses
        self._cleared = (0, False)  # the journal's bytes since this process cleared it, and how

    def add(self, kind: str, **body: Any) -> int:
        """Write a line; gives the bytes of the journal. It raises nothing: what cannot be written
        is told."""
        line = encode(kind, **body)
        try:
            return self._journal.add(line, clears=kind == "clear")
        except OSError as problem:
            if self._losses is not None:
                self._losses.note("all of its displays", problem)
        return 0

    def clear(self, wait: bool) -> None:
        """Of a loop that clears and prints, this is one line. Other processes display too."""
        nbytes = self._journal.nbytes
        if nbytes and self._cleared != (nbytes, wait):
            self._cleared = (self.add("clear", wait=wait), wait)


#: Those of this process's ranks.
screens: OfRank[Screen] = OfRank()


# ---------------------------------------------------------------- what takes IPython's place


def display(
    *objs: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: Any = None,
    transient: Any = None,
    display_id: Any = None,
    raw: bool = False,
    clear: bool = False,
    **kwargs: Any,
) -> Any:
    """As `IPython.display.display`, on a rank."""
    if display_id is True:
        display_id = os.urandom(16).hex()
    if kwargs.get("update") and not display_id:
        raise TypeError("display_id required for update_display")
    if clear:
        clear_output(wait=True)
    own = {**(transient or {}), **({"display_id": display_id} if display_id else {})}
    for each in objs:
        data, about = (each, {}) if raw else bundle(each, include, exclude)
        for name, value in (metadata or {}).items():
            about[name] = {**about.get(name, {}), **value} if isinstance(value, dict) else value
        if data or raw:
            publish(data, about, transient=own, **kwargs)
    if not display_id:
        return None
    from IPython.display import DisplayHandle

    return DisplayHandle(display_id)  # type: ignore[no-untyped-call]


def publish(
    data: Any,
    metadata: Any = None,
    *_others: Any,
    transient: Any = None,
    update: bool = False,
    result: bool = False,
    **_: Any,
) -> None:
    """As `IPython.display.publish_display_data`, on a rank."""
    if not isinstance(data, dict):
        raise TypeError(f"data must be a dict, got: {type(data)!r}")
    screen = screens.here()
    if screen is None:
        print(data.get("text/plain", f"<{', '.join(map(str, data))}>"), flush=True)
        return
    id = (transient or {}).get("display_id")
    try:
        body = {"data": _bounded(data), "metadata": metadata or {}}
        if update:
            screen.add("update", id=str(id), **body)
        else:
            screen.add("show", id=id and str(id), result=result, **body)
    except (ValueError, TypeError, RecursionError) as problem:  # of the user's making
        forms = listed([str(name) for name in data])
        told = f"Not displayed: not valid JSON ({forms}): {type(problem).__name__}: {problem}"
        print(told, file=sys.stderr)


def clear_output(wait: bool = False) -> None:
    """As `IPython.display.clear_output`, on a rank: of what it displayed, not of its lines."""
    screen = screens.here()
    if screen is not None:
        screen.clear(bool(wait))


def is_figure(value: object) -> bool:
    figures: Any = sys.modules.get("matplotlib.figure")
    return figures is not None and issubclass(type(value), figures.Figure)


# ---------------------------------------------------------------- bundles


def bundle(value: object, include: Any = None, exclude: Any = None) -> tuple[Any, Any]:
    """The forms of an object and what is to be known of them, as IPython makes them. What a
    `_repr_html_` raises is printed."""
    data, metadata = _formatter().format(value, include=include, exclude=exclude)
    return dict(data), dict(metadata)


@functools.cache
def _formatter() -> Any:
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.pylabtools import print_figure

    made: Any = DisplayFormatter()
    for_png: Any = made.formatters["image/png"]
    for_png.for_type_by_name("matplotlib.figure", "Figure", print_figure)
    return made


def _bounded(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The forms as JSON has them; the text alone where they are too large together."""
    made = {str(name): _plain(value) for name, value in data.items()}
    if "text/plain" in made:
        made.pop(_WIDGET, None)
    if isinstance(text := made.get("text/plain"), str) and len(text) > _TEXT:
        made["text/plain"] = f"{text[:_TEXT]}\n… {len(text) - _TEXT:,} more characters"
    if (nbytes := len(encode("", data=made))) > LARGEST * 0.99:
        text = made.pop("text/plain", "")
        told = f"{listed(made)} of {size(nbytes)} omitted: the limit per display is {size(LARGEST)}"
        return {"text/plain": f"{text}\n({told})".strip()}
    return made


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# ---------------------------------------------------------------- what a function leaves

_DRAWN = ("_repr_html_", "_repr_mimebundle_", "_repr_png_", "_repr_jpeg_", "_repr_svg_")


def show_what_is_left(returned: object) -> bool:
    """Display the figures that the rank's function left open, and what it returned where that has a
    form that a notebook draws: True if so. Whatever they do costs the rank nothing."""
    try:
        if "matplotlib.pyplot" in sys.modules:
            _show_figures_left_open(returned)
        return _is_drawn(returned) and _show_result(returned)
    except (Exception, SystemExit):
        traceback.print_exc()
        return False


def _show_figures_left_open(returned: object) -> None:
    """Unless the user has chosen another backend. Of the figures, the one that the function
    returned is displayed as its result."""
    from matplotlib import pyplot

    if pyplot.get_backend() in (BACKEND, *INLINE):
        if is_figure(returned):
            pyplot.close(returned)  # type: ignore[arg-type]
        show_open_figures()


def show_open_figures() -> None:
    """Display the figures that are open, and close them."""
    from matplotlib import pyplot

    try:
        for number in pyplot.get_fignums():
            display(pyplot.figure(number))
    finally:
        pyplot.close("all")


def _show_result(value: object) -> bool:
    try:
        data, metadata = untrusted.within(untrusted.PATIENCE, lambda: bundle(value))
    except untrusted.TooLong as late:
        print(f"The result is not displayed: rendering it took {late}.", file=sys.stderr)
        return False
    is_drawn = bool(set(data) - {"text/plain"})
    if is_drawn:
        publish(data, metadata, result=True)
    return is_drawn


def _is_drawn(value: object) -> bool:
    if value is None:  # which most cells return
        return False
    kind = type(value)
    return is_figure(value) or any(getattr_static(kind, name, None) for name in _DRAWN)


# ---------------------------------------------------------------- set up, in the job


def install() -> None:
    """Let IPython's functions and matplotlib display on ranks."""
    _take_ipythons_place()
    when_imported("matplotlib", _choose_backend)


def _take_ipythons_place() -> None:
    instead = {"display": display, "publish_display_data": publish, "clear_output": clear_output}
    for name in ("core.display", "core.display_functions", "display"):
        with contextlib.suppress(ImportError):  # the second is there since IPython 8
            vars(importlib.import_module(f"IPython.{name}")).update(instead)


def _choose_backend(matplotlib: types.ModuleType) -> None:
    """Ours, in place of the notebook's. What the user has chosen stays."""
    if os.environ.get("MPLBACKEND", "") in ("", *INLINE):
        matplotlib.rcParams["backend"] = BACKEND
