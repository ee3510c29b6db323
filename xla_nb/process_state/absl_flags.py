"""absl's flags (`FLAGS = flags.FLAGS`): their classes refuse to be pickled, since the forked
processes of the programs that have them need no pickle."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported


def let_pickle_have_them() -> None:
    """In this process, now or once absl is imported."""
    when_imported("absl.flags._flag", _allow_flags)
    when_imported("absl.flags._flagvalues", _allow_values)


def _allow_flags(module: ModuleType) -> None:
    _allow(vars(module)["Flag"])


def _allow_values(module: ModuleType) -> None:
    kind = vars(module)["FlagValues"]
    _allow(kind)
    # Its `__getattr__` needs what it holds, and pickle asks an empty one for this.
    kind.__setstate__ = _filled


def _allow(kind: Any) -> None:
    if "__getstate__" in vars(kind):
        del kind.__getstate__


def _filled(self: Any, state: dict[str, object]) -> None:
    vars(self).update(state)
