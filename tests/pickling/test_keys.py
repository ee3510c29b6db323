"""Keys that say themselves how they are hashed, in what they lead to: found, or refused."""

import pytest

from tests.support.notebook_double import opened
from tests.support.returned import returned
from xla_nb.pickling.parcel import Unopened

notebook = pytest.fixture(opened)

NODE = """
import collections, dataclasses, enum, functools, types, weakref
class N:
    def __init__(self, n): self.n, self.f = n, set()
    def __hash__(self): return hash(self.n)
    def __eq__(self, o): return isinstance(o, N) and self.n == o.n
a, b = N(1), N(2)
"""

#: Keys of a class that holds what is given.
EMPTY = "class E(N):\n    def __init__(self, n, f): self.n, self.f = n, f\n"

#: Each binds `box`; what follows is True of it in the notebook.
CYCLES = {
    "an object in its own set": ("a.f.add(a)\nbox = a", "box in box.f and N(1) in box.f"),
    "two in each other's sets": (
        "a.f.add(b); b.f.add(a)\nbox = [a, b]",
        "box[0] in box[1].f and box[1] in box[0].f",
    ),
    "what is reached from its parent": (
        "class Parent: pass\nbox = Parent()\nbox.kids = {a: 1, b: 2}\na.parent = b.parent = box",
        "box.kids[N(1)] == 1 and box.kids[N(2)] == 2 and [k.n for k in box.kids] == [1, 2]",
    ),
    "slots": (
        "class S:\n"
        "    __slots__ = 'n', 'f'\n"
        "    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "s = S(); s.n, s.f = 1, {}\ns.f[s] = 5\nbox = s",
        "box.f[box] == 5",
    ),
    "tuples of objects": (
        "a.f = {(a, (b, 1)): 5}\nb.f = {(b, a)}\nbox = a",
        "box.f[N(1), (N(2), 1)] == 5 and (N(2), N(1)) in next(iter(box.f))[1][0].f",
    ),
    "a hash over the parent": (
        "class Child(N):\n"
        "    def __hash__(self): return hash((self.n, self.parent.n))\n"
        "c = Child(3); c.parent = a; a.f = {c: 1}\nbox = a",
        "box.f[next(iter(box.f))] == 1",
    ),
    "frozen dataclasses as edges": (
        "@dataclasses.dataclass(frozen=True)\n"
        "class Edge:\n    one: N\n    other: N\n"
        "a.f.add(Edge(a, b)); b.f.add(Edge(a, b))\nbox = [a, b]",
        "all(Edge(box[0], box[1]) in one.f for one in box)",
    ),
    "counters": (
        "a.f = collections.Counter([a, b, a])\nbox = a",
        "box.f[a] == 2 and box.f[b] == 1",
    ),
    "ordered dicts, in their order": (
        "a.f = collections.OrderedDict([(b, 1), (a, 2)])\nbox = a",
        "box.f[N(1)] == 2 and [k.n for k in box.f] == [2, 1]",
    ),
    "default dicts": (
        "a.f = collections.defaultdict(list)\na.f[a].append(b)\nbox = a",
        "box.f[N(1)] == [N(2)] and box.f[N(7)] == []",
    ),
    "subclasses with methods and attributes of their own": (
        "class D(dict):\n"
        "    def __setitem__(self, *_): raise ValueError\n"
        "    def keys(self): raise ValueError\n"
        "class T(set):\n    def add(self, *_): raise ValueError\n"
        "a.f = D({a: 1}); a.f.tag = a; a.g = T([a])\nbox = a",
        "box.f[box] == 1 and box.f.tag is box and box in box.g",
    ),
    "weak sets": (
        "a.f = weakref.WeakSet([b]); b.f = weakref.WeakSet([a])\nbox = [a, b]",
        "box[1] in box[0].f and box[0] in box[1].f",
    ),
    "weak mappings": (
        "a.f = weakref.WeakKeyDictionary({b: a, a: 1}); b.f = a.f\nbox = [a, b]",
        "box[0].f[box[1]] is box[0] and box[0].f[box[0]] == 1",
    ),
    "weak references as keys": (
        "a.f = {weakref.ref(a): 5}\nbox = a",
        "box.f[weakref.ref(box)] == 5",
    ),
    "what caches hold": (
        "@functools.cache\ndef near(n): return [n]\n"
        "a.f = near; kept = near(a); kept.append(a); box = a, kept",
        "box[0].f(box[0]) is box[1]",
    ),
    "a hash that reads another such container": (
        "class Sum(N):\n"
        "    def __hash__(self): return hash(tuple(sorted(one.n for one in self.f)))\n"
        "s = Sum(3); s.f = {a, b}; a.f = {s: 1, a: 2}; b.f = {b, (s, 4)}\nbox = [a, b, s]",
        "box[0].f[box[2]] == 1 and (box[2], 4) in box[1].f and box[0] in box[2].f",
    ),
    "a hash that reads such a container from outside": (
        "class Sum(N):\n    def __hash__(self): return hash(len(self.f))\n"
        "a.f.add(a); s = Sum(3); s.f = a.f; box = {s: 5}, a",
        "box[0][next(iter(box[0]))] == 5",
    ),
    "a method of comparison alone": (
        "class K(str):\n"
        "    __hash__ = str.__hash__\n"
        "    def __eq__(self, o): return str.__eq__(self, o) and self.tag == o.tag\n"
        "k, l = K('k'), K('k'); k.tag, l.tag = 1, 2\nk.f = {k: 1, l: 2}; box = k, l",
        "[box[0].f[one] for one in box] == [1, 2]",
    ),
    "classes by the hash of their metaclass": (
        "class Meta(type):\n"
        "    all = set()\n"
        "    def __init__(cls, *a): super().__init__(*a); Meta.all.add(cls); REG[cls] = 1\n"
        "    def __hash__(cls): return hash(cls.__qualname__)\n"
        "    def __eq__(cls, o): return cls is o\n"
        "REG = {}\nclass A(metaclass=Meta): pass\nbox = A",
        "box in Meta.all and REG[box] == 1",
    ),
    "classes by an attribute of theirs": (
        "class Meta(type):\n"
        "    all = {}\n"
        "    def __init__(cls, *a): super().__init__(*a); cls.uid = a[0]; Meta.all[cls] = 1\n"
        "    def __hash__(cls): return hash(cls.uid)\n"
        "class A(metaclass=Meta): pass\nbox = A",
        "Meta.all[box] == 1",
    ),
    "a hash that is no plain function": (
        "class P(N): __hash__ = property(lambda self: lambda: 1 + self.n)\n"
        "p = P(3); p.f = {p: 3}; box = p",
        "box.f[box] == 3",
    ),
    "members of an enum": (
        "class E(enum.Enum):\n    A = 1\n    B = 2\n"
        "E.A.near, E.B.near = {E.B: 1}, {E.A, E.B}\nbox = E.A",
        "box.near[E.B] == 1 and box in E.B.near",
    ),
    "an object's own state that others have too": (
        "d = dict.__new__(dict); d[a] = vars(a); a.f = d; box = a",
        "box.f[box] is vars(box)",
    ),
    **{
        f"keys that lead nowhere but to an empty {kind}": (
            f"{EMPTY}box = [E(1, {kind}), 0]\nbox[1] = {{box[0]: 5}}",
            f"box[1][box[0]] == 5 and box[0].f == {kind}",
        )
        for kind in (
            "collections.OrderedDict()",
            "collections.defaultdict(list)",
            "collections.deque()",
            "collections.Counter()",
        )
    },
    "keys with an empty container in a cycle": (
        "a.g = collections.defaultdict(list)\na.h = collections.deque()\na.f.add(a)\nbox = a",
        "box in box.f and box.g['x'] == [] and not box.h",
    ),
    "a torch module as a key": (
        "import torch\n"
        "class Expert(torch.nn.Module):\n"
        "    def __init__(self, n): super().__init__(); self.n, self.l = n, torch.nn.Linear(1, 1)\n"
        "    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "one = Expert('a'); box = [one, {one: 5, Expert('b'): 6}]",
        "box[1][box[0]] == 5 and len(box[1]) == 2",
    ),
    "a thousand objects in each other's sets": (
        "box = [N(n) for n in range(1000)]\n"
        "for n, one in enumerate(box): one.f.update(box[n - 3:n], box[:2])",
        "all(one in box[n + 1].f for n, one in enumerate(box[:-1]))",
    ),
}


#: Where no key leads to its own container.
FOUND = [name for name in CYCLES if "lead nowhere" in name or "torch module" in name]
FOUND.append("what is reached from its parent")


@pytest.mark.parametrize(("made", "is_so"), CYCLES.values(), ids=CYCLES)
def test_a_rank_finds_its_keys_or_they_are_refused(notebook, made, is_so):
    notebook.run(NODE + made)
    assert eval(is_so, notebook.values), "the notebook does not"
    try:
        assert notebook.launch(f"def f(rank): return bool({is_so})")
    except Unopened:
        assert made not in [CYCLES[name][0] for name in FOUND]


#: Those of what can be returned.
HOME = CYCLES.keys() - {"what caches hold", "weak mappings", "weak references as keys"}
HOME = {name: cell for name, cell in CYCLES.items() if name in HOME}


@pytest.mark.parametrize(("made", "is_so"), HOME.values(), ids=HOME)
def test_the_notebook_finds_keys_of_results_or_they_are_refused(notebook, made, is_so):
    notebook.run(NODE + made)
    try:
        box = returned(notebook.values["box"], notebook.values)
    except Unopened:
        assert made not in [CYCLES[name][0] for name in FOUND]
    else:
        assert eval(is_so, {**notebook.values, "box": box})


def test_where_a_key_was_hashed_too_early_it_is_said_what_to_do(notebook):
    notebook.run(f"{NODE}\na.f.add(a)")
    with pytest.raises(Unopened, match=r"`a`: .* 'n'\. A key of a dict or set .* Fill it inside"):
        notebook.launch("def f(rank): return a")


def test_a_key_that_is_not_found_where_it_is_opened_is_refused(notebook):
    notebook.run("""
        class C:
            n = 0
            def __hash__(self): return hash(self.n)
            def __eq__(self, o): return self.n == o.n
        c = C(); c.n = 5; c.f = frozenset([c])
    """)
    with pytest.raises(Unopened, match=r"was hashed before it had its attributes\. Fill it inside"):
        notebook.launch("def f(rank): return c in c.f")


#: What else a result keeps as on the way out.
KEPT = {
    "a dict that is its own attributes": (
        "class A(dict):\n"
        "    def __init__(self, **kw): super().__init__(**kw); self.__dict__ = self\n"
        "box = A(x=1)",
        "box.__dict__ is box and box.x == 1",
    ),
    "the attributes of an object apart from it": (
        "class P: pass\np = P(); p.x = 1; box = [p, vars(p)]",
        "box[1] is vars(box[0])",
    ),
    "views of dicts": (
        "d = collections.OrderedDict(x=1); e = {}\nbox = [d, d.keys(), e, e.items()]",
        "(box[0].update(y=2), box[2].update(z=1), list(box[1]), list(box[3]))[2:] "
        "== (['x', 'y'], [('z', 1)])",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), KEPT.values(), ids=KEPT)
def test_a_result_keeps_what_is_kept_on_the_way_out(notebook, made, is_so):
    notebook.run(NODE + made)
    assert eval(
        is_so, {**notebook.values, "box": returned(notebook.values["box"], notebook.values)}
    )
