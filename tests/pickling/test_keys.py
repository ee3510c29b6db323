"""Keys that say themselves how they are hashed: found where they are opened, or refused."""

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

#: Each binds `box`; what follows is True of it.
FOUND = {
    "what is reached from its parent": (
        "class Parent: pass\nbox = Parent()\nbox.kids = {a: 1, b: 2}\na.parent = b.parent = box",
        "box.kids[N(1)] == 1 and box.kids[N(2)] == 2 and [k.n for k in box.kids] == [1, 2]",
    ),
    "what caches hold": (
        "@functools.cache\ndef near(n): return [n]\n"
        "a.f = near; kept = near(a); kept.append(a); box = a, kept",
        "box[0].f(box[0]) is box[1]",
    ),
    "a hash that reads such a container from outside": (
        "class Sum(N):\n    def __hash__(self): return hash(len(self.f))\n"
        "a.f.add(a); s = Sum(3); s.f = a.f; box = {s: 5}, a",
        "box[0][next(iter(box[0]))] == 5",
    ),
    "keys that lead nowhere but to an empty container": (
        "class E(N):\n    def __init__(self, n, f): self.n, self.f = n, f\n"
        "box = [E(1, collections.defaultdict(list)), E(2, collections.deque())]\n"
        "box.append({box[0]: 5, box[1]: 6})",
        "[box[2][key] for key in box[:2]] == [5, 6] and [*box[0].f, *box[1].f] == []",
    ),
    "a torch module": (
        "import torch\nclass Expert(torch.nn.Module):\n"
        "    def __init__(self, n): super().__init__(); self.n, self.l = n, torch.nn.Linear(1, 1)\n"
        "    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "one = Expert('a'); box = [one, {one: 5, Expert('b'): 6}]",
        "box[1][box[0]] == 5 and len(box[1]) == 2",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), FOUND.values(), ids=FOUND)
def test_a_rank_finds_its_keys_and_the_notebook_those_of_results(notebook, made, is_so):
    notebook.run(NODE + made)
    assert notebook.launch(f"def f(rank): return bool({is_so})")
    if "cache" not in made:  # a cached function of the notebook is the notebook's own
        box = returned(notebook.values["box"], notebook.values)
        assert eval(is_so, {**notebook.values, "box": box})


#: Keys that lead back to their container, in `box`.
REFUSED = {
    "an object in its own set": "a.f.add(a)\nbox = a",
    "slots": (
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
    "a hash that reads another such container": (
        "class Sum(N):\n"
        "    def __hash__(self): return hash(tuple(sorted(one.n for one in self.f)))\n"
        "s = Sum(3); s.f = {a, b}; a.f = {s: 1, a: 2}; b.f = {b, (s, 4)}\nbox = [a, b, s]"
    ),
    "members of an enum": (
        "class E(enum.Enum):\n    A = 1\n    B = 2\n"
        "E.A.near, E.B.near = {E.B: 1}, {E.A, E.B}\nbox = E.A"
    ),
    "an object's own state": "d = dict.__new__(dict); d[a] = vars(a); a.f = d; box = a",
    "an instance whose class has a hash before it is opened": (
        "class C:\n    n = 0\n    def __hash__(self): return hash(self.n)\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "box = C(); box.n = 5; box.f = frozenset([box])"
    ),
}


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED)
def test_a_key_that_leads_back_to_its_container_is_refused(notebook, made):
    notebook.run(NODE + made)
    told = (
        r"`\w+` on ranks: .* A key of a dict or set .* Fill it|was hashed before .* Fill it inside"
    )
    with pytest.raises(Unopened, match=told):
        notebook.launch("def f(rank): return box")
    with pytest.raises(Unopened):
        returned(notebook.values["box"])
