"""Which device the ranks of a launch get, how many of them, and the environment that says so.

Pure functions of an environment and of what the machine shows in /sys and /dev. Everything here
serves torch_xla's own reading of the environment (its files are named where they matter): each
process fills its variables with `setdefault` (_internal/tpu.py, configure_topology), so whatever
the notebook left there wins over what the process would say of itself.

This file does not know torch, and starts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xla_nb.errors import UsageError

Device = Literal["TPU", "CPU"]
_DEVICES: dict[str, Device] = {"TPU": "TPU", "CPU": "CPU"}

# The PCI devices that torch_xla counts (_internal/tpu.py, num_available_chips), each with the
# smallest accelerator type it can be. v2 and v3 share an id, and behave alike.
_VENDOR = "0x1ae0"
_CHIPS = {
    "0x0027": "v2-8",
    "0x005e": "v4-8",
    "0x0062": "v5p-8",
    "0x0063": "v5litepod-{chips}",
    "0x006f": "v6e-{chips}",
    "0x0076": "tpu7x-8",
    "0x0056": "",  # for torch_xla's own tests
}

# How n processes of one chip lie on a host: the shapes that libtpu knows as parts of a host's
# 2x4 or 2x2 chips. Chips are numbered along x first, so that ranks 0 to n-1 fill these.
_PROCESS_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


# --- what this machine has -------------------------------------------------------------------


def chips(pci: Path = Path("/sys/bus/pci/devices")) -> int:
    """The TPU chips of this host, counted as torch_xla counts them but without importing it."""
    return len(list(_pci_chips(pci)))


def accelerator(environ: Mapping[str, str], pci: Path = Path("/sys/bus/pci/devices")) -> str | None:
    """The accelerator type, such as v5litepod-8: what the environment says, else what PCI shows."""
    told = environ.get("TPU_ACCELERATOR_TYPE")
    found = list(_pci_chips(pci))
    if told or not found:
        return told or None
    return _CHIPS[found[0]].format(chips=len(found)) or None


def device(environ: Mapping[str, str], chips: int) -> Device:
    """What the ranks run on: PJRT_DEVICE if it is set, else the TPU if there is one."""
    wanted = environ.get("PJRT_DEVICE", "").split("_")[0] or ("TPU" if chips else "CPU")
    if wanted == "TPU" and not chips:
        raise UsageError(
            "PJRT_DEVICE=TPU is set, but this machine shows no TPU chip. Remove the variable to "
            "run on a simulated TPU host: `import os; os.environ.pop('PJRT_DEVICE')`."
        )
    if wanted in _DEVICES:
        return _DEVICES[wanted]
    raise UsageError(
        f"PJRT_DEVICE={wanted} is set, and xla_nb runs ranks on a TPU or on a simulated TPU host. "
        "Set PJRT_DEVICE to TPU or CPU, or remove it to let xla_nb choose."
    )


def _pci_chips(pci: Path) -> Iterator[str]:
    for vendor in sorted(pci.glob("*/vendor")):
        if vendor.read_text().strip() == _VENDOR:
            model = (vendor.parent / "device").read_text().strip()
            if model in _CHIPS:
                yield model


# --- how many ranks --------------------------------------------------------------------------


def possible(accelerator: str | None, chips: int) -> list[int]:
    """The values of -n that a host with these chips can have.

    A process has one chip, and a rank is a device: two to a chip on v2 and v3, else one.
    """
    if _several_hosts(accelerator, chips) or generation(accelerator) == "tpu7x":
        return []
    return [size * devices_per_chip(accelerator) for size in _PROCESS_BOUNDS if size <= chips]


def bounds(accelerator: str | None, chips: int, n: int | None, hosts: int = 1) -> dict[str, str]:
    """The variables with which torch_xla starts exactly n ranks on this host; None: all of it.
    They are one host's: of several, each has all of its chips, as torch_xla itself reads them.

    torch_xla starts min(chips, size of TPU_PROCESS_BOUNDS) processes (_internal/tpu.py,
    num_local_processes), and process i takes chip i: TPU_VISIBLE_CHIPS is different in each, so it
    must not be set here. Setting the bounds also when n is everything keeps them from being read
    off variables that describe the host (same file, build_tpu_env_from_vars).
    """
    if hosts > 1:
        if n not in (None, chips * devices_per_chip(accelerator)):
            raise UsageError(
                f"-n {n}: a run on {hosts} TPU hosts has all of their chips, and "
                f"{_host_with(accelerator, chips)} has {chips * devices_per_chip(accelerator)} "
                "ranks. What to do: leave -n out"
            )
        return {}
    can = possible(accelerator, chips)
    if n is None:
        n = chips * devices_per_chip(accelerator)
        if n not in can:  # a slice of several hosts, say: torch_xla's own reading stands
            return {}
    if n not in can:
        raise UsageError(_impossible(accelerator, chips, n, can))
    return {
        "TPU_PROCESS_BOUNDS": _PROCESS_BOUNDS[n // devices_per_chip(accelerator)],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    }


def _impossible(accelerator: str | None, chips: int, n: int, can: list[int]) -> str:
    host = _host_with(accelerator, chips)
    if not can:
        return f"-n {n} cannot be set on {host}: leave -n out to use all of its chips."
    two = (
        " Each chip has two devices, and so two ranks."
        if devices_per_chip(accelerator) == 2
        else ""
    )
    return f"-n {n} is not possible on {host}: it can be {either(can)}.{two}"


def _host_with(accelerator: str | None, chips: int) -> str:
    kind = f" of a {accelerator}" if accelerator else ""
    return f"a host with {chips} chip{'s' * (chips > 1)}{kind}"


def either(numbers: list[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def generation(accelerator: str | None) -> str:
    """`v5litepod` of `v5litepod-8`."""
    return (accelerator or "").partition("-")[0]


def devices_per_chip(accelerator: str | None) -> int:
    """Devices of a chip (_internal/tpu.py, num_logical_cores_per_chip)."""
    return 2 if generation(accelerator) in ("v2", "v3") else 1


def one_host(accelerator: str | None, chips: int, runtime: str) -> None:
    """Raise UsageError on a slice of several hosts."""
    if _several_hosts(accelerator, chips):
        raise UsageError(
            f"--runtime {runtime} is for one host, and this one, with {chips} chips, is a part of "
            f"a {accelerator}. What to do: use --runtime xla"
        )


def slice_chips(accelerator: str | None) -> int | None:
    """The chips of a whole slice. The number in the type counts the chips of v5e and v6e, and the
    cores, two to a chip, of the others. None where it says no number."""
    size = (accelerator or "").rpartition("-")[2]
    if not size.isdigit():
        return None
    return int(size) // (1 if generation(accelerator) in ("v5litepod", "v5e", "v6e") else 2)


def _several_hosts(accelerator: str | None, chips: int) -> bool:
    """Whether the slice has more chips than this host."""
    return (slice_chips(accelerator) or 0) > chips


# --- the environment of a launch ----------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One variable that a launch has otherwise than the notebook; its text is one line."""

    name: str
    before: str | None
    after: str | None
    why: str

    def __str__(self) -> str:
        if self.after is None:
            return f"removed {self.name}={_short(self.before)}: {self.why}"
        if self.before == self.after:
            return f"kept {self.name}={_short(self.after)} as asked for, but {self.why}"
        return f"set {self.name}={_short(self.after)}: {self.why}"


def clean(
    environ: Mapping[str, str],
    *,
    device: Device,
    sets: Mapping[str, str] | None = None,
    asked: Mapping[str, str] | None = None,
) -> tuple[dict[str, str], list[Change]]:
    """The environment of a launch, and how it differs from the notebook's where that matters.

    `sets` is what the launch needs (see `bounds`), `asked` what the user gave with --env. What is
    asked for wins over everything, and is remarked on if it is known to break launches.
    """
    sets, asked = sets or {}, asked or {}
    cleaned, changes = dict(environ), []
    for name, why in _traps(environ, device):
        del cleaned[name]
        if name not in sets and name not in asked:
            changes.append(Change(name, environ[name], None, why))
    cleaned["PJRT_DEVICE"] = device
    needs = dict(sets)
    if device == "TPU" and "TPU_SKIP_MDS_QUERY" in environ:
        # Told not to ask the metadata server, torch_xla has the host's place in the slice from
        # here or from CLOUD_TPU_TASK_ID (_internal/tpu.py, build_tpu_env_from_vars), which went.
        needs.setdefault("TPU_WORKER_ID", environ.get("TPU_WORKER_ID", "0"))
    for name, value in needs.items():
        cleaned[name] = value
        if name in environ and environ[name] != value and name not in asked:
            changes.append(Change(name, environ[name], value, "what this launch needs"))
    cleaned.update(asked)
    changes += [Change(name, asked[name], asked[name], why) for name, why in _traps(asked, device)]
    return cleaned, changes


@dataclass(frozen=True)
class _Trap:
    """Variables that break a launch when they are set, on these devices, to such a value."""

    names: str
    why: str
    devices: tuple[Device, ...] = ("TPU", "CPU")
    when: Callable[[str, Mapping[str, str]], bool] = lambda value, environ: True


def _traps(environ: Mapping[str, str], device: Device) -> Iterator[tuple[str, str]]:
    """The variables of `environ` that break a launch, each with the reason."""
    for trap in _TRAPS:
        if device in trap.devices:
            for name in trap.names.split():
                if name in environ and trap.when(environ[name], environ):
                    yield name, trap.why


def _on(value: str, environ: Mapping[str, str]) -> bool:
    """A flag as torch_xla reads it (utils/utils.py, check_env_flag)."""
    return value == "true" or (value.isdigit() and int(value) > 0)


def lists_hosts(value: str) -> bool:
    """Whether this is a list of hosts (name, or name:port:address) and not, say, a warning."""
    return re.fullmatch(r"[\w.:-]+(,[\w.:-]+)*", value) is not None


def _no_hosts(value: str, environ: Mapping[str, str]) -> bool:
    return not lists_hosts(value)


def _torchrun(value: str, environ: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in environ


_TRAPS = (
    # torch_xla.py, device: under SPMD every process has the one virtual device xla:0, ordinal 0;
    # _internal/pjrt.py, _merge_replica_results then stops with "4 results for replica 0".
    _Trap(
        "XLA_USE_SPMD XLA_AUTO_SPMD",
        "under SPMD every rank would have the same virtual device (`4 results for replica 0`)",
        when=_on,
    ),
    # _internal/tpu.py, configure_topology: setdefault, so that all ranks would keep this one value.
    _Trap(
        "CLOUD_TPU_TASK_ID TPU_VISIBLE_CHIPS TPU_PROCESS_PORT",
        "each rank has its own, which this would override",
        devices=("TPU",),
    ),
    # The older name of TPU_VISIBLE_CHIPS. torch_xla does not read it, libtpu still does.
    _Trap(
        "TPU_VISIBLE_DEVICES",
        "each rank has its own chip, which this would override",
        devices=("TPU",),
    ),
    # _internal/tpu.py, configure_topology, again: Kaggle sets `local`, one address for 8 ranks
    # (`Expected 8 worker addresses, got 1`).
    _Trap(
        "TPU_PROCESS_ADDRESSES",
        "it must list an address for every rank, as torch_xla does when it is not set",
        devices=("TPU",),
    ),
    # _internal/tpu.py, configure_one_chip_topology leaves these at 1,1,1 in a notebook that used
    # the TPU itself, and num_local_processes would then start one process. `bounds` sets them.
    _Trap(
        "TPU_PROCESS_BOUNDS TPU_CHIPS_PER_PROCESS_BOUNDS",
        "-n says how many ranks there are; an earlier run in this notebook may have left it",
        devices=("TPU",),
    ),
    # _internal/tpu.py, get_worker_ips takes the text of a warning, which Kaggle may leave here,
    # for the names of hosts; libtpu refuses to start on it (`unexpected worker hostname`).
    _Trap(
        "TPU_WORKER_HOSTNAMES TPU_WORKER_ADDRS",
        "it holds no list of hosts",
        devices=("TPU",),
        when=_no_hosts,
    ),
    # _internal/jax_workarounds.py, jax_env_context sets it around JAX's client; two threads that
    # trace at once can leave it set in the notebook. A rank sets it itself, once its own client is
    # there (runtimes/discovery.py).
    _Trap(
        "SKIP_MEGASCALE_PJRT_CLIENT",
        "torch_xla's own client, too, would leave out the other slices",
        devices=("TPU",),
    ),
    # core/xla_env_vars.py names it, nothing reads it, though the error of xmp.spawn recommends it.
    _Trap("TPU_NUM_DEVICES", "torch_xla does not read it; -n says how many ranks there are"),
    # Read by the CPU client: that many devices in every process, as threads of it, whose
    # collectives never meet. A simulated host has one device per process.
    _Trap(
        "CPU_NUM_DEVICES",
        "every rank has one device; -n says how many ranks there are",
        devices=("CPU",),
        when=lambda value, environ: value != "1",
    ),
    # _internal/pjrt.py, initialize_multiprocess: setdefault; initialize_singleprocess leaves a 1
    # in a notebook, and runtime.py, local_process_count reads it.
    _Trap(
        "PJRT_LOCAL_PROCESS_RANK PJRT_LOCAL_PROCESS_COUNT",
        "each rank has its own, which this would override",
    ),
    # A torchrun's word on its own processes. torch.distributed's env:// gives every rank this one
    # place; _internal/rendezvous.py, pjrt_rendezvous_handler takes ranks for torchrun's own (a
    # second initialize_multiprocess) if there is a run id, and joins torchrun's store.
    _Trap(
        "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE "
        "ROLE_WORLD_SIZE TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE "
        "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS",
        "it describes one process of torchrun, and would do so in every rank",
    ),
    # Without torchrun these are a choice of the user's (which port ranks meet at): they stay.
    _Trap("MASTER_ADDR MASTER_PORT", "torchrun itself holds that port", when=_torchrun),
)


def _short(value: str | None) -> str:
    value = " ".join((value or "").split())
    return value if len(value) <= 40 else value[:37] + "..."
