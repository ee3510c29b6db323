"""A host as Ray's actor.

The rule: it adds to `host.Host` only what Ray alone knows there.
"""

from __future__ import annotations

from typing import Any

from xla_nb.engines.ray.host import Host


class Actor(Host):
    """Started by Ray on the node that it speaks for."""

    def __init__(self) -> None:
        import ray

        context: Any = ray.get_runtime_context()
        super().__init__(ray.util.get_node_ip_address(), context.get_node_id())
