"""Answers about the TPU that the next launch would simulate, for the notebook process.

Notebooks of Colab and Kaggle find the variables of their machines. Libraries ask torch_xla before
they launch (Lightning for the number of devices, others for metadata of the TPU), and it answers as
on that TPU, without opening the device. The notebook process still computes on the device that
torch_xla chooses. On ranks, simulation/answers does the same.
"""

from __future__ import annotations

import functools
import os
import re
from types import ModuleType
from typing import Any

from xla_nb import linux, notebook
from xla_nb.errors import UsageError
from xla_nb.patching import InPlace, Place, when_imported
from xla_nb.topology import chips, tpu_types

_DEVICE = "PJRT_DEVICE"
_LIGHTNING = "lightning.fabric.accelerators.xla", "lightning_fabric.accelerators.xla"


def turn_on() -> None:
    _answers().turn_on()
    for name in _LIGHTNING:
        when_imported(name, _adapt)


def turn_off() -> None:
    _answers().turn_off()


def wish() -> str | None:
    """The type of TPU that a launch would simulate, "" for any; None if it would use a real one.

    Raises UsageError if PJRT_DEVICE names a device that is missing or not supported.
    """
    tpu_type = str(notebook.settings()["simulate"] or os.environ.get(chips.SIMULATE, ""))
    if tpu_type or chips.choose_device(os.environ, chips.count_chips()) == "CPU":
        return tpu_type
    return None


def _simulated_tpu() -> tpu_types.SimulatedTpu | None:
    """The TPU that a launch would simulate, if any."""
    try:
        tpu_type = wish()
        return None if tpu_type is None else tpu_types.simulated(tpu_type, notebook.settings()["n"])
    except UsageError:  # raised again by the launch
        return None


def can_simulate(devices: object) -> bool:
    """True if a launch on this machine could have so many devices as ranks and no number of ranks
    is set."""
    settings = notebook.settings()
    if not _answers().is_on or type(devices) is not int or devices < 1:
        return False
    if settings["n"] or settings["on"] != "local":
        return False
    try:
        return wish() is not None and available_ranks(devices) == devices
    except UsageError:
        return False


def available_ranks(requested: int) -> int:
    """So many ranks, if a launch on this machine can have them; otherwise all that it has. Raises
    UsageError if a launch would."""
    tpu_type = wish()
    if tpu_type is None:
        possible = chips.possible_ranks(chips.accelerator_type(os.environ), chips.count_chips())
        return requested if requested in possible or not possible else possible[-1]
    try:
        return tpu_types.simulated_ranks(tpu_type, requested)
    except UsageError:
        return tpu_types.simulated_ranks(tpu_type, None)


# ---------------------------------------------------------------- what torch_xla answers


def select_device() -> None:
    """Choose the notebook's own device, as torch_xla does during its import.

    Avoids torch_xla's warning, in red, that there is only the CPU: the cell may launch on a
    simulated TPU.
    """
    if _DEVICE in os.environ or chips.count_chips():
        _answers().original("_maybe_select_default_device")()
    else:
        os.environ[_DEVICE] = "CPU"


def available_chips() -> int:
    """The number of chips of this host, or of the simulated TPU."""
    tpu = _simulated_tpu()
    return tpu.chips if tpu else chips.count_chips()


def available_devices() -> int:
    """The number of devices that a launch here uses: one per rank."""
    tpu = _simulated_tpu()
    if tpu:
        return tpu.ranks
    return notebook.settings()["n"] or int(_answers().original("num_available_devices")())


def metadata(key: str) -> str:
    """An attribute of the simulated TPU VM if it has it, otherwise of the real one."""
    tpu = _simulated_tpu()
    answer = tpu_types.metadata(tpu.variables(), key) if tpu else None
    return answer or str(_answers().original("_get_metadata")(key))


def reads_variables() -> bool:
    """True if torch_xla reads the environment instead of the metadata.

    JAX requests that if it finds no chips (its cloud_tpu_init sets TPU_SKIP_MDS_QUERY during
    import), and then a simulated TPU would have no type.
    """
    return not _simulated_tpu() and bool(_answers().original("_using_env_vars")())


@functools.cache
def _answers() -> InPlace:
    """The replaced functions of this process. With chips present, torch_xla sets itself up for
    libtpu during its import, so most are replaced after it."""
    tpu, xla = "torch_xla._internal.tpu", "torch_xla"
    return InPlace(
        (
            Place("torch_xla.runtime", "_maybe_select_default_device", select_device),
            Place(tpu, "num_available_chips", available_chips, after=xla),
            Place(tpu, "num_available_devices", available_devices, after=xla),
            Place(tpu, "_get_metadata", metadata, after=xla),
            Place(tpu, "_using_env_vars", reads_variables, after=xla),
        )
    )


def _adapt(module: ModuleType) -> None:
    """Make Lightning recount devices, because the number of ranks may change between launches, and
    accept any number that a launch can simulate; by itself it accepts one or all."""
    accelerator, check = module.XLAAccelerator, vars(module)["_check_tpu_devices_valid"]
    check = getattr(check, "__wrapped__", check)  # drop-in may have been on before

    @functools.wraps(check)
    def checked(devices: object) -> None:
        if not can_simulate(devices):
            check(devices)

    vars(module)["_check_tpu_devices_valid"] = checked
    for name in ("auto_device_count", "is_available"):
        count = getattr(accelerator, name)
        setattr(accelerator, name, staticmethod(getattr(count, "__wrapped__", count)))


# ---------------------------------------------------------------- variables of the machine

#: Variables that Colab and Kaggle set on TPU machines. Programs test for them, remove them or print
#: them; ranks do not get them.
_VARIABLES = {
    "COLAB_TPU_ADDR": "127.0.0.1:8470",  # programs parse both as addresses
    "TPU_NAME": "grpc://127.0.0.1:8470",
    "TPU_PROCESS_ADDRESSES": "local",
    "CLOUD_TPU_TASK_ID": "0",
}
_ASSIGNMENT = re.compile(r"""["']\]\s*=(?!=)""")  # after a name, in `os.environ["NAME"] = value`


def before_cell(info: Any) -> None:
    """Set the variables that a cell reads, and ignore PJRT_DEVICE=TPU without a TPU."""
    if not _answers().is_on:
        return
    choose_device()
    for name in _find_variables(info.raw_cell or ""):
        if name not in os.environ:
            os.environ[name] = _VARIABLES[name]
            print_once(
                f"Set {name}={_VARIABLES[name]} because this cell reads it (Colab and Kaggle "
                "define it on TPU machines). Ranks do not get it."
            )


def choose_device() -> None:
    """Ignore PJRT_DEVICE=TPU, set by a program written for a TPU machine, if there is no TPU."""
    if notebook.current() and os.environ.get(_DEVICE) == "TPU" and not chips.count_chips():
        if linux.first_environ().get(_DEVICE) == "TPU":
            return  # set outside the notebook: a launch is refused
        os.environ[_DEVICE] = "CPU"
        print_once(
            "Ignoring PJRT_DEVICE=TPU: this machine has no TPU chips. Launches use a simulated TPU "
            "host."
        )


@functools.cache
def print_once(text: str) -> None:
    """Print a text once."""
    print(text)


def _find_variables(text: str) -> list[str]:
    """The variables that a cell mentions, except where it sets them."""
    matches = ((name, match.end()) for name in _VARIABLES for match in re.finditer(name, text))
    return list(dict.fromkeys(name for name, end in matches if not _ASSIGNMENT.match(text, end)))
