"""Models that these tests place, and training steps for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 3
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    # A larger eps than usual: the gradient of the keys' bias is only rounding error, which Adam
    # would amplify to full steps.
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=1e-4),
}


class Mlp(nn.Module):
    def __init__(self, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.in_proj = nn.Linear(width, hidden)
        self.out_proj = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(F.gelu(self.in_proj(x)))


class Attention(nn.Module):
    """Fused QKV: one Linear with 3 times the width, with all queries first, or head by head, which
    can be split without gathering."""

    def __init__(self, width: int, heads: int, by_head: bool = False) -> None:
        super().__init__()
        self.heads, self.by_head = heads, by_head
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        each = width // self.heads
        if self.by_head:
            split = self.qkv(x).view(batch, length, self.heads, 3, each)
            q, k, v = split.permute(3, 0, 2, 1, 4)
        else:
            split = self.qkv(x).view(batch, length, 3, self.heads, each)
            q, k, v = split.permute(2, 0, 3, 1, 4)
        if self.by_head:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / each**0.5
            mixed = torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, dim=-1), v)
        else:
            weights = torch.softmax(q @ k.transpose(-1, -2) / each**0.5, dim=-1)
            mixed = weights @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, by_head: bool = False, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, by_head)
        self.mlp = Mlp(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Tied(nn.Module):
    """A language model whose output head is its embedding."""

    def __init__(self, words: int = 24, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mlp = Mlp(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.mlp(x))


def train(model: Any, optimizer: str, batches: list[Any]) -> tuple[list[float], dict[str, Tensor]]:
    """Train; return the losses and the gradients of the last step."""
    made = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for x, y in batches:
        made.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        made.step()
        torch_xla.sync()
        losses.append(loss.item())
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters()}
    return losses, gradients


def loss_of(output: Tensor, wanted: Tensor) -> Tensor:
    if wanted.dtype == torch.long:
        return F.cross_entropy(output.flatten(0, 1), wanted.flatten())
    return F.mse_loss(output, wanted)


def difference(
    model: Any, place: Callable[[Any], Any], batches: list[Any], optimizer: str, bring: Any
) -> float:
    """The largest difference of a placed model from one on the CPU, in outputs, losses, gradients
    and parameters."""
    reference, placed = model, place(copy.deepcopy(model))
    pairs = [(reference(batches[0][0]), placed(bring(batches[0])[0]).cpu())]
    losses, gradients = train(reference, optimizer, batches)
    own_losses, own_gradients = train(placed, optimizer, [bring(batch) for batch in batches])
    pairs += list(zip(map(torch.tensor, losses), map(torch.tensor, own_losses), strict=True))
    pairs += [(gradients[name], own_gradients[name]) for name in gradients]
    state = {name: p.detach().cpu() for name, p in placed.named_parameters()}
    pairs += [(p.detach(), state[name]) for name, p in reference.named_parameters()]
    return max((a - b).abs().max().item() for a, b in pairs)
