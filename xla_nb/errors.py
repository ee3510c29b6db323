"""The errors that a person at the notebook may see.

Each is one paragraph: what is wrong, with the value given, and what to do. A notebook shows it
without a stack trace.
"""

from __future__ import annotations

import textwrap

_WIDTH = 70  # columns; fits all but the narrowest pages


class XlaNbError(Exception):
    """Base of the errors that xla_nb raises in the notebook."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints instead of a stack (a hook since IPython 5)."""
        paragraphs = f"{type(self).__name__}: {self}".splitlines()
        return [line for paragraph in paragraphs for line in in_lines(paragraph)]


def in_lines(line: str, indent: int = 0) -> list[str]:
    """Wrap a sentence into lines that end in a space: JupyterLab would break a long line anywhere,
    as in "an o" and "pen file". Code, which is indented, is left as it is. `indent` applies to all
    lines but the first."""
    if line.startswith(" ") or len(line) <= _WIDTH:
        return [line]
    parts = textwrap.wrap(
        line, _WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=" " * indent
    )
    return [*(f"{part} " for part in parts[:-1]), parts[-1]]


class UsageError(XlaNbError):
    """An option, a name or an argument is wrong."""


class ProgramError(XlaNbError):
    """The cell cannot be made into a program: a syntax error, a missing name, no entry."""


class ShippingError(XlaNbError):
    """A value of the notebook cannot be sent to the ranks."""


class LaunchError(XlaNbError):
    """The ranks cannot be started."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a launch. Not an Exception, so that it ends a program that catches
    those, as it does where torch_xla launches."""

    _render_traceback_ = XlaNbError._render_traceback_
