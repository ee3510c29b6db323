"""NumPy's numbers and arrays between ranks: `xm.mesh_reduce` sends what it is given through
`torch.save` and `torch.load`, which since torch 2.6 opens them only where a program says so. They
hold no code."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from xla_nb.patching import when_imported


def let_torch_open_numpys() -> None:
    when_imported("torch.serialization", _allow)


def _allow(serialization: ModuleType) -> None:
    numpy: Any = importlib.import_module("numpy")
    core: Any = importlib.import_module(numpy.ndarray(0).__reduce__()[0].__module__)  # by release
    kinds = {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    made_by = [core._reconstruct, core.scalar, numpy.ndarray, numpy.dtype]
    vars(serialization)["add_safe_globals"]([*made_by, *kinds])
