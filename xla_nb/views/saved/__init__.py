"""A run as it stays in the notebook: HTML without a style sheet or script, and plain text."""

from xla_nb.views.saved.bounds import OUTPUT
from xla_nb.views.saved.html import render_html
from xla_nb.views.saved.style import PHASES
from xla_nb.views.saved.text import render_text

__all__ = ["OUTPUT", "PHASES", "render_html", "render_text"]
