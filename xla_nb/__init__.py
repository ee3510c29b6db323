"""xla_nb: run a notebook cell on every rank of a TPU or of a simulated TPU host.

In a notebook: ``%load_ext xla_nb``, then ``%%xla_spawn``. Anywhere: ``xla_nb.spawn(fn)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xla_nb import spmd as spmd
    from xla_nb import torchax as torchax
    from xla_nb.api import open_run as open_run
    from xla_nb.api import release as release
    from xla_nb.api import spawn as spawn
    from xla_nb.dropin import install as install
    from xla_nb.errors import XlaNbError as XlaNbError
    from xla_nb.live import ranks as ranks
    from xla_nb.rank.reporting import progress as progress
    from xla_nb.rank.reporting import report as report
    from xla_nb.run.failed import RunFailed as RunFailed
    from xla_nb.run.run import Run as Run
    from xla_nb.topology.chips import simulated as simulated

__version__ = "0.1.0"

_HOMES = {
    "Run": "xla_nb.run.run",
    "RunFailed": "xla_nb.run.failed",
    "XlaNbError": "xla_nb.errors",
    "install": "xla_nb.dropin",
    "open_run": "xla_nb.api",
    "progress": "xla_nb.rank.reporting",
    "ranks": "xla_nb.live",
    "release": "xla_nb.api",
    "report": "xla_nb.rank.reporting",
    "simulated": "xla_nb.topology.chips",
    "spawn": "xla_nb.api",
    "spmd": "xla_nb.spmd",
    "torchax": "xla_nb.torchax",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562), since ranks need few of them."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'xla_nb' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    return getattr(module, name, module)  # spmd and torchax are modules themselves


def __dir__() -> list[str]:
    """List the public names."""
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext xla_nb``."""
    from xla_nb import magics

    magics.load(shell)
