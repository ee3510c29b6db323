"""The options of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """How a run is to go. Times are in seconds; `timeout` None is no limit.

    n: ranks (devices, for `spmd`); None is all of a TPU's, or those of a simulated host.
    runtime: what the ranks join, one of `runtimes.NAMES`.
    grace: how long the others may go on once a rank has failed.
    on: where the ranks are: "local", this machine; "ray", a Ray cluster (RAY_ADDRESS);
    "ray://HOST:PORT", one that is reached through its client server.
    hosts: how many of the cluster's machines, with `n` ranks on each; None is all that are free.
    slices: how many TPU slices the hosts are in. wait: how long to wait for free hosts.
    """

    n: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    grace: float = 5.0
    runtime: str = "xla"
    on: str = "local"
    hosts: int | None = None
    slices: int | None = None
    wait: float = 0.0
