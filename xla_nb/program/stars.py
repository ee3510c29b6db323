"""What `from m import *` binds; where the notebook has not imported `m`, as its file says."""

from __future__ import annotations

import ast
import importlib.machinery
from collections.abc import Iterable, Sequence

from xla_nb.program.bindings import bindings
from xla_nb.program.cells import star_module
from xla_nb.program.origins import star_names

_BINDING = {"globals", "vars", "exec", "eval", "setattr", "__getattr__"}


def bound_by_stars(nodes: Iterable[ast.stmt]) -> set[str]:
    """The names that the star imports among these statements bind, as far as that can be told."""
    each = (names_bound(module) for node in nodes if (module := star_module(node)))
    return set().union(*filter(None, each))


def names_bound(module: str) -> set[str] | None:
    """The names; None where only an import tells them."""
    names = star_names(module)
    return _names_in_file(module) if names is None else names


def _names_in_file(module: str) -> set[str] | None:
    try:
        spec = _spec(module)
        source = spec.loader.get_source(module)  # type: ignore[union-attr]
        tree = ast.parse(source or "")
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None
    if not source or any(isinstance(n, ast.Name) and n.id in _BINDING for n in ast.walk(tree)):
        return None
    listed = [node for node in tree.body if "__all__" in bindings([node])]
    if listed:
        return _listed(listed)
    found = {name for name in bindings(tree.body) if not name.startswith("_")}
    for node in tree.body:
        if inner := star_module(node):
            names = names_bound(inner)
            if names is None or node.level:  # type: ignore[attr-defined]
                return None
            found |= names
    return found


def _listed(nodes: Sequence[ast.stmt]) -> set[str] | None:
    try:
        (node,) = nodes
        return {str(name) for name in ast.literal_eval(node.value)}  # type: ignore[attr-defined]
    except (AttributeError, ValueError, TypeError):
        return None


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """As an import finds it, without the import of the packages that it is in."""
    path: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:end]), path)
        path = spec.submodule_search_locations if spec else None
        if spec is None or (path is None and end < len(parts)):
            return None
    return spec
