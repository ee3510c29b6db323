"""Descriptors of classes that extend Python's own are sent as they are."""

from __future__ import annotations

CELL = """
import abc, functools
class Prop(property):
    "Of ours."
    def __init__(self, *args, unit=None):
        super().__init__(*args)
        self.unit = unit
    def __get__(self, obj, owner=None):
        return self if obj is None else (self.unit, super().__get__(obj, owner))
class Bare(property): pass
class Static(staticmethod):
    def __call__(self, *args): return "static"
class Of(classmethod): pass
def of_whom(self):
    "Says it."
    return self.n
shared = Prop(of_whom, unit="m")
class Thing:
    live = []
    def __init__(self): self.n = 3
    length = shared
    bare = Bare(lambda self: self.__class__)
    make = Static(lambda: 5)
    @Of
    def who(cls): return cls
    @functools.cached_property
    def once(self):
        self.live.append(1)
        return __class__
    old = abc.abstractproperty(lambda self: "old")
    @length.setter
    def size(self, value): self.n = value
Thing.live.append(0)
Thing.who.__func__.of = "who"
vars(Thing)["who"].mine = [shared]
thing = Thing()
def f(rank):
    held = vars(Thing)
    return (
        thing.length, thing.bare is Thing, thing.make(), thing.who() is Thing, thing.once is Thing,
        thing.once is Thing, thing.live, thing.old, Thing.length is shared, shared.unit,
        shared.__doc__, setattr(thing, "size", 4), thing.length, held["who"].mine[0] is shared,
        held["once"].attrname, Thing.who.__func__.of,
        [type(held[n]).__name__ for n in ("length", "size", "bare", "make", "who", "once", "old")],
    )
"""


def test_a_class_with_descriptors_of_ones_own_keeps_them_and_its_live_state(notebook):
    notebook.run(CELL)
    program = notebook.build("def launched(rank): return f(rank)")
    on_a_rank = notebook.rank(program)
    assert on_a_rank == notebook.values["f"](0)
    assert not program.notes
