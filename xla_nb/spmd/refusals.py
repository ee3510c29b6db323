"""The error for what a plan asks and XLA cannot do. No torch: the notebook may import it."""

from __future__ import annotations

from xla_nb.errors import UsageError


class NotExpressible(UsageError):
    """A part of a plan that XLA's partitioner cannot express. `fix` is an imperative."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(f"{where}: {problem}. {fix}.")
