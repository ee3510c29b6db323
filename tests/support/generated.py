"""Generated notebooks: cells that bind, change and use values, functions, classes and decorators.

The last cell calls and compares everything."""

from collections.abc import Iterator

from hypothesis import strategies as st

from xla_nb.program.names import bindings

#: The first cell of every notebook. `shown` turns a value into plain data, with one number for each
#: object however often it occurs.
HEAD = """
import collections, dataclasses, enum, functools, math, operator
from math import floor as down
REGISTRY = []
def registered(fn):
    REGISTRY.append(fn)
    return fn
def twice(fn):
    @functools.wraps(fn)
    def inner(*args):
        return [fn(*args), fn(*args)]
    return inner
def shown(value, seen, depth=0):
    if value is None or type(value) in (int, float, str, bool):
        return value
    if id(value) in seen:
        return f"<{seen[id(value)][0]}>"
    seen[id(value)] = len(seen), value
    if depth > 6:
        return "…"
    if isinstance(value, dict):
        return {str(k): shown(v, seen, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [type(value).__name__, *(shown(v, seen, depth + 1) for v in value)]
    if isinstance(value, type):
        own = {k: v for k, v in vars(value).items() if k in ("n", "box", "made", "added")}
        bases = [base.__name__ for base in value.__mro__]
        return [value.__qualname__, bases, shown(own, seen, depth + 1)]
    if callable(value) and hasattr(value, "__name__"):
        return [value.__name__, shown(getattr(value, "tag", None), seen, depth + 1)]
    if isinstance(value, enum.Enum):
        return [type(value).__name__, value.name, shown(value.value, seen, depth + 1)]
    return [type(value).__name__, shown(getattr(value, "__dict__", None), seen, depth + 1)]
def called(fn, *args):
    try:
        return fn(*args)
    except RecursionError:  # whose words depend on how deep the call itself is
        return "RecursionError"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


class Writer:
    """Writes statements from numbers; `kinds` lists the names so far by kind of value."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        self.kinds: dict[str, list[str]] = {"box": [], "int": [], "fn": [], "class": [], "obj": []}
        self.fresh: list[tuple[str, str]] = []  # bound by this statement, so not usable yet
        self.count = 0

    def pick(self, *options: str) -> str:
        return options[next(self.numbers, 0) % len(options)]

    def any(self, *kinds: str, default: str = "0") -> str:
        """A name of one of these kinds."""
        names = [name for kind in kinds for name in self.kinds[kind]]
        return self.pick(*names) if names else default

    def new(self, kind: str) -> str:
        """A name for a value of this kind; one time in four, an existing name."""
        if self.kinds[kind] and next(self.numbers, 0) % 4 == 0:
            return self.pick(*self.kinds[kind])
        self.count += 1
        self.fresh.append((kind, f"{kind}{self.count}" if kind != "class" else f"C{self.count}"))
        return self.fresh[-1][1]

    def value(self) -> str:
        held = self.any("box", "int", "fn", "class", "obj")
        return self.pick(
            held, held, str(next(self.numbers, 0) % 9), "[]", "{}", f"[{held}]", "object()"
        )

    def statement(self) -> str:
        kind = self.pick(*KINDS)
        text: str = getattr(self, f"_{kind}")()
        for of_kind, name in self.fresh:
            self.kinds[of_kind].append(name)
        self.fresh.clear()
        return text

    def _int(self) -> str:
        value = self.pick(str(next(self.numbers, 0) % 50), f"{self.any('int')} + 1")
        return f"{self.new('int')} = {value}"

    def _box(self) -> str:
        value = f"[{self.value()}, {self.value()}]"
        return f"{self.new('box')} = {value}"

    def _alias(self) -> str:
        kind = self.pick(*[kind for kind, names in self.kinds.items() if names] or ["int"])
        held = self.any(kind)
        return f"{self.new(kind)} = {held}"

    def _change(self) -> str:
        box = self.any("box", default="REGISTRY")
        return self.pick(f"{box}.append({self.value()})", f"{box}.insert(0, {self.value()})")

    def _function(self) -> str:
        default, used, held = self.value(), self.any("int", "box", "obj", "class"), self.value()
        other = self.any("fn", default="down")
        decorator = self.pick("", "", "", "@registered\n", "@twice\n", "@functools.wraps(down)\n")
        body = self.pick(
            f"return [x, y, {used}]",
            f"return [{used} is y, y, {held}]",
            f"return [x, {other} is y, {other}]",
            f"return (lambda z: [z, y, {used}])(x)",
            f"y = [y, x]\n    return [{used}, y, [{used} for _ in range(2)]]",
        )
        return f"{decorator}def {self.new('fn')}(x=1, y={default}):\n    {body}"

    def _lambda(self) -> str:
        used = self.any("int", "box", "obj", "fn")
        return f"{self.new('fn')} = lambda x=2, *_: [x, {used}]"

    def _setter(self) -> str:
        changed = self.any("int", default="")
        if not changed:
            return self._int()
        name = self.new("fn")
        body = f"global {changed}\n    {changed} = 70 + x\n    return {changed}"
        return f"def {name}(x=1, *_):\n    {body}"

    def _closure(self) -> str:
        held, one, other = self.value(), self.new("fn"), self.new("fn")
        maker = f"make_{one}"
        return (
            f"def {maker}(kept):\n    n = 0\n    def up(x=1, *_):\n        nonlocal n\n"
            f"        n += 1\n        return [n, kept]\n    return up, lambda *_: [n, kept]\n"
            f"{one}, {other} = {maker}({held})\n{one}()"
        )

    def _cached(self) -> str:
        held, size = self.value(), self.pick("None", "2")
        name, kept = self.new("fn"), self.new("box")
        return (
            f"@functools.lru_cache({size})\ndef {name}(x=1, *_):\n    return [x, {held}]\n"
            f"{name}(1)\n{kept} = {name}(3)"
        )

    def _partial(self) -> str:
        return f"{self.new('obj')} = functools.partial({self.any('fn', default='down')}, 2.5)"

    def _class(self) -> str:
        bases = self.any("class", default="object")
        n, box, used = self.value(), self.value(), self.value()
        base = self.pick("", f"({bases})")
        name = self.new("class")
        extra = self.pick(
            "",
            "\n    def __init_subclass__(cls, **kw):\n        REGISTRY.append(cls.__name__)"
            f"\nclass Sub{name}({name}): pass",
            "\n    made = []\n    def __new__(cls, *a):\n        return super().__new__(cls)",
            "\n    @property\n    def twice(self):\n        return [self.n, self.n]",
            f"\n    @classmethod\n    def build(cls):\n        return [cls, {used}]",
        )
        decorator = self.pick("", "", "@registered\n")
        if "class Sub" in extra:
            self.fresh.append(("class", f"Sub{name}"))
        return (
            f"{decorator}class {name}{base}:\n    n = {n}\n    box = {box}\n"
            f"    def go(self, x=1, *_):\n        return [x, self.n, self.box, {used}]{extra}"
        )

    def _dataclass(self) -> str:
        name = self.new("class")
        return (
            f"@dataclasses.dataclass\nclass {name}:\n    n: int = {self.any('int')}\n"
            f"    box: list = dataclasses.field(default_factory=list)\n"
            f"    def go(self, *_):\n        return [self.n, self.box, dataclasses.asdict(self)]"
        )

    def _enum(self) -> str:
        name, held = self.new("class"), self.new("obj")
        kind = self.pick("enum.Enum", "enum.IntEnum", "enum.Flag")
        body = "A = 1\n    B = 2\n    C = 1"
        return f"class {name}({kind}):\n    {body}\n{held} = [{name}.B, {name}(1)]"

    def _tuple(self) -> str:
        name = self.new("class")
        return f"{name} = collections.namedtuple('{name}', 'n box', defaults=(1, {self.value()}))"

    def _object(self) -> str:
        made = self.any("class", default="object")
        name = self.new("obj")
        return f"try:\n    {name} = {made}()\nexcept TypeError:\n    {name} = 0"

    def _attribute(self) -> str:
        owner, value = self.any("class", "obj", "fn", default="twice"), self.value()
        name = self.pick("n", "box", "added", "tag")
        return f"try:\n    {owner}.{name} = {value}\nexcept (AttributeError, TypeError):\n    pass"

    def _method(self) -> str:
        owner, fn = self.any("class", default="twice"), self.any("fn", default="twice")
        return f"try:\n    {owner}.added = {fn}\nexcept (AttributeError, TypeError):\n    pass"

    def _bound(self) -> str:
        owner = self.any("obj", "class")
        return f"{self.new('fn')} = getattr({owner}, 'go', down)"

    def _default(self) -> str:
        fn, value = self.any("fn", default="twice"), self.value()
        change = f"{fn}.__defaults__ = (5, {value})"
        return f"try:\n    {change}\nexcept (AttributeError, TypeError):\n    pass"


KINDS = sorted(name[1:] for name, part in vars(Writer).items() if name[0] == "_" and name[1] != "_")


@st.composite
def notebooks(draw: st.DrawFn) -> list[str]:
    """The cells of a notebook, the last of which defines `f`."""
    numbers = draw(st.lists(st.integers(0, 10**6), min_size=10, max_size=120))
    writer = Writer(iter(numbers))
    cells = [HEAD]
    for _ in range(draw(st.integers(1, 5))):
        cells.append("\n".join(writer.statement() for _ in range(draw(st.integers(1, 5)))))
    return [*cells, probe(cells)]


def probe(cells: list[str]) -> str:
    """A cell whose `f` uses every name that these cells bind."""
    lines = ["def f(rank):", "    seen, out = {}, {}"]
    bound = bindings(compile("\n".join(cells[1:]), "", "exec"))
    for name in sorted(bound):
        lines.append(f"    out['{name}'] = shown({name}, seen)")
        if name.startswith(("fn", "C", "Sub")):
            lines.append(f"    out['{name}()'] = shown(called({name}, 3), seen)")
        if name.startswith("obj"):
            lines.append(f"    out['{name}.go'] = shown(called(getattr({name}, 'go', 0)), seen)")
    lines.append("    return out, shown(REGISTRY, seen), down(2.5)")
    return "\n".join(lines)
