"""A host as a Ray actor: a HostAgent without Ray's own variables and folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from xla_nb.engines.ray.host import HostAgent

#: Variables that Ray sets for its workers and ranks must not have.
_RAYS = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")


class Actor(HostAgent):
    """Started by Ray on the node that it represents."""

    def __init__(self) -> None:
        import ray

        context: Any = ray.get_runtime_context()
        super().__init__(
            ray.util.get_node_ip_address(),
            context.get_node_id(),
            environ(os.environ),
            path(sys.path, Path(ray.__file__).parent),
        )


def environ(workers: Mapping[str, str]) -> dict[str, str]:
    """A worker's environment without Ray's own variables."""
    own = {name: value for name, value in workers.items() if not name.startswith(_RAYS)}
    if own.get("CUDA_VISIBLE_DEVICES") == "":  # Ray's, for an actor without a GPU
        del own["CUDA_VISIBLE_DEVICES"]
    return own


def path(workers: Iterable[str], ray: Path) -> list[str]:
    """A worker's sys.path without the folders of Ray's own package."""
    return [entry for entry in workers if not Path(entry).is_relative_to(ray)]
