"""Render a run as HTML, for its panel and the saved notebook, and as plain text."""

from xla_nb.views.rendering.html import render_html
from xla_nb.views.rendering.style import PHASES
from xla_nb.views.rendering.text import render_text

__all__ = ["PHASES", "render_html", "render_text"]
