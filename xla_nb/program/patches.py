"""What was set on a class or function after its definition, so that its source no longer tells.

The rule: what the definition itself made, its decorators and bases included, is no patch; where
that cannot be told without user code, nothing is patched.
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
    """What `found`, run again, would not give the class or function that it once made."""
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
    """Where a default that is a plain name has kept a value that the name no longer has."""
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
    simple = type(cls).__module__ in ("builtins", "abc")  # an enum's members are no literals
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
    """The class attributes whose value is written out in the class: `lr = 0.1`."""
    found: dict[str, object] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            with contextlib.suppress(ValueError, TypeError):  # it is no literal
                found.update(dict.fromkeys(names, ast.literal_eval(statement.value)))
    return found


def _equals(value: object, literal: object) -> bool:
    """Whether they are equal, without asking an `__eq__` that is not Python's own."""
    parts = deque([value])
    while parts:
        part = parts.popleft()
        if type(part) not in _DATA:
            return False
        if not isinstance(part, PLAIN):
            parts.extend(contents(part))
    return value == literal


def _is_patched(function: FunctionType, cls: type, written: bool, decorated: bool) -> bool:
    """Whether a method was set on its class later, by nothing that the class itself does."""
    if not is_from(cls, function):
        return False
    if function.__qualname__.rpartition(".")[0] == cls.__qualname__:
        return not written  # Net.other = Net.forward
    return not (decorated and "<locals>" in function.__qualname__)


def _is_set_by_hand(attribute: str, value: object) -> bool:
    made = attribute.startswith(("__", "_abc_")) or isinstance(value, MemberDescriptorType)
    return not made
