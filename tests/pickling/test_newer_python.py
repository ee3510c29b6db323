"""Python 3.12 and 3.13 syntax works on ranks as in the notebook."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")

SYNTAX = {
    "bound and constraints": """
    class A: pass
    def first[T: A, S: (int, str), *Ts, **P](x: T): return x
    def f(rank):
        t, s, ts, p = first.__type_params__
        kinds = type(ts).__name__, type(p).__name__
        return t.__bound__.__name__, s.__constraints__, kinds, first.__annotations__["x"] is t
""",
    "generic class and a closure": """
    class A:
        def get(self): return 1
    class Box[T](A):
        def __init__(self, x: T): self.x = x
        def get(self) -> T: return self.x + super().get()
        def other[S](self, s: S) -> tuple[T, S]: return self.x, s
    def outer[T](x: T):
        def inner(y: T) -> T: return y
        return inner
    b, g = Box[int](3), outer(3)
    def f(rank):
        (t,), inner = Box.__type_params__, (g(4), g.__annotations__["y"].__name__)
        same = Box.get.__annotations__["return"] is t, Box.__orig_bases__[-1].__args__[0] is t
        return b.get(), same, str(Box[int]), type(b) is Box, b.other(2), inner
""",
    "generic dataclass, named tuple, typed dict and protocol": """
    import dataclasses
    from typing import NamedTuple, Protocol, TypedDict, override
    @dataclasses.dataclass
    class Pt[T]:
        x: T
        y: T = 2
    class Pair[T](NamedTuple):
        x: T
    class TD[T](TypedDict):
        x: T
    class P[T](Protocol):
        def m(self) -> T: ...
    class Q(P[int]):
        @override
        def m(self): return 1
    p, q = Pt(1), Pair(3)
    def f(rank):
        names = [cls.__type_params__[0].__name__ for cls in (Pt, Pair, TD)]
        keys, its = sorted(TD.__required_keys__), (Q().m(), Q.m.__override__, Q.__mro__[1] is P)
        return p == Pt(1), p.__repr__(), q.x, type(q) is Pair, TD(x=1), keys, names, its
""",
    "comprehensions": """
    n = 3
    def g(): return [x * n for x in range(n)], {x: [y for y in range(x)] for x in range(2)}
    def f(rank):
        class K:
            n = 5
            v = [i for i in range(n)]
        return g(), K.v, [lambda: x for x in range(2)][0]()
""",
    "static attributes and a buffer": """
    class K:
        def __init__(self): self.a = self.b = 1
        def m(self): return __class__
        def __buffer__(self, flags): return memoryview(b"abc")
    k = K()
    def f(rank):
        static = sorted(getattr(K, "__static_attributes__", ()))
        return static, K().m() is K, getattr(K, "__firstlineno__", None), bytes(memoryview(k))
""",
}


@pytest.mark.parametrize("cell", SYNTAX.values(), ids=SYNTAX)
def test_definitions_behave_the_same_on_ranks(notebook, cell):
    notebook.run(cell)
    program = notebook.build("f(0)")
    assert program.notes == ()
    assert repr(notebook.rank(program)) == repr(notebook.values["f"](0))


@pytest.mark.skipif(sys.version_info < (3, 13), reason="syntax of Python 3.13")
def test_type_variable_keeps_its_default(notebook):
    notebook.run("def g[T = int](x: T): return x")
    assert notebook.launch("def f(rank): return g.__type_params__[0].__default__") is int


def test_type_alias_is_sent_with_its_value(notebook):
    notebook.run("""
        class Net: pass
        type Numbers = list[float]
        type Pair[T] = tuple[T, T]
        type Nets = dict[str, Net]
        def g(x: Numbers, y: Pair[int]) -> Nets: return {}
    """)
    shown, parameter, given, value = notebook.launch("""
        def f(rank):
            (parameter,), pair = Pair.__type_params__, Pair.__value__
            given = g.__annotations__["x"] is Numbers, g.__annotations__["return"] is Nets
            shown = str(Numbers), str(Pair[int]), str(Numbers.__value__)
            return shown, pair.__args__[0] is parameter, given, Nets.__value__.__args__[1] is Net
    """)
    assert shown == ("Numbers", "Pair[int]", "list[float]")
    assert (parameter, given, value) == (True, (True, True), True)
