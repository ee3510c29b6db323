"""Make absl's flags (`FLAGS = flags.FLAGS`) picklable. Their classes refuse it, because the forked
processes of programs that use them need no pickling."""

from __future__ import annotations

from typing import Any

from xla_nb.patching import when_imported


def let_pickle_have_them() -> None:
    """Make them picklable in this process, now or once absl is imported."""
    when_imported("absl.flags._flagvalues", _allow)


def _allow(module: Any) -> None:
    for kind in (module._flag.Flag, module.FlagValues):
        if "__getstate__" in vars(kind):
            del kind.__getstate__
    # pickle looks this up on an empty instance, for which its `__getattr__` fails.
    module.FlagValues.__setstate__ = _filled


def _filled(self: Any, state: dict[str, object]) -> None:
    vars(self).update(state)
