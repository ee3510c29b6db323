"""What a plan asks for and XLA cannot do: refused, never done in part.

The rule: no torch here, and each refusal names the module, the style and the way out.
"""

from __future__ import annotations

from xla_nb.errors import UsageError


class NotExpressible(UsageError):
    """A part of a plan that has no meaning for XLA's partitioner."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(f"{where}: {problem}. What to do: {fix}.")
