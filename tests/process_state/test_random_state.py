"""The random generators and the default dtype that ranks inherit from the notebook."""

from tests.support.python import printed

TORCH = """
import random
import numpy, torch
from xla_nb.process_state.random_state import Inheritance

def seed(number, dtype=torch.float64):
    random.seed(number); numpy.random.seed(number); torch.manual_seed(number)
    torch.set_default_dtype(dtype)

def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item(), torch.get_default_dtype()

seed(1)
current = Inheritance.of_this_process()
seed(9, torch.float32)
current.take_on()
first = draw()
seed(1)
print("same as in the notebook:", first == draw())

def sequences():
    return [set(numbers) for numbers in (
        [random.random() for _ in range(50)], numpy.random.rand(50), torch.rand(50).tolist())]

seed(1)
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
def drawn(taken): return taken.take_on(), numpy.random.rand(), torch.rand(1).item()
first, again, anew = drawn(one), drawn(one), drawn(other)
print("same in every rank:", first == again)
print("another launch differs:", first[1] != anew[1] and first[2] != anew[2])
"""


def test_ranks_continue_the_notebooks_generators_and_each_launch_differs():
    assert printed(TORCH) == ["same as in the notebook: True", "numbers drawn twice: 0"]


def test_generators_not_imported_in_the_notebook_are_seeded_per_launch():
    asked = "imports nothing", "same in every rank", "another launch differs"
    assert printed(BARE) == [f"{each}: True" for each in asked]
