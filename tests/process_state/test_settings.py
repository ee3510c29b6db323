"""What ranks have of the notebook's process."""

import subprocess
import sys

TAKES_ON = r"""
import io, logging, pickle, sys, warnings
from xla_nb.process_state.settings import ProcessState
state = pickle.loads(bytes.fromhex(sys.argv[1]))
state.take_on()
print(sys.argv)
print(sys.getrecursionlimit(), sys.get_int_max_str_digits(), sys.warnoptions)
logging.getLogger("mine").debug("heard")
logging.getLogger("other").debug("not heard")
logging.getLogger("mine.apart").addHandler(logging.NullHandler())
logging.getLogger("mine.apart").error("not heard")
logging.getLogger("mine.off").error("not heard")
print(logging.root.manager.disable)
warnings.warn("as an error", ImportWarning)
"""
MAKES = r"""
import logging, pickle, sys, warnings
from xla_nb.process_state.settings import ProcessState
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
print(pickle.dumps(ProcessState()).hex())
"""
PICKLED = """
import pickle
from xla_nb.process_state.settings import ProcessState
print(pickle.dumps(ProcessState()).hex())
"""
TAKEN = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])).take_on()\n"


def ran(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_arguments_limits_filters_and_logging_are_the_notebooks():
    made = ran(MAKES)
    assert made.returncode == 0, made.stderr
    taken = ran(TAKES_ON, made.stdout.strip())
    assert taken.stdout.splitlines() == [
        "['train.py', '--lr', '3']",
        "4321 9999 ['error::ImportWarning']",
        "<mine heard>",
        "7",
    ]
    assert "ImportWarning: as an error" in taken.stderr


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


def test_handlers_to_files_and_streams_are_as_in_the_notebook_but_for_those_of_modules(tmp_path):
    file = tmp_path / "train.log"
    made = ran(LOGS + PICKLED, str(file))
    taken = ran(LOGS_TAKEN, made.stdout.strip())
    assert taken.stdout.splitlines() == ["ERROR-this", *["WARNING-less", "ERROR-that"] * 2]
    assert file.read_text() == "__main__ that\n", made.stderr + taken.stderr


def test_filters_of_other_packages_warnings_are_left_out_so_that_a_job_does_not_import_them():
    made = ran(
        "import sys, types, warnings\n"
        "class Theirs(Warning): pass\n"
        "Theirs.__module__ = 'not_here_at_all'\n"
        "warnings.simplefilter('error', Theirs)\n"
        "from xla_nb.process_state.settings import ProcessState\n"
        "print({one[2].__module__ for one in ProcessState().filters})"
    )
    assert made.stdout == "{'builtins'}\n", made.stderr


def test_what_numpy_does_about_errors_is_as_in_the_notebook():
    code = "import numpy\n"
    made = ran(code + "numpy.seterr(over='raise')\n" + PICKLED)
    taken = ran(code + TAKEN + "print(numpy.geterr()['over'])", made.stdout.strip())
    assert taken.stdout == "raise\n", made.stderr + taken.stderr
