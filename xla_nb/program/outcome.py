"""Which names of a launched cell only its run can tell.

Imports, literals and plain definitions are the same wherever and whenever their source is executed.
Anything else that a cell does at its top level may have another outcome the second time, and
whatever else the cell binds may refer to it: all of it is taken from the run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Sequence

from xla_nb.program.bindings import Function, bindings
from xla_nb.program.called import Elsewhere, bound_by_calls
from xla_nb.program.cells import DEFINITION, star_module
from xla_nb.program.names import names_in
from xla_nb.program.origins import star_names

#: Builtins that make the same of the same.
_MAKERS = {"dict", "list", "tuple", "int", "float", "str", "bytes", "bool", "complex", "bytearray"}
_COMBINED = (ast.Tuple, ast.List, ast.Dict, ast.UnaryOp, ast.BinOp)


def names_of_the_run(
    nodes: Sequence[ast.stmt],
    steady: Callable[[str], bool],
    elsewhere: Elsewhere = lambda names: (set(), set()),
    held: Container[str] = (),
) -> set[str]:
    """The names that a launched cell's statements bind and that are taken from its run.

    `steady` says whether a name from outside the cell is a module, or what one calls by this name;
    `elsewhere`, what functions of the notebook read and bind. `held` are names that have a value
    already, which stays where a statement does not bind them (`try: import m …`). What only the
    cell's own functions bind is among them if the top level may call these.
    """
    return _computed(nodes, steady, elsewhere, held) | _before_a_star(nodes)


def _computed(
    nodes: Sequence[ast.stmt],
    steady: Callable[[str], bool],
    elsewhere: Elsewhere,
    held: Container[str],
) -> set[str]:
    rest = [node for node in nodes if not is_settled(node) or _may_leave(node, held)]
    bound = bindings(rest)
    settled = [node for node in nodes if node not in rest]
    imported = bindings(node for node in settled if any(map(_imports, ast.walk(node)))) - bound
    inside = bindings(nodes)

    def is_steady(name: str) -> bool:
        return name in imported or (name not in inside and steady(name))

    if all(_repeats(node, is_steady) for node in rest) and not _twice(rest):
        return set()
    others = (names_in(nodes).sets | (bindings(settled) - imported)) - bound
    if not others:
        return bound
    called = bound_by_calls(nodes, lambda node: _keeps_to_itself(node, is_steady), elsewhere)
    return bound | (others if called is None else others & called)


def _before_a_star(nodes: Sequence[ast.stmt]) -> set[str]:
    """What statements bind before a `from m import *` that may bind it anew."""
    found: set[str] = set()
    for number, node in enumerate(nodes):
        if module := star_module(node):
            names = star_names(module)
            before = bindings(nodes[:number])
            found |= before if names is None else before & names
    return found


def _imports(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_settled(node: ast.stmt) -> bool:
    """Whether these are imports and constants, conditional ones included (`try: import a …`)."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()], value=value):
            return _is_constant(value)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _is_constant(value)
        case ast.Try():
            parts = [*node.body, *node.orelse, *node.finalbody]
            parts += [part for handler in node.handlers for part in handler.body]
            return all(map(is_settled, parts))
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return all(map(is_settled, [*node.body, *node.orelse]))
    return type(node).__name__ == "TypeAlias"


def _may_leave(node: ast.stmt, held: Container[str]) -> bool:
    """Whether a name that has a value may keep it."""
    each = bindings([node])
    return any(name in held for name in each) and not each <= names_in([node]).certain


def is_literal(node: ast.stmt) -> bool:
    """Whether it binds a name to what its text says, of which there may be two: `cfg = {}`."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return value is not None and not _is_constant(value)


def _is_constant(value: ast.expr) -> bool:
    """Whether it is made of literals and cannot be changed."""
    if isinstance(value, ast.Tuple | ast.UnaryOp | ast.BinOp):
        return all(map(_is_constant, _operands(value)))
    return isinstance(value, ast.Constant)


def _operands(value: ast.expr) -> Iterable[ast.expr]:
    return (part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))


def _twice(nodes: Sequence[ast.stmt]) -> bool:
    """Whether a name is bound by two of the statements."""
    each = [name for node in nodes for name in bindings([node])]
    return len(each) > len(set(each))


def _repeats(node: ast.stmt, steady: Callable[[str], bool]) -> bool:
    """Whether executing the statement again does the same."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return _plain(node, steady)
        case ast.Assign(targets=[ast.Name()], value=value):
            return _literal(value, steady)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _literal(value, steady)
    return False


def _plain(node: Function | ast.ClassDef, steady: Callable[[str], bool]) -> bool:
    """Whether a definition reads nothing but what modules hold, and leaves nothing elsewhere."""
    if not all(_decorates(one, steady) for one in node.decorator_list):
        return False
    if node.decorator_list and names_in([node]).sets:  # if it is called, the notebook is told
        return False
    if isinstance(node, ast.ClassDef):
        inside = [part for part in node.body if not is_settled(part)]
        return (
            not node.keywords
            and all(_of_a_module(base, steady) for base in node.bases)
            and all(_within_class(part, node, steady) for part in inside)
        )
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return all(map(_is_constant, defaults))


def _keeps_to_itself(node: Function | ast.ClassDef, steady: Callable[[str], bool]) -> bool:
    """Whether nothing is called with what it defines: what modules decorate is none of that."""
    bases, keywords = (node.bases, node.keywords) if isinstance(node, ast.ClassDef) else ([], [])
    return (
        not keywords
        and all(_of_a_module(base, steady) for base in bases)
        and all(_decorates(one, steady) for one in node.decorator_list)
    )


def _within_class(node: ast.stmt, cls: ast.ClassDef, steady: Callable[[str], bool]) -> bool:
    own = bindings(cls.body)
    if isinstance(node, DEFINITION):
        return _plain(node, lambda name: name in own or steady(name))
    return _repeats(node, steady)


def _decorates(node: ast.expr, steady: Callable[[str], bool]) -> bool:
    """`@torch.no_grad()`, `@dataclass(frozen=True)`, `@x.setter`."""
    if isinstance(node, ast.Call):
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        return all(map(_is_constant, arguments)) and _of_a_module(node.func, steady)
    return _of_a_module(node, steady)


def _of_a_module(node: ast.expr, steady: Callable[[str], bool]) -> bool:
    """`nn.Module`, `Dataset`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and steady(node.id)


def _literal(node: ast.expr, steady: Callable[[str], bool]) -> bool:
    """Whether an expression is made of literals alone."""
    match node:
        case ast.Constant():
            return True
        case ast.Lambda(args=args):
            return not args.defaults and not any(args.kw_defaults)
        case ast.Call(func=ast.Name(id=name)) if name in _MAKERS and steady(name):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            return all(_literal(part, steady) for part in arguments)
    return isinstance(node, _COMBINED) and all(_literal(p, steady) for p in _operands(node))
