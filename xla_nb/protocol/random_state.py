"""What a launch has of the notebook's process beside its values: random numbers and dtypes.

A script's forked ranks go on with the generators of the process they came from; here that is
the notebook. The rule: modules that the notebook has not imported are not imported for this;
their generators begin somewhere new at every launch, as they would in a new process.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass, field
from typing import Any


def _entropy() -> int:
    return int.from_bytes(os.urandom(4), "little")


@dataclass(frozen=True)
class Inheritance:
    """The generators' states as the notebook has them, and a seed for those that it has not."""

    python: Any = field(default_factory=random.getstate)
    numpy: Any = None
    torch: Any = None
    dtype: str | None = None
    seed: int = field(default_factory=_entropy)

    @classmethod
    def of_this_process(cls) -> Inheritance:
        """What it is now. Each generator is moved on, so that the next launch draws anew."""
        numpy = _imported("numpy", "random")
        torch = _imported("torch", "get_default_dtype")
        taken = cls(
            numpy=numpy.random.get_state() if numpy else None,
            torch=torch.get_rng_state().numpy() if torch else None,
            dtype=str(torch.get_default_dtype()) if torch else None,
        )
        random.random()
        if numpy:
            numpy.random.random()
        if torch:
            torch.rand(1)
        return taken

    def take_on(self) -> None:
        """Make it this process's, which has imported both."""
        numpy: Any = sys.modules["numpy"]
        torch: Any = sys.modules["torch"]
        random.setstate(self.python)
        if self.numpy is None:
            numpy.random.seed(self.seed)
        else:
            numpy.random.set_state(self.numpy)
        if self.torch is None:
            torch.manual_seed(self.seed)
        else:
            torch.set_rng_state(torch.from_numpy(self.torch.copy()))
        if self.dtype is not None:
            torch.set_default_dtype(getattr(torch, self.dtype.removeprefix("torch.")))


def _imported(name: str, sign: str) -> Any:
    """A module that is there already, and not half-way through its import."""
    module = sys.modules.get(name)
    return module if hasattr(module, sign) else None
