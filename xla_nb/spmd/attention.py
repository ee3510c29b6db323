"""torch's scaled_dot_product_attention written with einsum, so that sharded heads stay sharded.

torch's own merges batch and heads into one dimension, which makes XLA's partitioner gather heads
that are split over devices. Signature and results are torch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_BATCH = "abcdefgh"  # one letter for each dimension before the last two


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """torch.nn.functional's attention for heads that are split over devices."""
    if enable_gqa:
        key, value = (
            each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value)
        )
    batch = _BATCH[: query.ndim - 2]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.einsum(f"{batch}qx,{batch}kx->{batch}qk", query * factor, key)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    weights = _softmax(scores, attn_mask)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return torch.einsum(f"{batch}qk,{batch}kx->{batch}qx", weights, value)


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if mask.dtype is not torch.bool:
        return torch.softmax(scores + mask, dim=-1)
    weights = torch.softmax(scores.masked_fill(~mask, -math.inf), dim=-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0)  # torch gives 0, not nan
