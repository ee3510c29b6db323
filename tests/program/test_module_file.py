"""A program's module file, and what lies beside it."""

import os

from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap, write

LABEL = "Cell In[2]"


def test_a_map_round_trips():
    table = ModuleMap({LABEL: "ü = 1"}, LABEL, 64, "x", {"a": "list"}, ("a.b",))
    assert ModuleMap.parse(table.text()) == table


def test_the_map_of_a_module_is_written_beside_it(tmp_path):
    program = Program("m", None, LABEL, body="x = 1\n", restored=("a",))
    write(program, tmp_path / "m.py")
    assert ModuleMap.open(tmp_path / "m.py") == ModuleMap.of(program)


def test_only_the_owner_can_read_the_folder_of_a_module(tmp_path):
    before = os.umask(0)
    try:
        write(Program("m", None, LABEL), tmp_path / "program" / "m.py")
    finally:
        os.umask(before)
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o700
