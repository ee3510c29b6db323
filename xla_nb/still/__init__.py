"""A run as it stays in the notebook: HTML that needs no style sheet and no script, and text.

The rule: it reads right with no kernel, trusted or not, light or dark, and is bounded: the record
has the rest.
"""

from xla_nb.still.bounds import OUTPUT
from xla_nb.still.look import PHASES
from xla_nb.still.page import html
from xla_nb.still.plain import text

__all__ = ["OUTPUT", "PHASES", "html", "text"]
