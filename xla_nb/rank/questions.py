"""What live ranks are asked between cells. Ranks call these as they do any function; the namespace
is that in which cells run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from xla_nb.program.split import RANK_NAMES
from xla_nb.protocol.inspection import About, Completions
from xla_nb.protocol.variables import Values, Variable
from xla_nb.rank import completing, helping
from xla_nb.rank import variables as own


def variables(names: Sequence[str], compute: bool) -> list[Variable]:
    """What these names hold, by default all of the user's; compute: what is only recorded is
    computed first."""
    namespace = _namespace()
    ours = {n: namespace[n] for n in (*RANK_NAMES, "get_ipython", "display") if n in namespace}
    return own.describe(namespace, names or own.names_of(namespace, ours), compute=compute)


def values(wanted: Sequence[tuple[str, str]]) -> list[Values]:
    """The elements of leaves, by name and path."""
    return own.values(_namespace(), wanted)


def completions(text: str) -> Completions:
    """What may stand at the end of a cell up to the cursor."""
    return completing.complete(_namespace(), text)


def about(expression: str, source: bool) -> About:
    """What the object is to which an expression leads; source: with its source."""
    return helping.about(_namespace(), expression, source=source)


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])
