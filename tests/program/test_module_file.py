"""A module file's map from its lines to cells."""

import pytest

from xla_nb.program.build import Program
from xla_nb.program.cell_text import Section
from xla_nb.program.module_file import ModuleMap, Span, write

FIRST, SECOND = "Cell In[2]", "Cell In[7]"


def test_a_map_round_trips(tmp_path):
    table = ModuleMap(
        (Span(4, 9, FIRST, 1), Span(11, 12, SECOND, 3)),
        {FIRST: "ü = 1"},
        64,
        (SECOND, 2, "x"),
        imports=("a.b",),
    )
    assert ModuleMap.parse(table.save(tmp_path / "m.py")) == table
    assert ModuleMap.open(tmp_path / "m.py") == table


def test_a_map_without_a_body_round_trips(tmp_path):
    assert ModuleMap.parse(ModuleMap((), {}).save(tmp_path / "m.py")).body is None


def test_the_map_beside_a_module_is_what_writing_it_gives(tmp_path):
    program = Program("m", None, sections=(Section("Cell In[2]", 1, "x = 1\n"),), restored=("a",))
    given = write(program, tmp_path / "m.py")
    assert ModuleMap.open(tmp_path / "m.py") == ModuleMap.parse(given)


@pytest.mark.parametrize(
    ("line", "cell"),
    [
        (3, None),
        (4, (FIRST, 10)),
        (6, (FIRST, 12)),
        (7, None),
        (8, (SECOND, 1)),
        (9, (SECOND, 2)),
        (10, None),
    ],
)
def test_a_line_of_the_file_maps_to_its_cell(line, cell):
    table = ModuleMap((Span(4, 6, FIRST, 10), Span(8, 9, SECOND, 1)), {})
    assert table.cell(line) == cell
