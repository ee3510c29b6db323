"""absl's flags (`FLAGS = flags.FLAGS`): their classes refuse to be pickled, since the forked
processes of the programs that have them need no pickle."""

from __future__ import annotations

from typing import Any

from xla_nb.patching import when_imported


def let_pickle_have_them() -> None:
    """In this process, now or once absl is imported."""
    when_imported("absl.flags._flagvalues", _allow)


def _allow(module: Any) -> None:
    for kind in (module._flag.Flag, module.FlagValues):
        if "__getstate__" in vars(kind):
            del kind.__getstate__
    # Its `__getattr__` needs what it holds, and pickle asks an empty one for this.
    module.FlagValues.__setstate__ = _filled


def _filled(self: Any, state: dict[str, object]) -> None:
    vars(self).update(state)
