"""Tensors keep their class, attributes and mode."""

import pytest
import torch

from tests.support.returned import are_sent, read, returned
from xla_nb.pickling import pickler, results
from xla_nb.pickling.results import RESULT

TAGGED = """
import torch
class Tagged(torch.nn.Parameter): pass
"""

#: Notebook cell, and an expression that must be true on a rank.
ON_RANKS = {
    "requires_grad, memory shared with a tensor, and uninitialized parameters": (
        "p, q = Tagged(torch.ones(2)), Tagged(torch.ones(2), requires_grad=False)\n"
        "t = torch.zeros(3)\nr = Tagged(t[:2])\nf8 = torch.ones(2).to(torch.float8_e4m3fn)\n"
        "f8.rate, Shapeless = 3, torch.nn.parameter.UninitializedParameter\nno_shape = Shapeless()",
        "p.requires_grad and not q.requires_grad and p.is_leaf"
        " and (f8.rate, f8.tolist()) == (3, [1, 1]) and type(no_shape) is Shapeless"
        " and (t.fill_(7), type(r) is Tagged and r.tolist() == [7, 7])[1]",
    ),
    "attributes, slots, a gradient and hooks": (
        "class Slotted(Tagged): __slots__ = ('place',)\n"
        "p = Slotted(torch.ones(2))\np.rate, p.place, p.grad = [3], 'here', torch.ones(2)\n"
        "p.register_hook(lambda g: 5 * g)",
        "type(p) is Slotted and (p.rate, p.place) == ([3], 'here') "
        "and (p.sum().backward(), p.grad.tolist())[1] == [6, 6]",
    ),
    "a class with __getstate__ and __setstate__": (
        "class Told(Tagged):\n    def __getstate__(self): return [self.rate]\n"
        "    def __setstate__(self, state): self.rate = state[0] + 1\n"
        "p = Told(torch.ones(2))\np.rate = 3",
        "type(p) is Told and p.rate == 4",
    ),
    "a module's parameter that refers back to the module": (
        "net = torch.nn.Linear(2, 2)\nnet.weight = Tagged(net.weight.data)\n"
        "net.weight.of, net.bias.of = [net], [net]",
        "net.weight.of[0] is net and net.bias.of[0] is net and "
        "[n for n, p in net.named_parameters() if type(p) is Tagged] == ['weight']",
    ),
    "tied weights and an optimizer": (
        "one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "one.weight = two.weight = Tagged(torch.ones(2, 2))\n"
        "optimizer = torch.optim.SGD(one.parameters(), lr=1)",
        "one.weight is two.weight is optimizer.param_groups[0]['params'][0] "
        "and type(one.weight) is Tagged",
    ),
    "a class with a __torch_function__": (
        "class Seen(Tagged):\n"
        "    __torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)\n"
        "p = Seen(torch.ones(2))",
        "type(p) is Seen",
    ),
    "a class with __reduce_ex__": (
        "class Other(Tagged):\n    def __reduce_ex__(self, protocol): return list, ((5,),)\n"
        "p = Other(torch.ones(2))",
        "p == [5]",
    ),
    "inference-mode tensors, sent as ordinary ones": (
        "with torch.inference_mode():\n    t = torch.ones(2)\n    p = Tagged(t)\n"
        "    half = torch.ones(2).to(torch.float8_e4m3fn)\n    p.rate, p.grad = 3, torch.ones(2)",
        "not any(x.is_inference() for x in (t, p, half, p.grad)) and p.requires_grad "
        "and p.rate == 3 and p.data_ptr() == t.data_ptr() and half.tolist() == [1, 1]",
    ),
}


@pytest.mark.filterwarnings("ignore:backward hook")
@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_ranks_get_tensor_state_that_torch_pickling_loses(notebook, made, is_so):
    notebook.run(TAGGED + made)
    assert notebook.launch(f"def f(rank): return bool({is_so})")


def test_no_warning_about_lost_hooks(notebook, recwarn):
    notebook.run("import torch\nw = torch.ones(1, requires_grad=True)")
    notebook.run("w.register_hook(lambda g: g * 5)")
    assert notebook.launch("def f(rank): return w.sum().backward() or w.grad.item()") == 5
    assert not recwarn.list


def test_results_keep_tensor_class_and_attributes_even_from_a_device(notebook):
    notebook.run(TAGGED)
    tagged = notebook.values["Tagged"]
    sent = tagged(torch.ones(2))
    sent.rate = 3
    again, also = returned([sent, sent], notebook.values)
    assert type(again) is tagged and also is again and again.is_leaf
    assert (again.rate, again.tolist(), again.requires_grad) == (3, [1, 1], True)

    class Pickler(results.HomePickler):
        """Treats these two as tensors on a device."""

        def reducer_override(self, obj):
            if any(obj is one for one in (there, plain)):
                return self.reduce_xla_tensor(obj)
            return super().reducer_override(obj)

    there, plain = tagged(torch.ones(2), requires_grad=False), torch.nn.Parameter(torch.ones(2))
    there.rate = 3
    are_sent(notebook.values)
    again, other = read(pickler.pickled({RESULT: [there, plain]}, Pickler))
    assert type(again) is tagged and not again.requires_grad and again.rate == 3
    assert type(other) is torch.nn.Parameter and other.requires_grad


LEAD_BACK = """
import torch
t, u, w = torch.zeros(1), torch.ones(1), torch.ones(4)
t.pair, u.pair, t.note = u, t, [t]
w.me, part = {"w": w}, w[1:3]
part.parent = w
w.kid = part
box = [t, u, w]
"""
LED = "box[0].pair is box[1] and box[1].pair is box[0] and box[0].note[0] is box[0]"
LED += " and box[2].me['w'] is box[2] and box[2].kid.parent is box[2]"


def test_tensor_attributes_may_refer_back_to_the_tensor(notebook):
    notebook.run(LEAD_BACK)
    assert notebook.launch(f"def f(rank): return {LED}")
    assert eval(LED, {"box": returned(notebook.values["box"])})
