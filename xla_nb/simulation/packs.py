"""Flatten the tensors of a collective into one buffer per dtype, and unflatten the results."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


class Pack:
    """All tensors of one dtype as one flat tensor of one or more rows, and their results."""

    def __init__(self, indices: Sequence[int], tensors: Sequence[Tensor], rows: int) -> None:
        self.indices = indices
        self._rows = rows
        self._shapes = [tensor.shape for tensor in tensors]
        self.dtype = tensors[0].dtype
        self.parts = [tensor.reshape(-1) for tensor in tensors]
        self.nbytes = sum(shape.numel() for shape in self._shapes) * self.dtype.itemsize
        self.gathered: Tensor | None = None  # every rank's, one row each, once received
        self.results: list[Tensor] = []

    @functools.cached_property
    def flat(self) -> Tensor:
        """The rows, one after another, each with its share of every tensor."""
        if len(self.parts) == 1:
            return self.parts[0]
        rows = [part.view(self._rows, part.numel() // self._rows) for part in self.parts]
        return torch.cat(rows, 1).reshape(-1)

    def put_gathered(self, rows: Tensor, dim: int) -> None:
        """Set results that concatenate all ranks' tensors along `dim`."""
        tensors_by_rank = map(self._split, rows)
        self.results = [torch.cat(tensors, dim) for tensors in zip(*tensors_by_rank, strict=True)]

    def put(self, flat: Tensor) -> None:
        """Set results that are one of `rows` shares of each tensor along dimension 0."""
        self.results = self._split(flat)

    def _split(self, flat: Tensor) -> list[Tensor]:
        shapes = [(*(n // self._rows for n in shape[:1]), *shape[1:]) for shape in self._shapes]
        counts = [shape.numel() // self._rows for shape in self._shapes]
        parts = zip(flat.split(counts), shapes, strict=True)
        return [part.reshape(shape) for part, shape in parts]


def make_packs(tensors: Sequence[Tensor], rows: int) -> list[Pack]:
    by_dtype: dict[torch.dtype, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        by_dtype[tensor.dtype].append(index)
    return [Pack(indices, [tensors[i] for i in indices], rows) for indices in by_dtype.values()]


def collect_results(packs: Sequence[Pack]) -> list[Tensor]:
    results = {i: t for pack in packs for i, t in zip(pack.indices, pack.results, strict=True)}
    return [results[index] for index in range(len(results))]


def view(flat: Tensor) -> memoryview:
    """A contiguous tensor's bytes, not copied."""
    if not flat.numel():
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy())
