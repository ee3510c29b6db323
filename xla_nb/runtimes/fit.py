"""Fit a launch to the machine of its ranks: their device, number and environment.

Runs on that machine, before anything is started on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xla_nb import runtimes
from xla_nb.runtimes import Machine
from xla_nb.topology import environment
from xla_nb.topology.chips import accelerator_type, choose_device, count_chips

#: Called while a launch waits, with the seconds so far and a text that says for what.
OnWait = Callable[[float, str], None]


@dataclass(frozen=True)
class Fit:
    """A launch fitted to a machine: `ranks` is None for one per device, `imports` are modules for
    its processes, `notices` messages for the user, such as changes to the environment."""

    device: str
    ranks: int | None
    env: dict[str, str]
    imports: tuple[str, ...]
    notices: tuple[str, ...] = ()


def fit_to_machine(
    runtime: str,
    n: int | None,
    user_env: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    hosts: int = 1,
    sets: Mapping[str, str] | None = None,
) -> Fit:
    """Fit a launch of `n` ranks to this machine, one of `hosts` of the run.

    `user_env` is --env, `environ` the environment it is added to, and `sets` the variables for the
    machine's position among the hosts. Raises XlaNbError if the launch does not fit.
    """
    chips = count_chips()
    device = choose_device({**environ, **user_env}, chips)
    host_environ = {**environ, **(sets or {})}
    machine = Machine(device, chips, accelerator_type(environ), host_environ, user_env, hosts)
    plan = runtimes.named(runtime).plan(machine, n)
    env, changes = environment.clean(
        environ, device=device, sets={**plan.sets, **(sets or {})}, user_env=user_env
    )
    return Fit(device, plan.ranks, env, tuple(plan.imports), (*plan.notices, *changes))
