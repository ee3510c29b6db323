"""What a piece of Python text binds, reads and holds.

The rule: this module looks at text, syntax trees and code objects alone. It runs no user code,
looks into no value of the notebook, and knows nothing of programs or ranks.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType
from typing import TypeAlias

from xla_nb.errors import ProgramError

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
IMPORT = (ast.Import, ast.ImportFrom)
ASSIGNMENT = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_MANGLED_BY_CLASS = "__"


@dataclass(frozen=True)
class Cell:
    """A cell (or script) as text.

    `label` is what tracebacks show as its file name; `source` is Python after IPython's
    transformation, with the cell's own line numbers; `filename` is what the notebook
    compiled it under.
    """

    label: str
    source: str
    filename: str | None = None


@dataclass(frozen=True)
class Section:
    """A piece of a module, compiled under `label` with `first_line` as its first line."""

    label: str
    first_line: int
    text: str


@dataclass(frozen=True)
class Statement:
    """A top-level statement and the text that holds it."""

    cell: Cell
    node: ast.stmt

    @property
    def section(self) -> Section:
        """The statement alone, decorators included, at its own lines."""
        first, last = span(self.node)
        lines = self.cell.source.split("\n")[first - 1 : last]
        text = "\n".join(lines) + "\n"
        if not _stands_alone(text):  # it shares a line with another: `a = 1; b = 2`
            text = (ast.get_source_segment(self.cell.source, self.node) or "") + "\n"
        return Section(self.cell.label, first, text)

    def without_lines(self, parts: Iterable[ast.expr]) -> Statement:
        """The same definition where the lines of these decorators are blank."""
        lines = self.cell.source.split("\n")
        for part in parts:
            for line in range(part.lineno, (part.end_lineno or part.lineno) + 1):
                lines[line - 1] = ""
        cell = replace(self.cell, source="\n".join(lines))
        same = (node for node in parsed(cell).body if node.lineno == self.node.lineno)
        return Statement(cell, next(same, self.node))


def parse(cell: Cell) -> ast.Module:
    """The cell's syntax tree, or a ProgramError that shows the line and the place in it."""
    try:
        with _quiet():
            compile(cell.source, cell.label, "exec", dont_inherit=True)  # `return` at top level
        return _parse(cell.source)
    except (SyntaxError, ValueError) as error:
        raise ProgramError(_syntax_message(cell, error)) from None


def parsed(cell: Cell) -> ast.Module:
    """The tree of a cell that ran before; empty where the text does not parse."""
    try:
        return _parse(cell.source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


@lru_cache(maxsize=512)
def _parse(source: str) -> ast.Module:
    with _quiet():
        return ast.parse(source)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the compiler's warnings: the notebook has given them when it ran the cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _syntax_message(cell: Cell, error: SyntaxError | ValueError) -> str:
    line = getattr(error, "lineno", None) or 1
    what = getattr(error, "msg", str(error))
    message = f"{cell.label}, line {line}: {what}. Nothing was started; correct the line first."
    text = (getattr(error, "text", None) or "").rstrip("\n")
    if not text:
        return message
    caret = " " * max((getattr(error, "offset", None) or 1) - 1, 0) + "^"
    return f"{message}\n    {text}\n    {caret}"


def span(node: ast.stmt) -> tuple[int, int]:
    """The first and last line of a statement; a decorator's line counts as its first."""
    decorators = node.decorator_list if isinstance(node, DEFINITION) else []
    return min([node.lineno, *(d.lineno for d in decorators)]), node.end_lineno or node.lineno


def _stands_alone(text: str) -> bool:
    try:
        return len(ast.parse(text).body) == 1
    except SyntaxError:
        return False


def without(source: str, dropped: Iterable[ast.stmt]) -> str:
    """The text with these top-level statements blanked, all line numbers kept."""
    lines = source.split("\n")
    # From the end, so that the places of statements on the same line stay what they were.
    for node in sorted(dropped, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        first, last = span(node)
        head, tail = _outside(node, lines[first - 1], lines[last - 1])
        shared = bool(head.strip() or tail.partition("#")[0].strip(" ;"))
        lines[first - 1 : last] = [""] * (last - first + 1)
        if shared:
            lines[last - 1 if tail.strip() else first - 1] = f"{head}pass{tail}"
    return "\n".join(lines).rstrip("\n") + "\n"


def _outside(node: ast.stmt, first: str, last: str) -> tuple[str, str]:
    """What else stands on the statement's first line before it, and on its last line after."""
    if isinstance(node, DEFINITION):
        return "", ""
    start, end = node.col_offset, node.end_col_offset or 0  # counted in UTF-8 bytes
    return first.encode()[:start].decode(), last.encode()[end:].decode()


def is_main_guard(node: ast.stmt) -> bool:
    """Whether this is `if __name__ == "__main__":`."""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    texts = {side.value for side in sides if isinstance(side, ast.Constant)}
    return names == {"__name__"} and texts == {"__main__"}


def futures(tree: ast.Module) -> set[str]:
    """The names that the text imports from `__future__`."""
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    return {alias.name for node in imports for alias in node.names}


def future_flags(names: Iterable[str]) -> int:
    """The flags to compile with, so that these `__future__` names are in force."""
    flags = 0
    for name in names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


_ALL_FUTURES = future_flags(__future__.all_feature_names)


# --- where the source of a live object is -----------------------------------------------------


class Cells:
    """The cells that ran, oldest first, and what can be found in them."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = list(cells)

    def newest(self, name: str) -> Statement | None:
        """The last top-level statement that bound the name."""
        for cell in reversed(self._cells):
            for node in reversed(parsed(cell).body):
                if name in bindings([node]):
                    return Statement(cell, node)
        return None

    def statements(self) -> Iterator[Statement]:
        """Every top-level statement, oldest first."""
        for cell in self._cells:
            yield from (Statement(cell, node) for node in parsed(cell).body)

    def holding(self, code: CodeType) -> Statement | None:
        """The top-level statement whose compiled text holds exactly this code object."""
        for cell in self._texts(code.co_filename):
            tree = parsed(cell)
            for node in tree.body:
                first, last = span(node)
                if first <= code.co_firstlineno <= last and _compiles_to(node, tree, code):
                    return Statement(cell, node)
        return None

    def _texts(self, filename: str) -> Iterator[Cell]:
        """What the file of this name may have said when it was compiled, likeliest first."""
        text = "".join(linecache.getlines(filename))
        yield from (cell for cell in reversed(self._cells) if cell.filename == filename)
        if text:
            same = (c for c in reversed(self._cells) if c.source.rstrip() == text.rstrip())
            yield from same
            yield Cell(filename, text, filename)


def _compiles_to(node: ast.stmt, tree: ast.Module, code: CodeType) -> bool:
    """Whether the statement, compiled again, holds an equal code object.

    Code objects compare by instructions, constants, names and lines, so this tells an edited
    file, and a definition that has since been written again, from the one that is live.
    IPython compiles statement by statement, Python whole files, not always to equal code.
    """
    flags = code.co_flags & _ALL_FUTURES
    alone = ast.Module(body=[node], type_ignores=[])
    return code in _codes(alone, code.co_filename, flags) or code in _compiled(
        tree, code.co_filename, flags
    )


@lru_cache(maxsize=64)
def _compiled(tree: ast.Module, filename: str, flags: int) -> list[CodeType]:
    return _codes(tree, filename, flags)


def _codes(tree: ast.Module, filename: str, flags: int) -> list[CodeType]:
    """The code objects of all definitions in the tree."""
    try:
        with _quiet():
            queue = [compile(tree, filename, "exec", flags, dont_inherit=True)]
    except (SyntaxError, ValueError):
        return []
    for code in queue:
        queue += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return queue[1:]


# --- what statements bind ---------------------------------------------------------------------


def bindings(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that these statements bind in their own scope, conditionally or not."""
    binder = _Binder()
    for node in nodes:
        binder.visit(node)
    return binder.names - binder.outer


class _Binder(ast.NodeVisitor):
    """Collects what a block binds, without entering the scopes inside it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()

    @property
    def outer(self) -> set[str]:
        return self.globals | self.nonlocals

    def _definition(self, node: Function | ast.ClassDef) -> None:
        self.names.add(node.name)
        outside: list[ast.expr] = list(node.decorator_list)
        if isinstance(node, ast.ClassDef):
            outside += [*node.bases, *(keyword.value for keyword in node.keywords)]
        else:
            outside += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        for expression in outside:
            self.visit(expression)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)

    def _comprehension(self, node: Comprehension) -> None:
        # Its targets are its own; a walrus inside binds here.
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr) and isinstance(inner.target, ast.Name):
                self.names.add(inner.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_alias(self, node: ast.alias) -> None:
        if node.name != "*":
            self.names.add(node.asname or node.name.partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._maybe(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._maybe(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._maybe(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._maybe(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocals.update(node.names)

    def _maybe(self, name: str | None) -> None:
        if name is not None:
            self.names.add(name)


# --- what statements read ---------------------------------------------------------------------


@dataclass
class Names:
    """The global names of some statements, each with the line of its first use.

    `now` are read while the statements run, before they bind them; `later` when a function of
    theirs is called; `hints` may be absent (annotations kept as text, names under
    `except NameError`). `binds` is what they bind, `certain` what they have bound by their end
    whatever branch was taken, `sets` what their functions bind through `global`. `stars` are
    the modules of `from m import *`; `paths` the dotted names read ("torch.utils.data").
    """

    now: dict[str, int] = field(default_factory=dict)
    later: dict[str, int] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    binds: set[str] = field(default_factory=set)
    certain: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def required(self) -> dict[str, int]:
        """What must come from outside: nothing here ever binds it."""
        inside = self.binds | self.sets
        return {n: line for n, line in {**self.later, **self.now}.items() if n not in inside}

    def wanted(self) -> set[str]:
        """What is taken from outside if it is there: required, hinted, or maybe not yet bound."""
        late = {name for name in {**self.later, **self.hints} if name not in self.certain}
        return late | set(self.now) | {n for n in self.sets if n not in self.certain}


def names_in(nodes: Sequence[ast.stmt], *, lazy_annotations: bool = False) -> Names:
    """The global names that these top-level statements bind and read, in the order they run."""
    reader = _Reader(lazy_annotations)
    reader.names.binds = bindings(nodes)
    reader.block(nodes)
    reader.names.certain = reader.bound
    return reader.names


@dataclass
class _Scope:
    """A scope inside the module; `names` are its own, `globals` those it declares global."""

    kind: str  # "function", "class", "comprehension" or "types" (type parameters)
    names: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    mangler: str = ""


class _Reader(ast.NodeVisitor):
    """Walks statements in the order they run and notes which global names each one reads."""

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
        in_class = True  # a class's names are seen by its own statements, not by inner scopes
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
        """Reads in a target: `for a[i] in ...` reads both."""
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
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError):
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
        binder = _Binder()
        for statement in node.body:
            binder.visit(statement)
        own = (binder.names - binder.outer) | _parameters(node.args) | {"__class__"}
        return _Scope("function", {self._mangled(name) for name in own}, binder.globals)

    def _defaults(self, arguments: ast.arguments) -> None:
        self._all([*arguments.defaults, *arguments.kw_defaults])

    @contextmanager
    def _type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of `[T: Bound]`, Python 3.12 and later; their bounds are evaluated lazily."""
        parameters = getattr(node, "type_params", [])
        with self._inside(_Scope("types", {p.name for p in parameters})):
            with self._hinting(True):
                for parameter in parameters:
                    self._all([getattr(parameter, "bound", None)])
                    self._all([getattr(parameter, "default_value", None)])
            yield

    def visit_TypeAlias(self, node: ast.AST) -> None:
        """`type X = ...` (3.12): its value is evaluated on demand."""
        with self._type_parameters(node), self._hinting(True):
            self.visit(node.value)  # type: ignore[attr-defined]  # ast.TypeAlias, from 3.12
        self.visit(node.name)  # type: ignore[attr-defined]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._type_parameters(node):
            self._all([*node.bases, *(keyword.value for keyword in node.keywords)])
            binder = _Binder()
            for statement in node.body:
                binder.visit(statement)
            own = {"__module__", "__qualname__", "__annotations__"}
            scope = _Scope("class", own, binder.globals, node.name.lstrip("_"))
            with self._inside(scope):
                self.block(node.body)
        self._bind(node.name)

    # Statements whose parts run in another order than they are written, or maybe not at all

    def block(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

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
        with self._hinting(in_function):  # Python does not evaluate those
            self._annotation(node.annotation)
        self._all([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self.visit(node.target)
        self.block([*node.body, *node.orelse])

    visit_AsyncFor = visit_For

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = set(self.bound)
        self.block(node.body)
        after_body, self.bound = self.bound, before
        self.block(node.orelse)
        self.bound &= after_body

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        with self._hinting(any(_catches_name_error(handler) for handler in node.handlers)):
            self.block(node.body)
        self._all(node.handlers)
        self.block([*node.orelse, *node.finalbody])

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


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for such a chain of attributes, else nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def imported_modules(nodes: Iterable[ast.stmt]) -> list[str]:
    """The modules that these statements import, in order: `from a.b import c` gives `a.b`."""
    modules: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module not in (None, "__future__"):
            modules.append(node.module or "")
    return list(dict.fromkeys(modules))


def star_names(module: str) -> set[str] | None:
    """What `from module import *` binds, where the module is loaded already; else None."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return None
    content = vars(loaded)
    public = content.get("__all__") or [name for name in content if not name.startswith("_")]
    return {str(name) for name in public}
