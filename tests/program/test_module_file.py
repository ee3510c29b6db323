"""A module file's map from its lines to cells."""

import os

import pytest

from xla_nb.program.build import Program
from xla_nb.program.module_file import ModuleMap, source, write

LABEL = "Cell In[2]"


def test_a_map_round_trips():
    table = ModuleMap({LABEL: "ü = 1"}, LABEL, 64, 4, "x", {"a": "list"}, ("a.b",))
    assert ModuleMap.parse(table.text()) == table


def test_the_map_of_a_module_is_written_beside_it(tmp_path):
    program = Program("m", None, LABEL, module="x = 1\n", restored=("a",))
    write(program, tmp_path / "m.py")
    assert ModuleMap.open(tmp_path / "m.py") == ModuleMap.of(program, source(program)[1])


def test_only_the_owner_can_read_the_folder_of_a_module(tmp_path):
    before = os.umask(0)
    try:
        write(Program("m", None, LABEL), tmp_path / "program" / "m.py")
    finally:
        os.umask(before)
    assert (tmp_path / "program").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("start", "line", "cell"),
    [(4, 3, None), (4, 4, (LABEL, 1)), (4, 6, (LABEL, 3)), (0, 6, None)],
)
def test_a_line_of_the_file_maps_to_its_cell(start, line, cell):
    assert ModuleMap({}, LABEL, start=start).cell(line) == cell


def test_the_cells_text_begins_where_it_is_said():
    text, start = source(Program("m", None, LABEL, module="\nx = 1\n", futures=("annotations",)))
    assert text.splitlines()[start - 1 :] == ["", "x = 1"]
    assert source(Program("m", None, LABEL))[1] == 0
