"""Make absl's flags (`FLAGS = flags.FLAGS`) picklable. Their classes refuse it, because the forked
processes of programs that use them need no pickling."""

from __future__ import annotations

from typing import Any

from xla_nb.patching import when_imported


def let_pickle_have_them() -> None:
    """Make them picklable in this process, now or once absl is imported."""
    when_imported("absl.flags._flagvalues", _make_picklable)


def _make_picklable(module: Any) -> None:
    for cls in (module._flag.Flag, module.FlagValues):
        if "__getstate__" in vars(cls):
            del cls.__getstate__
    # pickle looks this up on an empty instance, for which its `__getattr__` fails.
    module.FlagValues.__setstate__ = _set_state


def _set_state(self: Any, state: dict[str, object]) -> None:
    vars(self).update(state)
