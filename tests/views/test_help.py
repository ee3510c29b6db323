"""What `name?` shows of an object on a rank."""

from xla_nb.protocol.inspection import About
from xla_nb.views.help import as_text


def test_it_has_ipythons_headings():
    told = About("f", True, "function", "<function f>", "", "<cell>", 3, "(x)", "Doc\nof f.")
    assert as_text(told, 0).splitlines() == [
        "On rank 0",
        "Signature:      f(x)",
        "Docstring:",
        "Doc",
        "of f.",
        "Type:           function",
        "String form:    <function f>",
        "File:           <cell>, line 3",
    ]


def test_its_source_comes_instead_of_its_docstring():
    told = About("f", True, "function", doc="Doc.", source="def f():\n    pass")
    assert "Doc." not in as_text(told, 0)
    assert as_text(told, 0).endswith("Source:\ndef f():\n    pass")


def test_what_is_not_found_is_said():
    assert as_text(About("f", False), 2) == "Object `f` not found on rank 2."


def test_control_characters_of_ranks_are_harmless():
    assert "\x1b" not in as_text(About("f", True, "str", "\x1b[2J"), 0)
