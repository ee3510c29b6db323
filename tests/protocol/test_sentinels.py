"""Objects whose `__reduce__` looks them up are the same objects on ranks."""

import textwrap

import pytest

from tests.support.notebook_double import opened

notebook = pytest.fixture(opened)

BY_NAME = """
    class Quiet:
        def __reduce__(self): return "Q"
    Q = Quiet()
    Q.tags = [Q]
    def given(x=Q): return x
"""
A_TEXT = """
    class Quiet(str):
        __slots__ = ("tags",)
        def __reduce_ex__(self, protocol): return "Q"
    Q = Quiet("quiet")
    Q.tags = [Q]
    def given(x=Q): return x
"""
INSIDE_A_CLASS = """
    class Holder:
        class Quiet:
            def __reduce__(self): return "Holder.Q"
    Holder.Q = Q = Holder.Quiet()
    Q.tags = [Q]
    def given(x=Q): return x
"""
SINGLETON = """
    class Only:
        one = None
        def __new__(cls):
            if cls.one is None:
                cls.one = super().__new__(cls)
            return cls.one
        def __reduce__(self): return Only, ()
    Q = Only()
    Q.tags = [Q]
    def given(x=Q): return Only()
"""
OF_A_METACLASS = """
    class Meta(type):
        made = {}
        def __call__(cls):
            if cls not in cls.made:
                cls.made[cls] = super().__call__()
            return cls.made[cls]
    class Only(metaclass=Meta):
        def __reduce__(self): return type(self), ()
    Q = Only()
    Q.tags = [Q]
    def given(x=Q): return Only()
"""
FLYWEIGHT = """
    import weakref
    class Color:
        known = weakref.WeakValueDictionary()
        def __new__(cls, name):
            found = cls.known.get(name)
            if found is None:
                cls.known[name] = found = super().__new__(cls)
                found.name = name
            return found
        def __reduce__(self): return Color, (self.name,)
    Q = Color("red")
    Q.tags = [Q]
    def given(x=Q): return Color("red")
"""
BY_A_FUNCTION = """
    class Quiet:
        def __reduce__(self): return get, ()
    def found(): return Q
    def get(): return found()
    Q = Quiet()
    Q.tags = [Q]
    given = get
"""
BY_A_FUNCTION_THAT_MAKES_IT = """
    class Quiet:
        def __reduce__(self): return get, ()
    def get():
        global Q
        try: return Q
        except NameError: Q = Quiet()
        return Q
    Q = get()
    Q.tags = [Q]
    given = get
"""
BY_A_CLOSURE = """
    def making():
        one = Quiet()
        def get(): return one
        return get
    class Quiet:
        def __reduce__(self): return get, ()
    get = given = making()
    Q = get()
    Q.tags = [Q]
"""
BY_A_CLASS_METHOD = """
    class Quiet:
        one = None
        @classmethod
        def get(cls):
            if cls.one is None:
                cls.one = cls()
            return cls.one
        def __reduce__(self): return Quiet.get, ()
    Q = Quiet.get()
    Q.tags = [Q]
    given = Quiet.get
"""
BY_GETATTR = """
    class Colors: pass
    class Color:
        def __reduce__(self): return getattr, (Colors, "RED")
    Q = Colors.RED = Color()
    Q.tags = [Q]
    def given(): return Colors.RED
"""
IN_A_REGISTRY = """
    class Registry:
        def __init__(self): self.found = {}
        def get(self, name): return self.found[name]
    known = Registry()
    class Color:
        def __reduce__(self): return get, ("red",)
    def get(name="red"): return known.get(name)
    Q = known.found["red"] = Color()
    Q.tags = [Q]
    given = get
"""
THAT_REGISTERS_ITSELF = """
    class Color:
        all = []
        def __init__(self, name):
            self.name = name
            Color.all.append(self)
        def __reduce__(self): return Color, (self.name,)
    Q = Color("red")
    Q.tags = [Q]
    def given(x=Q): return Color.all[0] if len(Color.all) == 1 else None
"""


@pytest.mark.parametrize(
    "cell",
    [
        BY_NAME,
        A_TEXT,
        INSIDE_A_CLASS,
        SINGLETON,
        OF_A_METACLASS,
        FLYWEIGHT,
        BY_A_FUNCTION,
        BY_A_FUNCTION_THAT_MAKES_IT,
        BY_A_CLOSURE,
        BY_A_CLASS_METHOD,
        BY_GETATTR,
        IN_A_REGISTRY,
        THAT_REGISTERS_ITSELF,
    ],
)
def test_a_sentinel_is_one_object_as_the_notebook_has_it(notebook, cell):
    notebook.run(textwrap.dedent(cell))
    assert notebook.launch("def f(rank): return given() is Q, Q.tags[0] is Q") == (True, True)


def test_a_sentinel_that_is_pickled_by_its_name_has_that_name_on_ranks(notebook):
    notebook.run(textwrap.dedent(BY_NAME))
    cell = (
        "import pickle\n"
        "def f(rank): return pickle.loads(pickle.dumps(given())) is given()"
    )  # as what a rank returns, or gives to a helper
    program = notebook.build(cell)
    assert program.named["Q"] is notebook.values["Q"]  # which results refer to
    assert notebook.rank(program) is True


OWN_WAY = """
    import threading
    class Net:
        best = None
        all = []
        def __init__(self, n):
            self.n, self.lock = n, threading.Lock()
            self.made = len(Net.names)
        names = ["a"]
        def __reduce__(self): return {way}
    def made_of(cls, state):
        net = object.__new__(cls)
        net.__dict__.update(state)
        return net
    Net.best = Net(3)
    Net.all += [Net(4), Net.best]
"""


@pytest.mark.parametrize("way", ["(Net, (self.n,))", "(made_of, (Net, {'n': self.n}))"])
def test_an_object_that_is_not_looked_up_is_made_as_its_class_says(notebook, way):
    notebook.run(textwrap.dedent(OWN_WAY.format(way=way)))
    cell = "def f(rank): return [net.n for net in Net.all], Net.all[1] is Net.best"
    assert notebook.launch(cell) == ([4, 3], True)
