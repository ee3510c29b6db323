"""What a rank's function leaves to be displayed: the figures that are open, and its result."""

from __future__ import annotations

import sys
import traceback
from inspect import getattr_static
from typing import Any

from xla_nb.protocol import hostile
from xla_nb.rank import displays

_DRAWN = ("_repr_html_", "_repr_mimebundle_", "_repr_png_", "_repr_jpeg_", "_repr_svg_")


def display(returned: object) -> bool:
    """Display the figures that the rank's function left open, and what it returned where that has a
    form that a notebook draws: True if so. Whatever they do costs the rank nothing."""
    try:
        if "matplotlib.pyplot" in sys.modules:
            from xla_nb.rank import figures

            figures.show_left_open(returned)
        return _is_drawn(returned) and _show_result(returned)
    except Exception:
        traceback.print_exc()
        return False


def _show_result(value: object) -> bool:
    def look() -> tuple[Any, Any]:
        try:
            return displays.bundle(value)
        except BaseException:
            traceback.print_exc()
            return {}, {}

    try:
        data, metadata = hostile.within(hostile.PATIENCE, look)
    except hostile.TooLong as late:
        print(f"The result is not displayed: drawing it took {late}.", file=sys.stderr)
        return False
    is_drawn = bool(set(data) - {"text/plain"})
    if is_drawn:
        displays.publish(data, metadata, result=True)
    return is_drawn


def _is_drawn(value: object) -> bool:
    if value is None:  # which most cells return
        return False
    kind = type(value)
    return displays.is_figure(value) or any(getattr_static(kind, name, None) for name in _DRAWN)
