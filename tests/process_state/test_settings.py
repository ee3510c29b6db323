"""Process state that ranks take from the notebook, with random generators and default dtype."""

from tests.support.python import printed

TAKES_ON = r"""
import logging, numpy, pickle, sys, warnings
state = pickle.loads(bytes.fromhex(sys.argv[1]))
state.take_on()
print(sys.argv)
print(sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.warnoptions)
logging.getLogger("mine").debug("heard")
logging.getLogger("other").debug("not heard")
logging.getLogger("mine.apart").addHandler(logging.NullHandler())
logging.getLogger("mine.apart").error("not heard")
logging.getLogger("mine.off").error("not heard")
print(logging.root.manager.disable, numpy.geterr()["over"])
warnings.warn("as an error", ImportWarning)
"""
MAKES = r"""
import logging, numpy, sys, warnings
sys.argv[:] = ["train.py", "--lr", "3"]
sys.setrecursionlimit(4321)
sys.set_int_max_str_digits(9999)
sys.warnoptions[:] = ["error::ImportWarning"]
warnings.simplefilter("error", ImportWarning)
logging.basicConfig(level="INFO", format="<%(name)s %(message)s>", stream=sys.stdout)
logging.getLogger("mine").setLevel("DEBUG")
logging.getLogger("mine.apart").propagate = False
logging.getLogger("mine.off").disabled = True
logging.disable(7)
numpy.seterr(over="raise")
"""
PICKLED = """
import pickle
from xla_nb.process_state.settings import ProcessState
print(pickle.dumps(ProcessState()).hex())
"""
TAKEN = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).take_on()\n"


def test_ranks_take_arguments_limits_filters_logging_and_numpy_errors():
    (state,) = printed(MAKES + PICKLED)
    *taken, error = printed(TAKES_ON, state, fails=True)
    assert taken[:4] == [
        "['train.py', '--lr', '3']",
        "4321 9999 ['error::ImportWarning']",
        "<mine heard>",
        "7 raise",
    ]
    assert error == "ImportWarning: as an error"


LOGS = """
import logging, sys
sys.modules["a_package"] = sys
logging.basicConfig(style="{", format="{levelname}-{message}", stream=sys.stdout)
for name in "__main__", "a_package.part":
    to_file = logging.FileHandler(sys.argv[1])
    to_file.setFormatter(logging.Formatter("%(name)s %(message)s"))
    to_file.setLevel("ERROR")
    logging.getLogger(name).addHandler(to_file)
"""
LOGS_TAKEN = (
    TAKEN + "import logging\nlogging.error('this')\n"
    "for name in '__main__', 'a_package.part':\n"
    "    logging.getLogger(name).warning('less'); logging.getLogger(name).error('that')\n"
)


def test_ranks_take_file_and_stream_handlers_except_those_of_modules(tmp_path):
    file = tmp_path / "train.log"
    (state,) = printed(LOGS + PICKLED, str(file))
    told = ["ERROR-this", *["WARNING-less", "ERROR-that"] * 2]
    assert printed(LOGS_TAKEN, state) == told
    assert file.read_text() == "__main__ that\n"


def test_messages_of_a_package_that_adds_a_handler_only_without_others_are_shown():
    adds = (
        "import logging, sys\nsys.modules['theirs'] = sys\nlog = logging.getLogger('theirs')\n"
        "if not logging.root.handlers: log.addHandler(logging.StreamHandler()); log.propagate = 0\n"
    )
    (state,) = printed(f"{adds}log.setLevel('INFO')\n{PICKLED}")
    root = "import logging, sys\nlogging.basicConfig(stream=sys.stdout)\n"
    assert printed(f"{root}{TAKEN}{adds}log.info('done')", state) == ["INFO:theirs:done"]


def test_filters_for_warnings_of_other_packages_are_omitted():
    makes = (
        "import sys, types, warnings\nclass Theirs(Warning): pass\n"
        "Theirs.__module__ = 'not_here_at_all'\nwarnings.simplefilter('error', Theirs)\n"
        "from xla_nb.process_state.settings import ProcessState\n"
    )
    told = printed(makes + "print({one[2].__module__ for one in ProcessState().filters})")
    assert told == ["{'builtins'}"]


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


def test_generators_continue_the_notebooks_or_are_seeded_per_launch():
    assert printed(TORCH) == ["same as in the notebook: True", "numbers drawn twice: 0"]
    asked = "imports nothing", "same in every rank", "another launch differs"
    assert printed(BARE) == [f"{each}: True" for each in asked]
