"""The errors a person at the notebook may see.

The rule: each one is a paragraph that says what happened, where, and what to do next; a
notebook shows that paragraph alone, without a stack of ours above it.
"""

from __future__ import annotations


class XlaNbError(Exception):
    """Base of the errors that xla_nb raises in the notebook."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in place of a stack (its hook of this name, since IPython 5)."""
        return f"{type(self).__name__}: {self}".splitlines()


class UsageError(XlaNbError):
    """An option, a name or an argument that cannot be used as it stands."""


class ProgramError(XlaNbError):
    """The cell cannot be made into a program: a syntax error, a missing name, no entry."""


class ShippingError(XlaNbError):
    """A value of the notebook that cannot travel to the ranks."""


class LaunchError(XlaNbError):
    """The ranks could not be started."""
