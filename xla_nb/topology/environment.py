"""The environment of a launch: set the variables that ranks need, remove those that break them.

Each torch_xla process fills in its variables with `setdefault` (_internal/tpu.py,
configure_topology), so a value left in the notebook overrides the right one. Each trap names the
file of torch_xla, JAX or libtpu that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from xla_nb.wording import in_one_line


def clean(
    environ: Mapping[str, str],
    *,
    device: str,
    sets: Mapping[str, str],
    user_env: Mapping[str, str],
) -> tuple[dict[str, str], list[str]]:
    """Return the environment of a launch, and its relevant changes from the notebook's, as lines.

    sets: variables that the launch needs (see `chips.process_bounds`).
    user_env: --env, which overrides everything; changes include a warning for each variable that is
        known to break launches.
    """
    cleaned, changes = dict(environ), []
    for name, why in _traps(environ, device):
        del cleaned[name]
        if name not in sets and name not in user_env:
            changes.append(f"removed {_format_setting(name, environ[name])}: {why}")
    cleaned["PJRT_DEVICE"] = device
    needed = dict(sets)
    if device == "TPU" and "TPU_SKIP_MDS_QUERY" in environ:
        # Without the metadata server, torch_xla reads the host's worker number from this or from
        # CLOUD_TPU_TASK_ID (_internal/tpu.py, build_tpu_env_from_vars), which was removed.
        needed.setdefault("TPU_WORKER_ID", environ.get("TPU_WORKER_ID", "0"))
    for name, value in needed.items():
        cleaned[name] = value
        is_changed = name in environ and environ[name] != value and name not in user_env
        if is_changed and name not in _OF_TORCH_XLA:
            changes.append(f"set {_format_setting(name, value)}: this launch needs it")
    cleaned.update(user_env)
    for name, why in _traps(user_env, device):
        changes.append(f"kept {_format_setting(name, user_env[name])} as requested, but {why}")
    return cleaned, changes


#: Variables that torch_xla itself sets in a notebook: on import, and in `xr.use_spmd()`.
_OF_TORCH_XLA = ("TF_CPP_MIN_LOG_LEVEL", "XLA_USE_SPMD")


def _format_setting(name: str, value: str) -> str:
    return f"{name}={in_one_line(value, 40)}"


@dataclass(frozen=True)
class _Trap:
    """Variables that break a launch on these devices if `when` is true for their value."""

    names: str
    why: str
    devices: tuple[str, ...] = ("TPU", "CPU")
    when: Callable[[str, Mapping[str, str]], bool] = lambda value, environ: True


def _traps(environ: Mapping[str, str], device: str) -> Iterator[tuple[str, str]]:
    """The variables in `environ` that break a launch, each with the reason."""
    for trap in _TRAPS:
        if device in trap.devices:
            for name in trap.names.split():
                if name in environ and trap.when(environ[name], environ):
                    yield name, trap.why


def _is_on(value: str, environ: Mapping[str, str]) -> bool:
    """Read a flag as torch_xla does (utils/utils.py, check_env_flag)."""
    return value == "true" or (value.isdigit() and int(value) > 0)


def lists_hosts(value: str) -> bool:
    """Whether this is a list of hosts (name, or name:port:address), not a warning text."""
    return re.fullmatch(r"[\w.:-]+(,[\w.:-]+)*", value) is not None


def _lists_no_hosts(value: str, environ: Mapping[str, str]) -> bool:
    return not lists_hosts(value)


def _under_torchrun(value: str, environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ


_TRAPS = (
    # torch_xla.py, device: under SPMD every process has the one virtual device xla:0, ordinal 0;
    # _internal/pjrt.py, _merge_replica_results then stops with "4 results for replica 0".
    _Trap(
        "XLA_USE_SPMD XLA_AUTO_SPMD",
        "SPMD would give every rank the same virtual device (`4 results for replica 0`)",
        when=_is_on,
    ),
    # _internal/tpu.py, configure_topology: setdefault, so all ranks would keep this one value.
    _Trap(
        "CLOUD_TPU_TASK_ID TPU_VISIBLE_CHIPS TPU_PROCESS_PORT",
        "it would override each rank's own value",
    ),
    # The older name of TPU_VISIBLE_CHIPS. torch_xla does not read it, but libtpu does.
    _Trap(
        "TPU_VISIBLE_DEVICES",
        "it would override each rank's own chip",
        devices=("TPU",),
    ),
    # Also _internal/tpu.py, configure_topology: Kaggle sets `local`, one address for 8 ranks
    # (`Expected 8 worker addresses, got 1`).
    _Trap(
        "TPU_PROCESS_ADDRESSES",
        "it must list an address for every rank, as torch_xla does if it is not set",
    ),
    # _internal/tpu.py, configure_one_chip_topology leaves these at 1,1,1 in a notebook that used
    # the TPU itself, and num_local_processes would then start one process. `process_bounds` sets
    # them.
    _Trap(
        "TPU_PROCESS_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS",
        "-n sets the number of ranks; an earlier run in this notebook may have left it behind",
        devices=("TPU",),
    ),
    # Kaggle may leave a warning text in these. _internal/tpu.py, get_worker_ips takes it for host
    # names, and libtpu refuses to start (`unexpected worker hostname`).
    _Trap(
        "TPU_WORKER_HOSTNAMES TPU_WORKER_ADDRS",
        "it is not a list of hosts",
        devices=("TPU",),
        when=_lists_no_hosts,
    ),
    # _internal/jax_workarounds.py, jax_env_context sets it around JAX's client; two threads that
    # trace at once can leave it set in the notebook. A rank sets it after creating its own client
    # (runtimes/xla.py, open_client).
    _Trap(
        "SKIP_MEGASCALE_PJRT_CLIENT",
        "torch_xla's own client would ignore the other slices too",
        devices=("TPU",),
    ),
    # core/xla_env_vars.py names it and an error of xmp.spawn recommends it, but nothing reads it.
    _Trap("TPU_NUM_DEVICES", "torch_xla does not read it; -n sets the number of ranks"),
    # Makes the CPU client create this number of devices in every process, as threads whose
    # collectives never meet. A simulated host has one device per process.
    _Trap(
        "CPU_NUM_DEVICES",
        "every rank has one device; -n sets the number of ranks",
        devices=("CPU",),
        when=lambda value, environ: value != "1",
    ),
    # _internal/pjrt.py, initialize_multiprocess: setdefault; initialize_singleprocess leaves 1 in a
    # notebook, and runtime.py, local_process_count reads it.
    _Trap(
        "PJRT_LOCAL_PROCESS_RANK PJRT_LOCAL_PROCESS_COUNT",
        "it would override each rank's own value",
    ),
    # torchrun's description of its own processes. torch.distributed's env:// would give every rank
    # this rank number; with a run id, _internal/rendezvous.py, pjrt_rendezvous_handler takes
    # ranks for torchrun's own (a second initialize_multiprocess) and joins torchrun's store.
    _Trap(
        "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE "
        "ROLE_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE "
        "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS",
        "it describes one torchrun process, not each rank",
    ),
    # Without torchrun the user has set these, as the ranks' meeting point: they are kept.
    _Trap("MASTER_ADDR MASTER_PORT", "torchrun itself uses that port", when=_under_torchrun),
)
