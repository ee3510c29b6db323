"""Refusals name the part that cannot be sent, and say what to do instead."""

import pytest

from xla_nb.errors import ShippingError
from xla_nb.pickling.refusals import Unshippable, advice_on_result, refusal


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (Unshippable("a generator", "Create it in the function"), "Return a list of its items"),
        (Unshippable("a dict view", "Send the dict"), "Return it as a list"),
        (OSError(28, "No space left on device"), "Set XLA_NB_HOME to a folder with more"),
        (OSError(24, "Too many open files"), "Too many files are open in one process"),
        (OSError(23, "Too many open files in system"), "Too many files are open on this machine"),
        (OSError(12, "Cannot allocate memory"), "Not enough memory for a process"),
        (OSError(11, "Resource temporarily unavailable"), "Too many processes and threads"),
        (OSError(5, "Input/output error"), "Set XLA_NB_HOME to another folder, and keep"),
        (PermissionError(13, "Permission denied"), "Set XLA_NB_HOME to another folder, and keep"),
        (TypeError("cannot pickle"), "Return numbers, arrays or CPU tensors instead"),
    ],
)
def test_advice_on_an_unsendable_result_depends_on_the_error(fault, advice):
    assert advice_on_result(fault).startswith(advice)


def test_unformatted_error_message_is_filled_in():
    fault = NotImplementedError("{} cannot be pickled", "_Iterator")  # as torch raises it
    told = "to ranks: NotImplementedError: _Iterator cannot be pickled."
    assert told in refusal("it", "torch.Loader", fault)


IMPORTS = """
import collections, contextlib, contextvars, csv, hashlib, itertools, logging, re, socket, sqlite3
import multiprocessing as mp, threading, torch, weakref
from unittest.mock import MagicMock
"""
HOLDER = "class Holder: pass\nx, y = Holder(), Holder()\n"
GENERATOR = " is or contains a generator. Send a list of its items"


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("x = {'deep': {'er': (1, [(i for i in ())])}}", "`x['deep']['er'][1][0]`" + GENERATOR),
        (HOLDER + "x.log, y.file = [y], (i for i in ())", "`x.log[0].file`" + GENERATOR),
        (HOLDER + "x._hidden = (i for i in ())", "to ranks: it" + GENERATOR),
        ("x = [[]] * 5000 + [(i for i in ())]", "`x[5000]`" + GENERATOR),
        ("x = [{(i for i in ())}, weakref.proxy(type('Gone', (), {})())]", "`x[0]`" + GENERATOR),
        ("x = collections.deque([(i for i in ())])", "`x[0]`" + GENERATOR),
        ("x = []\nfor _ in range(20_000): x = [x]", "recursion"),
        ("x = socket.socket()\nx.close()", "it is or contains an open socket. Connect inside"),
        ("x = sqlite3.connect(':memory:')", "object. Connect inside the function."),
        ("x = threading.Lock()\nx.acquire()", "Use the `lock` parameter"),
        (
            "class Mine(logging.Handler): pass\nx = {'h': Mine()}",
            "`x['h']` is or contains a logging handler. Create it inside the function and",
        ),
        (
            "x = [mp.Process(target=print)]",
            "`x[0]` is or contains a process. Start it inside the function, or send what you",
        ),
        ("x = MagicMock(name='m')", "it is or contains a mock. Create it inside the function"),
        ("x = contextvars.ContextVar('at')", "cannot pickle '"),
        (
            "@contextlib.contextmanager\ndef noted(): yield\nx = noted()\nx.__enter__()",
            "a generator",
        ),
        ("x = logging.Logger('mine')", "logger cannot be pickled"),
        (
            "class Told:\n    def __init__(self): self.n = 1\n"
            "    __dict__ = property(lambda self: {})\nx = Told()",
            "a `Told`, whose class defines its own",
        ),
        (
            "@torch.library.custom_op('xla_nb_tests::twice', mutates_args=())\n"
            "def x(it: torch.Tensor) -> torch.Tensor: return 2 * it",
            "to ranks: cannot pickle 'torch._C",
        ),
        (
            "class Prop(property): pass\nclass A:\n    p = Prop(len)\nx = A()",
            "a `Prop`, a custom property or method type. Move the class that has it to",
        ),
        (
            "x = collections.OrderedDict().keys()",
            "a dict view. Send the dict, or the view as",
        ),
        (
            "x = [type({}.keys())]",
            "a built-in type without a name. Call `type` inside",
        ),
        ("x = [torch.ops.aten.add]", "Create it inside the function, or"),
        ("x = csv.DictReader(['a,b'])", "or send a list of its rows"),
        ("x = itertools.pairwise([1])", "Send a list of its items, or create it"),
        ("x = re.match('a', 'a')", "Send what it matched, such as `m.group()`"),
        ("x = hashlib.sha256()", "Send its digest, or create it inside the function"),
        ("x = threading.local()", "Create it inside the function: its values"),
    ],
)
def test_unsendable_values_are_refused_with_advice(notebook, made, told):
    notebook.run(IMPORTS)
    notebook.run(made)
    with pytest.raises(ShippingError) as refused:
        notebook.build("def f(rank): return x")
    assert str(refused.value).startswith("Cannot send `x`")
    assert told in str(refused.value)


def test_unnamed_function_is_refused_by_its_own_name(notebook):
    notebook.run(
        "def make(rows):\n    def load(rank): return rows\n    return load\n"
        "loads = [make(i for i in range(3))]"
    )
    with pytest.raises(ShippingError, match="`load → rows` is or contains a generator"):
        notebook.call(notebook.values["loads"][0])
