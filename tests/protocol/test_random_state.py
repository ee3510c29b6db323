"""The random generators and the dtype that a launch has from the notebook."""

import subprocess
import sys

TORCH = """
import random
import numpy, torch
from xla_nb.protocol.random_state import Inheritance

def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item(), torch.get_default_dtype()

random.seed(1); numpy.random.seed(1); torch.manual_seed(1); torch.set_default_dtype(torch.float64)
taken = Inheritance.of_this_process()
following = Inheritance.of_this_process()

def in_another_process(inheritance):
    random.seed(9); numpy.random.seed(9); torch.manual_seed(9)
    torch.set_default_dtype(torch.float32)
    inheritance.take_on()
    return draw()

first = in_another_process(taken)
random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
print("same as here", first == draw())
print("next differs", in_another_process(following)[:3] != first[:3])
"""
BARE = """
import random, sys
from xla_nb.protocol.random_state import Inheritance
one, other = Inheritance.of_this_process(), Inheritance.of_this_process()
print("nothing imported", not {"numpy", "torch"} & set(sys.modules))
import numpy, torch
one.take_on(); first = numpy.random.rand(), torch.rand(1).item()
one.take_on(); again = numpy.random.rand(), torch.rand(1).item()
other.take_on(); anew = numpy.random.rand(), torch.rand(1).item()
print("same in every rank", first == again)
print("another launch differs", first[0] != anew[0] and first[1] != anew[1])
"""


def said(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout.splitlines() or done.stderr


def test_generators_and_dtype_go_on_as_they_are_and_the_next_launch_draws_anew():
    assert said(TORCH) == ["same as here True", "next differs True"]


def test_generators_that_the_notebook_has_not_begin_anew_at_every_launch():
    assert said(BARE) == [
        "nothing imported True",
        "same in every rank True",
        "another launch differs True",
    ]
