"""The notebook's random generators and default dtype, which ranks inherit.

Forked ranks of a script continue with the generators of their parent process; here that is the
notebook. The generator of a library that the notebook has not imported starts from a new seed at
every launch, as in a new process; the library is not imported for this.
"""

from __future__ import annotations

import random
import secrets
import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Inheritance:
    """The states of the notebook's generators, and a seed for those it does not have."""

    python: Any = field(default_factory=random.getstate)
    numpy: Any = None
    torch: Any = None
    dtype: str | None = None
    seed: int = field(default_factory=lambda: secrets.randbits(32))

    @classmethod
    def now(cls) -> Inheritance:
        """The current states."""
        numpy = _imported("numpy", "random")
        torch = _imported("torch", "get_default_dtype")
        return cls(
            numpy=numpy.random.get_state() if numpy else None,
            torch=torch.get_rng_state().numpy() if torch else None,
            dtype=str(torch.get_default_dtype()) if torch else None,
        )

    @classmethod
    def of_this_process(cls) -> Inheritance:
        """The current states. Each generator then continues from a seed that it draws itself: ranks
        draw an unknown number of values from its present sequence, which the next launch must not
        repeat."""
        states = cls.now()
        numpy = _imported("numpy", "random")
        torch = _imported("torch", "get_default_dtype")
        random.seed(random.getrandbits(64))
        if numpy:
            numpy.random.seed(numpy.random.randint(0, 1 << 32, 4, "u4"))
        if torch:
            torch.default_generator.manual_seed(int(torch.randint(1 << 62, (1,), device="cpu")))
        return states

    def take_on(self) -> None:
        """Set the states in this process, for numpy and torch only if it has imported them."""
        numpy, torch = _imported("numpy", "random"), _imported("torch", "get_default_dtype")
        random.setstate(self.python)
        if self.numpy is not None:
            numpy.random.set_state(self.numpy)
        elif numpy is not None:
            numpy.random.seed(self.seed)
        if self.torch is not None:
            torch.set_rng_state(torch.from_numpy(self.torch.copy()))
        elif torch is not None:
            # Ranks have no other generator: torch.manual_seed would record its caller for CUDA.
            torch.default_generator.manual_seed(self.seed)
        if self.dtype is not None:
            torch.set_default_dtype(getattr(torch, self.dtype.removeprefix("torch.")))


def _imported(name: str, attribute: str) -> Any:
    """The module if it is imported; `attribute` is missing while its import is unfinished."""
    module = sys.modules.get(name)
    return module if hasattr(module, attribute) else None
