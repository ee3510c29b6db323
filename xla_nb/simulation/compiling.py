"""Collectives inside `torch.compile(backend="openxla")`.

torch_xla's bridge cuts a graph at each unsupported operation and runs that one between the compiled
parts. Every collective becomes such a cut, so it runs on every call; nothing is sent while a graph
is being compiled, and a graph that cannot be cut is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_xla._dynamo.dynamo_bridge as bridge
from torch.fx import GraphModule, Node

from xla_nb.simulation.refusals import NotCarried

#: A collective in place writes its result back so. Left alone between two cuts, a part of the graph
#: would hold nothing else, and torch_xla cannot compile a part that returns what it is given.
_WRITES_BACK = (torch.ops.aten.copy.default, torch.ops.aten.copy_.default)
_NAMESPACES = ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d")


def communicates(node: Node) -> bool:
    namespace = getattr(node.target, "namespace", None)
    return node.op == "call_function" and namespace in _NAMESPACES


def install_cuts() -> None:
    """Teach the bridge of this process where to cut."""
    bridge.UnsupportedNodesCollector = _cutting(bridge.UnsupportedNodesCollector)
    bridge.InputCollector = _silent(bridge.InputCollector)
    bridge.extract_internal = _checked(bridge.extract_internal)


def _silent(collector: Any) -> Any:
    """A trial run with an empty tensor as the result of each collective."""

    class Silent(collector):  # type: ignore[misc]
        def run_node(self, node: Node) -> Any:
            return _stand_in(node) if communicates(node) else super().run_node(node)

    return Silent


def _cutting(collector: Any) -> Any:
    class Cutting(_silent(collector)):  # type: ignore[misc]
        def __init__(self, module: GraphModule) -> None:
            super().__init__(module)
            self._cuts = any(map(communicates, module.graph.nodes))

        def run_node(self, node: Node) -> Any:
            if communicates(node) or (self._cuts and node.target in _WRITES_BACK):
                self._unsupported_nodes.append(node)
            return super().run_node(node)

    return Cutting


def _checked(extract: Callable[[GraphModule], Any]) -> Callable[[GraphModule], Any]:
    def checked(module: GraphModule) -> Any:
        for node in module.graph.nodes:
            if communicates(node):
                reason = "the graph has dynamic shapes and is compiled whole"
                fix = "Call the collective outside torch.compile, or compile with dynamic=False"
                raise NotCarried(f"{node.target} inside torch.compile", reason, fix)
        return extract(module)

    return checked


def _stand_in(node: Node) -> Any:
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    if isinstance(value, (list, tuple)):
        return [_zeros(each) for each in value]
    return _zeros(value)


def _zeros(value: Any) -> torch.Tensor:
    return torch.zeros(tuple(value.shape), dtype=value.dtype, device="xla")
