"""Compute norms in operations that XLA can split.

torch_xla lowers LayerNorm, BatchNorm and GroupNorm to XLA's batch normalization, which the
partitioner does not split: it gathers the whole activation on every device. This module replaces
them with torch's own decompositions into means and elementwise operations, which give the same
values.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._decomp.decompositions import native_batch_norm_helper
from torch.library import Library


@functools.cache
def make_splittable() -> Library:
    """Make norms in this process splittable, so that none gathers its input."""
    library = Library("aten", "IMPL")
    operators: Any = torch.ops.aten
    kernels = {
        "native_layer_norm": decomposition_table[operators.native_layer_norm.default],
        "native_group_norm": decomposition_table[operators.native_group_norm.default],
        "native_batch_norm": _batch_norm,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "overriding a previously registered kernel"
        for name, kernel in kernels.items():
            library.impl(name, kernel, "AutogradXLA", allow_override=True)
    return library


def _batch_norm(*args: Any) -> tuple[Any, Any, Any]:
    _, _, _, *running, is_training, _, _ = args
    output, mean, deviation, *statistics = native_batch_norm_helper(*args, functional=True)
    for old, new in zip(running, statistics, strict=True):
        if is_training and old is not None:
            old.copy_(new.detach())
    return output, mean, deviation
