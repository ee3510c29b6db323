"""The random generators and the default dtype that ranks inherit from the notebook."""

from tests.support.python import printed

TORCH = """
import random
import numpy, torch
from xla_nb.process_state.random_state import Inheritance

def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item(), torch.get_default_dtype()

random.seed(1); numpy.random.seed(1); torch.manual_seed(1); torch.set_default_dtype(torch.float64)
current = Inheritance.of_this_process()

def in_another_process(inheritance):
    random.seed(9); numpy.random.seed(9); torch.manual_seed(9)
    torch.set_default_dtype(torch.float32)
    inheritance.take_on()
    return draw()

first = in_another_process(current)
random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
print("same as in the notebook:", first == draw())

def sequences():
    return [set(numbers) for numbers in (
        [random.random() for _ in range(50)], numpy.random.rand(50), torch.rand(50).tolist())]

random.seed(1); numpy.random.seed(1); torch.manual_seed(1)
launches = [Inheritance.of_this_process(), Inheritance.of_this_process()]
drawn = [sequences()]
for launch in launches:
    launch.take_on()
    drawn.append(sequences())
shared = [len(a & b) for i in range(3) for a, b in zip(drawn[i], drawn[i - 1])]
print("numbers drawn twice:", sum(shared))
"""
BARE = """
import random, sys
from xla_nb.process_state.random_state import Inheritance
one, other = Inheritance.of_this_process(), Inheritance.of_this_process()
print("imports nothing:", not {"numpy", "torch"} & set(sys.modules))
import numpy, torch
one.take_on(); first = numpy.random.rand(), torch.rand(1).item()
one.take_on(); again = numpy.random.rand(), torch.rand(1).item()
other.take_on(); anew = numpy.random.rand(), torch.rand(1).item()
print("same in every rank:", first == again)
print("another launch differs:", first[0] != anew[0] and first[1] != anew[1])
"""


def test_ranks_continue_the_notebooks_generators_and_each_launch_differs():
    assert printed(TORCH) == ["same as in the notebook: True", "numbers drawn twice: 0"]


def test_generators_not_imported_in_the_notebook_are_seeded_per_launch():
    assert printed(BARE) == [
        "imports nothing: True",
        "same in every rank: True",
        "another launch differs: True",
    ]
