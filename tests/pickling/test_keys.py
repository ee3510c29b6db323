"""Keys with their own __hash__: found after unpickling, or refused."""

import pytest

from tests.support.returned import returned
from xla_nb.pickling.parcel import Unopened

NODE = """
import collections, dataclasses, enum, functools, types, weakref
class N:
    def __init__(self, n): self.n, self.f = n, set()
    def __hash__(self): return hash(self.n)
    def __eq__(self, o): return isinstance(o, N) and self.n == o.n
a, b = N(1), N(2)
"""

#: Code that binds `box`, and an expression that must be true of it.
FOUND = {
    "children reached from their parent": (
        "class Parent: pass\nbox = Parent()\nbox.kids = {a: 1, b: 2}\na.parent = b.parent = box",
        "box.kids[N(1)] == 1 and box.kids[N(2)] == 2 and [k.n for k in box.kids] == [1, 2]",
    ),
    "cached results": (
        "@functools.cache\ndef near(n): return [n]\n"
        "a.f = near; kept = near(a); kept.append(a); box = a, kept",
        "box[0].f(box[0]) is box[1]",
    ),
    "a hash that reads another object's set": (
        "class Sum(N):\n    def __hash__(self): return hash(len(self.f))\n"
        "a.f.add(a); s = Sum(3); s.f = a.f; box = {s: 5}, a",
        "box[0][next(iter(box[0]))] == 5",
    ),
    "keys that hold an empty container": (
        "class E(N):\n    def __init__(self, n, f): self.n, self.f = n, f\n"
        "box = [E(1, collections.defaultdict(list)), E(2, collections.deque())]\n"
        "box.append({box[0]: 5, box[1]: 6})",
        "[box[2][key] for key in box[:2]] == [5, 6] and [*box[0].f, *box[1].f] == []",
    ),
    "torch modules": (
        "import torch\nclass Expert(torch.nn.Module):\n"
        "    def __init__(self, n): super().__init__(); self.n, self.l = n, torch.nn.Linear(1, 1)\n"
        "    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "one = Expert('a'); box = [one, {one: 5, Expert('b'): 6}]",
        "box[1][box[0]] == 5 and len(box[1]) == 2",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), FOUND.values(), ids=FOUND)
def test_keys_are_found_on_ranks_and_in_results(notebook, made, is_so):
    notebook.run(NODE + made)
    assert notebook.launch(f"def f(rank): return bool({is_so})")
    if "cache" not in made:  # results refer to the notebook's cached function
        box = returned(notebook.values["box"], notebook.values)
        assert eval(is_so, {**notebook.values, "box": box})


#: Code that binds `box` to keys that refer back to their container.
REFUSED = {
    "an object in its own set": "a.f.add(a)\nbox = a",
    "an instance with slots": (
        "class S:\n    __slots__ = 'n', 'f'\n    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "s = S(); s.n, s.f = 1, {}\ns.f[s] = 5\nbox = s"
    ),
    "tuples of objects": "a.f = {(a, (b, 1)): 5}\nb.f = {(b, a)}\nbox = a",
    "frozen dataclasses": (
        "@dataclasses.dataclass(frozen=True)\nclass Edge:\n    one: N\n    other: N\n"
        "a.f.add(Edge(a, b)); b.f.add(Edge(a, b))\nbox = [a, b]"
    ),
    "subclasses with methods of their own": (
        "class D(dict):\n    def keys(self): raise ValueError\n"
        "class T(set):\n    def add(self, *_): raise ValueError\n"
        "a.f = D({a: 1}); a.g = T([a])\nbox = a"
    ),
    "weak sets": ("a.f = weakref.WeakSet([b]); b.f = weakref.WeakSet([a])\nbox = [a, b]"),
    "a hash that reads another cyclic container": (
        "class Sum(N):\n"
        "    def __hash__(self): return hash(tuple(sorted(one.n for one in self.f)))\n"
        "s = Sum(3); s.f = {a, b}; a.f = {s: 1, a: 2}; b.f = {b, (s, 4)}\nbox = [a, b, s]"
    ),
    "enum members": (
        "class E(enum.Enum):\n    A = 1\n    B = 2\n"
        "E.A.near, E.B.near = {E.B: 1}, {E.A, E.B}\nbox = E.A"
    ),
    "a key to its own attributes": "d = dict.__new__(dict); d[a] = vars(a); a.f = d; box = a",
    "an instance in its own frozen set": (
        "class C:\n    n = 0\n    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "box = C(); box.n = 5; box.f = frozenset([box])"
    ),
}


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED)
def test_keys_that_refer_back_to_their_container_are_refused(notebook, made):
    notebook.run(NODE + made)
    told = (
        r"`\w+` on ranks: .* A key of a dict or set .* Fill it|was hashed before .* Fill it inside"
    )
    with pytest.raises(Unopened, match=told):
        notebook.launch("def f(rank): return box")
    with pytest.raises(Unopened):
        returned(notebook.values["box"])
