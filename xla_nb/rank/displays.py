"""`display` in a rank: its output goes to the rank's journal of displays.

IPython's formatters make the bundles, but there is no IPython shell here: its functions that need
one are replaced. Outside a rank (at the top level of the cell, which the job executes) displays are
printed.
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

#: matplotlib's backend on ranks, instead of the notebook's.
BACKEND = "module://xla_nb.rank.figures"
INLINE = (
    "inline",
    "module://matplotlib_inline.backend_inline",
    "module://ipykernel.pylab.backend_inline",
)
_MAX_TEXT = 100_000  # most characters of a plain text
#: Not shown: a widget's model is in the rank, but the page asks the kernel for it.
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Screen:
    """The displays of one rank, and of processes that it has forked."""

    def __init__(self, record: Record, rank: int, losses: Losses) -> None:
        self._journal = Journal(record.of_rank(rank, "displays"))
        self._losses = losses

    def add(self, kind: str, **body: Any) -> None:
        """Write a line; one that the disk cannot take is reported."""
        line = encode(kind, **body)
        try:
            self._journal.add(line, clears=kind == "clear")
        except OSError as problem:
            self._losses.note("all of its displays", problem)


#: The screens of this process's ranks.
screens: OfRank[Screen] = OfRank()


# ---------------------------------------------------------------- replacements for IPython's


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
    """`IPython.display.display` on a rank."""
    if display_id is True:
        display_id = os.urandom(16).hex()
    if kwargs.get("update") and not display_id:
        raise TypeError("display_id required for update_display")
    if clear:
        clear_output(wait=True)
    merged = {**(transient or {}), **({"display_id": display_id} if display_id else {})}
    for obj in objs:
        data, details = (obj, {}) if raw else bundle(obj, include, exclude)
        for name, value in (metadata or {}).items():
            details[name] = {**details.get(name, {}), **value} if isinstance(value, dict) else value
        if data or raw:
            publish(data, details, transient=merged, **kwargs)
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
    """`IPython.display.publish_display_data` on a rank."""
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
    except (ValueError, TypeError, RecursionError) as problem:  # raised by user data
        forms = listed([str(name) for name in data])
        message = f"Not displayed: not valid JSON ({forms}): {type(problem).__name__}: {problem}"
        print(message, file=sys.stderr)


def clear_output(wait: bool = False) -> None:
    """`IPython.display.clear_output` on a rank: clears its displays, not its lines of output."""
    screen = screens.here()
    if screen is not None:
        screen.add("clear", wait=bool(wait))


def is_figure(value: object) -> bool:
    figures: Any = sys.modules.get("matplotlib.figure")
    return figures is not None and issubclass(type(value), figures.Figure)


# ---------------------------------------------------------------- bundles


def bundle(value: object, include: Any = None, exclude: Any = None) -> tuple[Any, Any]:
    """The MIME bundle of an object and its metadata, from IPython's formatters. An exception of a
    `_repr_html_` is printed."""
    data, metadata = _formatter().format(value, include=include, exclude=exclude)
    return dict(data), dict(metadata)


@functools.cache
def _formatter() -> Any:
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.pylabtools import print_figure

    formatter: Any = DisplayFormatter()
    png_formatter: Any = formatter.formatters["image/png"]
    png_formatter.for_type_by_name("matplotlib.figure", "Figure", print_figure)
    return formatter


def _bounded(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The bundle as JSON values; only its text if the whole is too large."""
    values = {
        str(name): base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in data.items()
    }
    if "text/plain" in values:
        values.pop(_WIDGET, None)
    if isinstance(text := values.get("text/plain"), str) and len(text) > _MAX_TEXT:
        values["text/plain"] = f"{text[:_MAX_TEXT]}\n… {len(text) - _MAX_TEXT:,} more characters"
    if (nbytes := len(encode("", data=values))) > LARGEST * 0.99:
        text = values.pop("text/plain", "")
        notice = (
            f"{listed(values)} of {size(nbytes)} omitted: the limit per display is {size(LARGEST)}"
        )
        return {"text/plain": f"{text}\n({notice})".strip()}
    return values


# ---------------------------------------------------------------- when a function has ended

_RICH_METHODS = ("_repr_html_", "_repr_mimebundle_", "_repr_png_", "_repr_jpeg_", "_repr_svg_")


def show_what_is_left(result: object) -> bool:
    """Display figures that the rank's function left open, and its result if it has a rich form.
    Returns whether the result was displayed. Exceptions are printed; they do not fail the rank."""
    try:
        if "matplotlib.pyplot" in sys.modules:
            _show_figures_left_open(result)
        return _is_rich(result) and _show_result(result)
    except (Exception, SystemExit):
        traceback.print_exc()
        return False


def _show_figures_left_open(result: object) -> None:
    """Display open figures, unless the user has chosen another backend. A figure that the function
    returned is displayed as its result instead."""
    from matplotlib import pyplot

    if pyplot.get_backend() in (BACKEND, *INLINE):
        if is_figure(result):
            pyplot.close(result)  # type: ignore[arg-type]
        show_open_figures()


def show_open_figures() -> None:
    """Display the open figures and close them."""
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
    is_rich = bool(set(data) - {"text/plain"})
    if is_rich:
        publish(data, metadata, result=True)
    return is_rich


def _is_rich(value: object) -> bool:
    if value is None:  # as most cells return
        return False
    cls = type(value)
    return is_figure(value) or any(getattr_static(cls, name, None) for name in _RICH_METHODS)


# ---------------------------------------------------------------- set up, in the job


def install() -> None:
    """Have IPython's functions and matplotlib display on ranks."""
    _take_ipythons_place()
    when_imported("matplotlib", _choose_backend)


def _take_ipythons_place() -> None:
    functions = {"display": display, "publish_display_data": publish, "clear_output": clear_output}
    for name in ("core.display", "core.display_functions", "display"):
        with contextlib.suppress(ImportError):  # the second exists since IPython 8
            vars(importlib.import_module(f"IPython.{name}")).update(functions)


def _choose_backend(matplotlib: types.ModuleType) -> None:
    """Set our backend in place of the notebook's; keep one that the user has chosen."""
    if os.environ.get("MPLBACKEND", "") in ("", *INLINE):
        matplotlib.rcParams["backend"] = BACKEND
