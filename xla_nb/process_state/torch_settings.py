"""The notebook's torch settings, which ranks take on, if it has imported torch.

Grad mode, autocast, deterministic algorithms, precision of float32 products and anomaly detection.
A default device is left out: it would apply to everything that is opened before a rank has joined
its device.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KINDS = "cpu", "xla", "cuda"
_DEVICE = (
    "torch's default device is the CPU on ranks, not the notebook's `{}`: call "
    "torch.set_default_device inside the function"
)


@dataclass(frozen=True)
class TorchSettings:
    """`debug` is torch's deterministic debug mode (0: off, 1: warn, 2: raise); `matmul` is None if
    it differs by backend. `autocast` maps each kind of device with autocast on to the name of its
    dtype."""

    grad: bool
    autocast: Mapping[str, str]
    debug: int
    matmul: str | None
    anomaly: bool

    @classmethod
    def of_this_process(cls) -> TorchSettings | None:
        """The settings of this thread and its process; None without torch."""
        torch = _imported_torch()
        if torch is None:
            return None
        return cls(
            grad=torch.is_grad_enabled(),
            autocast={
                kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
                for kind in _KINDS
                if torch.is_autocast_enabled(kind)
            },
            debug=torch.get_deterministic_debug_mode(),
            matmul=_matmul_precision(torch),
            anomaly=torch.is_anomaly_enabled(),
        )

    def take_on(self) -> None:
        """Apply them in this process, which has imported torch."""
        torch: Any = sys.modules["torch"]
        torch.set_grad_enabled(self.grad)
        for kind, name in self.autocast.items():
            torch.set_autocast_enabled(kind, True)
            torch.set_autocast_dtype(kind, getattr(torch, name))
        torch.set_deterministic_debug_mode(self.debug)
        if self.matmul not in (None, _matmul_precision(torch)):
            torch.set_float32_matmul_precision(self.matmul)
        torch.set_anomaly_enabled(self.anomaly)


def left_out() -> list[str]:
    """Notes on settings that ranks do not take on."""
    torch = _imported_torch()
    modes = torch.overrides._get_current_function_mode_stack() if torch else []
    devices = [mode.device for mode in modes if type(mode).__name__ == "DeviceContext"]
    return [_DEVICE.format(device) for device in devices[-1:] if device.type != "cpu"]


def _matmul_precision(torch: Any) -> str | None:
    with warnings.catch_warnings():  # about a newer way to set it
        warnings.simplefilter("ignore")
        try:
            precision: str = torch.get_float32_matmul_precision()
        except RuntimeError:
            return None
    return precision


def _imported_torch() -> Any:
    """torch; None before its import has finished."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_device_module") else None
