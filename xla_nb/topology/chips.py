"""The chips of a machine: the device that ranks use, and how many ranks the chips allow.

Pure functions of an environment and of /sys. Chips are counted as torch_xla counts them (its files
are named below), without importing it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from xla_nb.errors import UsageError
from xla_nb.wording import listed, several

#: Default number of ranks on a simulated host.
SIMULATED = 4

#: The variable that requests a simulated host and names the TPU to simulate (tpu_types.py).
SIMULATE = "XLA_NB_SIMULATE"

# The PCI devices that torch_xla counts (_internal/tpu.py, num_available_chips), each with the
# smallest accelerator type it can be. v2 and v3 share an id, and behave the same.
_VENDOR = "0x1ae0"
_CHIPS = {
    "0x0027": "v2-8",
    "0x005e": "v4-8",
    "0x0062": "v5p-8",
    "0x0063": "v5litepod-{chips}",
    "0x006f": "v6e-{chips}",
    "0x0076": "tpu7x-8",
    "0x0056": "",  # used in torch_xla's own tests
}

#: Generations whose types count chips (others count cores, two per chip), and that have hosts of 8.
COUNTED_BY_CHIP = ("v5litepod", "v5e", "v6e")

#: The shape of n processes of one chip each on a host: the shapes that libtpu accepts as parts of a
#: host's 2x4 or 2x2 chips. Chips are numbered along x first, so ranks 0 to n-1 fill these shapes.
PROCESS_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}


# --- this machine -----------------------------------------------------------------------------


def count_chips(pci: Path = Path("/sys/bus/pci/devices")) -> int:
    """Count this host's TPU chips as torch_xla does, without importing it."""
    return len(_pci_chips(pci))


def accelerator_type(
    environ: Mapping[str, str], pci: Path = Path("/sys/bus/pci/devices")
) -> str | None:
    """The accelerator type, such as v5litepod-8: from the environment, else from PCI."""
    preset = environ.get("TPU_ACCELERATOR_TYPE")
    models = _pci_chips(pci)
    if preset or not models:
        return preset or None
    return _CHIPS[models[0]].format(chips=len(models)) or None


def choose_device(environ: Mapping[str, str], chips: int) -> str:
    """The device for the ranks: PJRT_DEVICE if set, else the TPU if there is one.

    "CPU" is a simulated host; SIMULATE selects it even if there is a TPU. Raises UsageError for a
    device that is missing or not supported.
    """
    if environ.get(SIMULATE):
        return "CPU"
    device = environ.get("PJRT_DEVICE", "").split("_")[0] or ("TPU" if chips else "CPU")
    if device == "TPU" and not chips:
        raise UsageError(
            "PJRT_DEVICE=TPU is set, but this machine has no TPU chips. Remove the variable to "
            "run on a simulated TPU host: `import os; os.environ.pop('PJRT_DEVICE')`."
        )
    if device in ("TPU", "CPU"):
        return device
    raise UsageError(
        f"PJRT_DEVICE={device} is not supported: xla_nb runs ranks on a TPU or a simulated TPU "
        "host. Set PJRT_DEVICE to TPU or CPU, or remove it to let xla_nb choose."
    )


def asks_to_simulate(environ: Mapping[str, str]) -> bool:
    """Whether these variables request simulated ranks even if there are chips."""
    return bool(environ.get(SIMULATE)) or environ.get("PJRT_DEVICE") == "CPU"


def simulated() -> bool:
    """Return whether this rank's TPU is simulated; in the notebook, whether the next launch's is.

    A simulated host looks like a TPU to programs; this is for those that must know. Raises
    UsageError if PJRT_DEVICE names a device that is missing or not supported.
    """
    return choose_device(os.environ, count_chips()) == "CPU"


@functools.cache
def _pci_chips(pci: Path) -> tuple[str, ...]:
    files = [path for path in sorted(pci.glob("*/vendor")) if path.read_text().strip() == _VENDOR]
    models = ((path.parent / "device").read_text().strip() for path in files)
    return tuple(model for model in models if model in _CHIPS)


# --- number of ranks --------------------------------------------------------------------------


def possible_ranks(accelerator: str | None, chips: int) -> list[int]:
    """The values of -n that a host with these chips allows.

    A process has one chip, and a rank is a device: two per chip on v2 and v3, one on others.
    """
    if _several_hosts(accelerator, chips) or generation(accelerator) == "tpu7x":
        return []
    return [size * devices_per_chip(accelerator) for size in PROCESS_BOUNDS if size <= chips]


def process_bounds(
    accelerator: str | None, chips: int, n: int | None, hosts: int = 1
) -> dict[str, str]:
    """The variables that make torch_xla start exactly n ranks on this host.

    n None: a rank for every device, the only choice for a run on several hosts. Raises UsageError
    if n is not possible.

    torch_xla starts min(chips, size of TPU_PROCESS_BOUNDS) processes (_internal/tpu.py,
    num_local_processes), and process i takes chip i: TPU_VISIBLE_CHIPS differs in each, so it must
    not be set here. The bounds are set even if n is every rank, because torch_xla would otherwise
    derive them from variables that describe the host (same file, build_tpu_env_from_vars).
    """
    if hosts > 1:
        if n not in (None, chips * devices_per_chip(accelerator)):
            raise UsageError(
                f"-n {n} is not possible: a run on {hosts} TPU hosts uses all of their chips, and "
                f"{_describe_host(accelerator, chips)} has {chips * devices_per_chip(accelerator)} "
                "ranks. Omit -n."
            )
        return {}
    possible = possible_ranks(accelerator, chips)
    if n is None:
        n = chips * devices_per_chip(accelerator)
        if n not in possible:  # for example, a slice of several hosts: torch_xla decides
            return {}
    if n not in possible:
        raise UsageError(_impossible_message(accelerator, chips, n, possible))
    return {
        "TPU_PROCESS_BOUNDS": PROCESS_BOUNDS[n // devices_per_chip(accelerator)],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    }


def _impossible_message(accelerator: str | None, chips: int, n: int, possible: list[int]) -> str:
    host = _describe_host(accelerator, chips)
    if not possible:
        return f"-n {n} is not possible on {host}. Omit -n to use all of its chips."
    hint = " Each chip has two devices, so two ranks." if devices_per_chip(accelerator) == 2 else ""
    return f"-n {n} is not possible on {host}. Use {listed(possible, 'or')}.{hint}"


def _describe_host(accelerator: str | None, chips: int) -> str:
    kind = f" of a {accelerator}" if accelerator else ""
    return f"a host with {several(chips, 'chip')}{kind}"


def generation(accelerator: str | None) -> str:
    """The generation in a type: `v5litepod` in `v5litepod-8`."""
    return (accelerator or "").partition("-")[0]


def devices_per_chip(accelerator: str | None) -> int:
    """Devices per chip (_internal/tpu.py, num_logical_cores_per_chip)."""
    return 2 if generation(accelerator) in ("v2", "v3") else 1


def require_one_host(accelerator: str | None, chips: int, runtime: str) -> None:
    """Raise UsageError on a slice of several hosts."""
    if _several_hosts(accelerator, chips):
        raise UsageError(
            f"--runtime {runtime} works on one host only, but this host, with "
            f"{several(chips, 'chip')}, is part of a {accelerator}. Use --runtime xla."
        )


def slice_chips(accelerator: str | None) -> int | None:
    """The number of chips in a whole slice; None if the type contains no number."""
    size = (accelerator or "").partition("-")[2]
    if not size.isdigit():
        return None
    return int(size) // (1 if generation(accelerator) in COUNTED_BY_CHIP else 2)


def _several_hosts(accelerator: str | None, chips: int) -> bool:
    """Whether the slice has more chips than this host."""
    return (slice_chips(accelerator) or 0) > chips
