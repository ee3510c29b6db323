"""What torch_xla does wrong, on a TPU as here, without saying so: a warning says it."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch import nn

_BUCKET_VIEWS = (
    "gradient_as_bucket_view=True: torch_xla (2.9) does not average the gradient that is written "
    "last in each bucket, so ranks drift apart. Leave the option out (pytorch/xla issue 8841)."
)


def install_warnings() -> None:
    """Warn in this process, where models are on the XLA device."""
    ddp: Any = nn.parallel.DistributedDataParallel
    begin = ddp.__init__

    @functools.wraps(begin)
    def warn_and_begin(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        if options.get("gradient_as_bucket_view") and _is_on_xla(module):
            warnings.warn(_BUCKET_VIEWS, stacklevel=2)
        begin(self, module, *args, **options)

    ddp.__init__ = warn_and_begin


def _is_on_xla(module: nn.Module) -> bool:
    return any(parameter.device.type == "xla" for parameter in module.parameters())
