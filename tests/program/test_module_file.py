"""A program's module file, and what lies beside it."""

import os

from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap, write

LABEL = "Cell In[2]"


def test_a_map_is_written_beside_the_module_in_a_folder_that_only_the_owner_can_read(tmp_path):
    table = ModuleMap({LABEL: "ü = 1"}, LABEL, 64, "x", {"a": "list"}, ("a.b",))
    assert ModuleMap.parse(table.text()) == table
    program, path = Program("m", None, LABEL, body="x = 1\n", restored=("a",)), tmp_path / "p/m.py"
    before = os.umask(0)
    try:
        write(program, path)
    finally:
        os.umask(before)
    assert ModuleMap.open(path) == ModuleMap.of(program)
    assert path.parent.stat().st_mode & 0o777 == 0o700
