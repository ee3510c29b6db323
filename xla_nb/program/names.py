"""Which global names statements read, and surely bind, in the order in which Python runs them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from xla_nb.program import ipython_syntax
from xla_nb.program.bindings import Block, Comprehension, Function, bindings, room

_MANGLED_BY_CLASS = "__"
_LONGEST = 5_000  # characters of an annotation: the parser has no room as the visitor has
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Names:
    """The global names of some statements, each with the line of its first use.

    `now` are read while the statements run, before they bind them; `later` when one of their
    functions is called, `early` of these maybe before they are bound; `hints` may be missing
    (annotations kept as text, names under `except NameError`). `binds` are bound by the statements,
    `certain` on every branch, and `sets` by their functions through `global`. `stars` are the
    modules of `from m import *`; `paths` are the dotted names read ("torch.utils.data").
    """

    now: dict[str, int] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    binds: set[str] = field(default_factory=set)
    certain: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def required(self) -> dict[str, int]:
        """Names that must come from outside, since nothing here binds them."""
        inside = self.binds | self.sets
        return {n: line for n, line in {**self.later, **self.now}.items() if n not in inside}

    def wanted(self) -> set[str]:
        """Names to take from outside if they exist: required, hinted, or maybe not yet bound."""
        late = {name for name in {**self.later, **self.hints} if name not in self.certain}
        return late | set(self.now) | self.early | {n for n in self.sets if n not in self.certain}


def names_in(nodes: Sequence[ast.stmt], *, lazy_annotations: bool = False) -> Names:
    """The global names that these top-level statements bind and read."""
    reader = _Reader(lazy_annotations)
    reader.names.binds = bindings(nodes)
    with room():
        reader.block(nodes)
    reader.names.certain = reader.bound
    return reader.names


@dataclass
class _Scope:
    """A scope inside the module; `names` are local to it, `globals` declared global in it."""

    kind: str  # "function", "class", "comprehension" or "types" (type parameters)
    names: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    mangler: str = ""


class _Reader(ast.NodeVisitor):
    """Walks statements in the order they run and records the global names each one reads."""

    def __init__(self, lazy_annotations: bool) -> None:
        self.names = Names()
        self.bound: set[str] = set()
        self._lazy = lazy_annotations
        self._scopes: list[_Scope] = []
        self._soft = 0

    # Reading and binding one name

    def _read(self, name: str, line: int) -> None:
        name = self._mangled(name)
        if self._is_local(name):
            return
        if self._soft:
            self.names.hints.setdefault(name, line)
        elif any(scope.kind == "function" for scope in self._scopes):
            self.names.later.setdefault(name, line)
        elif name not in self.bound:
            self.names.now.setdefault(name, line)

    def _is_local(self, name: str) -> bool:
        in_class = True  # a class's names are visible to its own statements, not to nested scopes
        for scope in reversed(self._scopes):
            if name in scope.globals:
                return False
            if name in scope.names and (in_class or scope.kind != "class"):
                return True
            in_class = in_class and scope.kind == "types"
        return False

    def _bind(self, name: str) -> None:
        name = self._mangled(name)
        own = [scope for scope in self._scopes if scope.kind != "comprehension"]
        scope = own[-1] if own else None
        if scope is not None and name not in scope.globals:
            if scope.kind == "class":
                scope.names.add(name)
        elif any(outer.kind == "function" for outer in own):
            self.names.sets.add(name)
        else:
            self.bound.add(name)
            self.names.binds.add(name)

    def _unbind(self, name: str) -> None:
        if not self._scopes:
            self.bound.discard(name)

    def _mangled(self, name: str) -> str:
        if not name.startswith(_MANGLED_BY_CLASS) or name.endswith("__"):
            return name
        mangler = next((s.mangler for s in reversed(self._scopes) if s.mangler), "")
        return f"_{mangler}{name}" if mangler else name

    @contextmanager
    def _inside(self, scope: _Scope) -> Iterator[None]:
        self._scopes.append(scope)
        yield
        self._scopes.pop()

    @contextmanager
    def _hinting(self, on: bool) -> Iterator[None]:
        self._soft += on
        yield
        self._soft -= on

    # Expressions

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
            return
        self._read(node.id, node.lineno)
        self.names.paths.add(node.id)
        if isinstance(node.ctx, ast.Del):
            self._unbind(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = _dotted(node)
        if path:
            self.names.paths.add(path)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        with self._hinting(True):
            for name in ipython_syntax.expanded(node):
                self._read(name, node.lineno)
        timed = ipython_syntax.timed(node)
        self._all(timed.body if timed else ())

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self.visit(node.target)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._defaults(node.args)
        with self._inside(_Scope("function", _parameters(node.args))):
            self.visit(node.body)

    def _comprehension(self, node: Comprehension) -> None:
        self.visit(node.generators[0].iter)  # evaluated outside, as Python does
        targets = {
            name.id for g in node.generators for name in ast.walk(g.target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }  # fmt: skip
        with self._inside(_Scope("comprehension", targets)):
            for index, generator in enumerate(node.generators):
                if index:
                    self.visit(generator.iter)
                self._indices_of(generator.target)
                self._all(generator.ifs)
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            self._all(parts)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _indices_of(self, target: ast.expr) -> None:
        """Read the names that a target reads: `for a[i] in ...` reads both."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.visit(node)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # Annotations

    def _annotation(self, node: ast.expr | None) -> None:
        if node is None:
            return
        with self._hinting(self._lazy):
            self.visit(node)
        with self._hinting(True):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    self._quoted(part.value, part.lineno)

    def _quoted(self, text: str, line: int) -> None:
        if len(text) > _LONGEST:
            return
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        for part in ast.walk(tree):
            if isinstance(part, ast.Name):
                self._read(part.id, line)

    # Definitions

    def _function(self, node: Function) -> None:
        self._all(node.decorator_list)
        self._defaults(node.args)
        with self._type_parameters(node):
            for argument in _arguments(node.args):
                self._annotation(argument.annotation)
            self._annotation(node.returns)
            with self._inside(self._function_scope(node)):
                self.block(node.body)
        self._bind(node.name)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def _function_scope(self, node: Function) -> _Scope:
        block = Block(node.body)
        own = (block.names | block.declared) - block.outer | _parameters(node.args) | {"__class__"}
        return _Scope("function", {self._mangled(name) for name in own}, block.globals)

    def _defaults(self, arguments: ast.arguments) -> None:
        self._all([*arguments.defaults, *arguments.kw_defaults])

    @contextmanager
    def _type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of `[T: Bound]` (Python 3.12); bounds are evaluated lazily."""
        parameters = getattr(node, "type_params", [])
        with self._inside(_Scope("types", {p.name for p in parameters})):
            with self._hinting(True):
                for parameter in parameters:
                    self._all([getattr(parameter, "bound", None)])
                    self._all([getattr(parameter, "default_value", None)])
            yield

    def visit_TypeAlias(self, node: ast.AST) -> None:
        """`type X = ...` (Python 3.12), whose value is evaluated lazily."""
        with self._type_parameters(node), self._hinting(True):
            self.visit(node.value)  # type: ignore[attr-defined]  # ast.TypeAlias, from 3.12
        self.visit(node.name)  # type: ignore[attr-defined]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._type_parameters(node):
            self._all([*node.bases, *(keyword.value for keyword in node.keywords)])
            own = {"__module__", "__qualname__", "__annotations__"}
            scope = _Scope("class", own, Block(node.body).globals, node.name.lstrip("_"))
            with self._inside(scope):
                self.block(node.body)
        self._bind(node.name)

    # Statements whose parts run in another order than written, or maybe not at all

    def block(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            before = set(self.bound)
            self.visit(node)
            if not self._scopes and not isinstance(node, ast.Import | ast.ImportFrom):
                calls = node.decorator_list if isinstance(node, DEFINED) else [node]
                if any(isinstance(part, ast.Call) for one in calls for part in ast.walk(one)):
                    self.names.early |= self.names.later.keys() - before

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self._all(node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, node.lineno)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        in_function = bool(self._scopes) and self._scopes[-1].kind == "function"
        with self._hinting(in_function):  # Python does not evaluate these
            self._annotation(node.annotation)
        self._all([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def _perhaps(self, nodes: Iterable[ast.AST]) -> set[str]:
        """Read what may not run; returns what would be bound after it."""
        before = set(self.bound)
        self._all(nodes)
        after, self.bound = self.bound, before
        return after

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._perhaps([node.target, *node.body])
        self._perhaps(node.orelse)

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._perhaps(node.body)
        self._perhaps(node.orelse)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self.bound = self._perhaps(node.body) & self._perhaps(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        if any(_suppresses(item.context_expr) for item in node.items):
            self._perhaps(node.body)
        else:
            self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            self._perhaps([case])

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        before = set(self.bound)
        with self._hinting(any(_catches_name_error(handler) for handler in node.handlers)):
            self.block(node.body)
        self.block(node.orelse)
        whole, self.bound = self.bound, before
        self.bound = whole.intersection(*[self._perhaps([handler]) for handler in node.handlers])
        self.block(node.finalbody)

    visit_Try = visit_TryStar = _try

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all([node.type])
        if node.name:
            self._bind(node.name)
        self.block(node.body)
        if node.name:
            self._unbind(node.name)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                self.names.stars.append(node.module or "")
            else:
                self._bind(alias.asname or alias.name)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self.generic_visit(node)
        if node.name:
            self._bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic_visit(node)
        if node.rest:
            self._bind(node.rest)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return plain + [a for a in (arguments.vararg, arguments.kwarg) if a is not None]


def _parameters(arguments: ast.arguments) -> set[str]:
    return {argument.arg for argument in _arguments(arguments)}


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type is not None else ()
    return any(isinstance(node, ast.Name) and node.id == "NameError" for node in caught)


def _suppresses(node: ast.expr) -> bool:
    """`contextlib.suppress(…)`, after which the end of a block may not have been reached."""
    return isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] == "suppress"


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of attributes of a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
