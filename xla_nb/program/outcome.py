"""Which names of a launched cell only its run can tell.

Imports, constants and plain definitions are the same wherever their source is executed: the
notebook executes them when they are used. Where a cell computes something (`model = Net()`), a
second execution may have another outcome, and whatever else the cell binds may refer to what is
computed: all of it is taken from the run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence, Set

from xla_nb.program.bindings import Function, bindings
from xla_nb.program.cells import IMPORT

#: Builtins that make the same of the same.
_MAKERS = {
    *("dict", "list", "set", "tuple", "frozenset", "range", "bytearray", "slice"),
    *("int", "float", "str", "bytes", "bool", "complex", "object"),
}
_COMBINED = (
    *(ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.keyword, ast.Starred, ast.Slice),
)


def names_of_the_run(nodes: Sequence[ast.stmt], steady: Callable[[str], bool]) -> set[str]:
    """The names that a launched cell's statements bind and that are taken from its run.

    `steady` says whether a name from outside the cell is a module, or is defined in one.
    """
    rest = [node for node in nodes if not is_settled(node)]
    reader = _Reader(nodes, steady)
    return set() if all(map(reader.repeats, rest)) else bindings(rest)


def is_settled(node: ast.stmt) -> bool:
    """Whether these are imports and constants, conditional ones included (`try: import a …`)."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=targets, value=value):
            return all(isinstance(target, ast.Name) for target in targets) and _is_constant(value)
        case ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _is_constant(value)
        case ast.Try():
            return all(map(is_settled, _parts(node)))
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return all(map(is_settled, _parts(node)))
    return type(node).__name__ == "TypeAlias"


def _is_constant(value: ast.expr) -> bool:
    """Whether it is made of literals and cannot be changed."""
    if isinstance(value, ast.Tuple | ast.UnaryOp | ast.BinOp):
        return all(map(_is_constant, _operands(value)))
    return isinstance(value, ast.Constant)


def _operands(value: ast.expr) -> Iterable[ast.expr]:
    return (part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))


def _parts(node: ast.Try | ast.If) -> list[ast.stmt]:
    handlers = node.handlers if isinstance(node, ast.Try) else []
    last = node.finalbody if isinstance(node, ast.Try) else []
    return [*node.body, *(part for one in handlers for part in one.body), *node.orelse, *last]


class _Reader:
    """Finds out whether statements of one cell do the same when they are executed again."""

    def __init__(self, nodes: Sequence[ast.stmt], steady: Callable[[str], bool]) -> None:
        imported = bindings(node for node in nodes if is_settled(node) and _imports(node))
        changed = (ast.AugAssign,)  # `N += 1` alone changes a name of the notebook's
        self._own = bindings(node for node in nodes if not isinstance(node, changed)) - imported
        self._imported = imported
        self._outside = steady

    def repeats(self, node: ast.stmt, local: Set[str] = frozenset()) -> bool:
        """Whether the statement does; `local` are names of the class that it stands in."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
                return self._decorated(node, local) and self._all(defaults, local)
            case ast.ClassDef():
                keywords = [keyword.value for keyword in node.keywords]
                inside = local | bindings(node.body)
                return (
                    self._decorated(node, local)
                    and all(map(self._steady, [*node.bases, *keywords]))
                    and all(self.repeats(part, inside) for part in node.body)
                )
            case ast.Assign(targets=targets, value=value):
                return self._all([*map(_index, targets), value], local)
            case ast.AnnAssign(target=target, value=value):
                return self._all([_index(target), value], local)
            case ast.AugAssign(target=ast.Name(name), value=value):
                return name in self._own | local and self._all([value], local)
            case ast.Try():
                return all(self.repeats(part, local) for part in _parts(node))
            case ast.If(test=test):
                parts = _parts(node)
                return self._all([test], local) and all(self.repeats(p, local) for p in parts)
        return is_settled(node)

    def _decorated(self, node: Function | ast.ClassDef, local: Set[str]) -> bool:
        """Whether its decorators are from elsewhere: the cell's own may do anything."""
        return all(self._decorator(one, local) for one in node.decorator_list)

    def _decorator(self, node: ast.expr, local: Set[str]) -> bool:
        if isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            return self._all(arguments, local) and self._decorator(node.func, local)
        root = _root(node)
        return isinstance(root, ast.Name) and (root.id in local or root.id not in self._own)

    def _all(self, parts: Iterable[ast.expr | None], local: Set[str]) -> bool:
        return all(part is None or self._pure(part, local) for part in parts)

    def _pure(self, node: ast.expr, local: Set[str]) -> bool:
        """Whether an expression has the same value again."""
        match node:
            case ast.Constant():
                return True
            case ast.Name(id=name):
                return name in self._own | local or self._is_steady(name)
            case ast.Attribute(value=value):
                return self._steady(value)
            case ast.Lambda(args=args):
                return self._all([*args.defaults, *args.kw_defaults], local)
            case ast.Call(func=ast.Name(id=name)) if name in _MAKERS - self._own:
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                return self._outside(name) and self._all(arguments, local)
        return isinstance(node, _COMBINED) and self._all(_operands(node), local)

    def _steady(self, node: ast.expr) -> bool:
        """Whether it is something of a module's: `nn.Module`, `Generic[int]`, `3`."""
        if isinstance(node, ast.Subscript):
            return self._steady(node.value) and self._all([node.slice], frozenset())
        root = _root(node)
        return isinstance(root, ast.Constant) or (
            isinstance(root, ast.Name) and self._is_steady(root.id)
        )

    def _is_steady(self, name: str) -> bool:
        return name in self._imported or (name not in self._own and self._outside(name))


def _imports(node: ast.stmt) -> bool:
    return any(isinstance(part, IMPORT) for part in ast.walk(node))


def _index(target: ast.expr) -> ast.expr | None:
    """What is computed to assign to `a[i]`."""
    return target.slice if isinstance(target, ast.Subscript) else None


def _root(node: ast.expr) -> ast.expr:
    """`a` of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node
