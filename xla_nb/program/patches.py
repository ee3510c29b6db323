"""Attributes set on a class or function after its definition, which its source does not show.

Attributes set by the definition itself, its decorators or its bases are not patches. Where that
cannot be decided without running user code, nothing is patched.
"""

from __future__ import annotations

import ast
import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MemberDescriptorType

from xla_nb.program.cells import FUNCTION, Statement
from xla_nb.program.names import Function, bindings
from xla_nb.program.origins import is_from, method_functions
from xla_nb.program.references import PLAIN, contents

_DATA = (*PLAIN, list, tuple, set, frozenset, dict)


@dataclass(frozen=True)
class Patch:
    """An attribute that was set on a class or function after its definition."""

    owner: str
    attribute: str
    value: object


def patches(
    name: str, value: object, found: Statement, values: Mapping[str, object]
) -> Iterator[Patch]:
    """The attributes that would be missing if the definition `found` ran again."""
    if isinstance(value, type) and isinstance(found.node, ast.ClassDef):
        yield from _class_patches(name, value, found.node)
    elif isinstance(value, FunctionType) and isinstance(found.node, FUNCTION):
        if not found.node.decorator_list:
            yield from (Patch(name, attribute, v) for attribute, v in vars(value).items())
        for attribute in _changed_defaults(value, found.node, values):
            yield Patch(name, attribute, getattr(value, attribute))


def _changed_defaults(
    function: FunctionType, node: Function, values: Mapping[str, object]
) -> Iterator[str]:
    """`__defaults__` and `__kwdefaults__` where a name used as a default has a new value now."""
    live = function.__kwdefaults__ or {}
    names = [parameter.arg for parameter in node.args.kwonlyargs]
    positional = zip(node.args.defaults, function.__defaults__ or (), strict=False)
    keyword = zip(node.args.kw_defaults, map(live.get, names), strict=False)
    for attribute, pairs in ("__defaults__", positional), ("__kwdefaults__", keyword):
        if any(isinstance(d, ast.Name) and values.get(d.id, v) is not v for d, v in pairs):
            yield attribute


def _class_patches(name: str, cls: type, node: ast.ClassDef) -> Iterator[Patch]:
    written = bindings(node.body)
    written |= {f"_{node.name.lstrip('_')}{n}" for n in written if n.startswith("__")}
    literals = _literals(node)
    simple = type(cls).__module__ in ("builtins", "abc")  # an enum's members are not literals
    plain = simple and not node.decorator_list and not node.keywords
    plain = plain and getattr(cls.__init_subclass__, "__func__", None) is None
    for attribute, value in vars(cls).items():
        functions = list(method_functions(value))
        if functions:
            if _is_patched(functions[-1], cls, attribute in written, bool(node.decorator_list)):
                yield Patch(name, attribute, value)
        elif attribute in literals:
            if simple and isinstance(value, _DATA) and not _equals(value, literals[attribute]):
                yield Patch(name, attribute, value)
        elif attribute not in written and plain and _is_set_by_hand(attribute, value):
            yield Patch(name, attribute, value)


def _literals(node: ast.ClassDef) -> dict[str, object]:
    """The class attributes with a literal value: `lr = 0.1`."""
    found: dict[str, object] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            with contextlib.suppress(ValueError, TypeError):  # not a literal
                found.update(dict.fromkeys(names, ast.literal_eval(statement.value)))
    return found


def _equals(value: object, literal: object) -> bool:
    """Whether they are equal, without calling a user's `__eq__`."""
    parts = deque([value])
    while parts:
        part = parts.popleft()
        if type(part) not in _DATA:
            return False
        if not isinstance(part, PLAIN):
            parts.extend(contents(part))
    return value == literal


def _is_patched(function: FunctionType, cls: type, written: bool, decorated: bool) -> bool:
    """Whether a method was set on its class after the definition, not by the class itself."""
    if not is_from(cls, function):
        return False
    if function.__qualname__.rpartition(".")[0] == cls.__qualname__:
        return not written  # Net.other = Net.forward
    return not (decorated and "<locals>" in function.__qualname__)


def _is_set_by_hand(attribute: str, value: object) -> bool:
    made = attribute.startswith(("__", "_abc_")) or isinstance(value, MemberDescriptorType)
    return not made
