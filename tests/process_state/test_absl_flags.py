"""absl flags have the notebook's values on ranks."""

import sys

import pytest

from tests.support.notebook_double import opened
from xla_nb.process_state import absl_flags

flags = pytest.importorskip("absl.flags")
notebook = pytest.fixture(opened)


@pytest.fixture(autouse=True)
def picklable():
    """Make absl flags picklable; restore the absl modules of this process afterwards."""
    modules = {name for name in sys.modules if name.partition(".")[0] == "absl"}
    held = {name: sys.modules.pop(name) for name in modules}
    absl_flags.let_pickle_have_them()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "absl"]:
        del sys.modules[name]
    sys.modules.update(held)


DEFINED = """
from absl import flags
FLAGS = flags.FLAGS
RATE = flags.DEFINE_float("rate", 0.5, "how fast", lower_bound=0)
flags.DEFINE_enum("mode", "train", ["train", "test"], "what to do")
FLAGS(["program", "--mode=test"])
FLAGS.rate = 0.25
"""


def test_absl_flags_get_notebook_values_and_own_flag_sets_are_sent(notebook):
    notebook.run(DEFINED)
    used = "FLAGS.rate, FLAGS.mode, FLAGS['mode'].present, FLAGS.is_parsed(), RATE.value"
    code = f"import absl.flags\ndef f(i): return FLAGS is absl.flags.FLAGS, {used}"
    assert notebook.launch(code) == (True, 0.25, "test", 1, True, 0.25)
    notebook.run("from absl import flags\nmine = flags.FlagValues()")
    notebook.run("flags.DEFINE_string('name', 'a', '', flag_values=mine); mine(['p', '--name=b'])")
    assert notebook.launch("def f(i): return mine.name") == "b"
