"""A run as it stays in the notebook: HTML that needs no style sheet and no script, and text.

The rule: it reads right with no kernel, trusted or not, light or dark, and is bounded: the record
has the rest.
"""

from xla_nb.views.saved.bounds import OUTPUT
from xla_nb.views.saved.html import render_html
from xla_nb.views.saved.style import PHASES
from xla_nb.views.saved.text import render_text

__all__ = ["OUTPUT", "PHASES", "render_html", "render_text"]
