"""The ranks' variables as a table, in text and HTML."""

import html
import re

import torch

from tests.monitor.test_variable_comparison import pending
from tests.support.variables import compared
from xla_nb.monitor.variable_comparison import compare
from xla_nb.views import variables
from xla_nb.views.variables import Variables


def table(*namespaces):
    return Variables(compared(*namespaces), len(namespaces))


def words(page):
    """The text of HTML without whitespace."""
    return "".join(html.unescape(re.sub("<[^>]*>", "", page)).split())


def test_table_describes_variables_and_compares_ranks():
    shown = table(
        {"lr": 0.1, "model": torch.ones(4, 3)},
        {"lr": 0.1, "model": torch.ones(4, 3)},
        {"lr": 0.1, "model": torch.zeros(4, 3)},
    )
    assert repr(shown).splitlines() == [
        "Name   Type    Value           Device  Size  Ranks  Across ranks",
        "model  Tensor  (4, 3) float32  cpu     48 B  0–2    rank 2 differs",
        "    norm 3.4641 (ranks 0, 1), 0 (rank 2)",
        "lr     float   0.1                           0–2    equal",
        "2 names on 3 ranks: 1 differs",
    ]


def test_html_has_the_same_content():
    shown = table({"a": 1, "b": [1.0, 2.0]}, {"a": 1, "b": [1.0, 3.0]}, {"a": 1, "b": [1.0, 2.0]})
    page = words(shown._repr_html_())
    for line in repr(shown).splitlines()[1:]:
        for word in line.split():
            assert word in page


def test_pending_value_is_explained():
    shown = Variables(compare({rank: [pending("x")] for rank in range(2)}), 2)
    assert repr(shown).endswith("Pending: recorded on the device and not computed yet.")
    assert "pending on ranks 0, 1" in repr(shown)


def test_text_columns_are_truncated_except_the_comparison():
    name = "a_name_of_a_variable_" * 4
    first = repr(table({name: "text " * 50}, {name: "other " * 50})).splitlines()[1]
    assert first.startswith(f"{name[:23]}…  str")
    assert first.endswith("  differs by rank")


def test_markup_and_control_characters_are_escaped():
    shown = table({"x": "<script>", "d": {"<b>\n\x1b[31m": 1}}, {"x": "<b>", "d": {}})
    assert "<script>" not in shown._repr_html_()
    assert "\x1b" not in repr(shown) + shown._repr_html_()


def test_many_names_are_bounded_but_differing_ones_are_shown():
    namespace = {f"x{number}": [str(number)] * 9 for number in range(1000)}
    shown = table(namespace, {**namespace, "x999": 0})
    assert "… and 900 more names" in repr(shown)
    assert "x999" in repr(shown)
    assert len(shown._repr_html_()) < 200_000


def test_many_details_are_bounded():
    one = {f"x{n}": {f"k{k}": str(k) for k in range(90)} for n in range(100)}
    other = {f"x{n}": {f"k{k}": "?" for k in range(90)} for n in range(100)}
    shown = table(one, other)
    assert "… and 78 more lines" in repr(shown)
    assert len(repr(shown).splitlines()) < 3 * variables.ALL_LINES
    assert len(shown._repr_html_()) < 300_000


def test_table_is_a_mapping_by_name():
    shown = table({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert set(shown) == {"a", "b"}
    assert shown["b"].verdict == "no majority"


def test_table_without_names_is_one_line():
    assert repr(table({}, {})) == "0 names on 2 ranks"
    assert "0 names on 2 ranks" in table({}, {})._repr_html_()


def test_sizes_and_verdicts_do_not_wrap():
    shown = table({"a": torch.ones(3000)}, {"a": torch.zeros(3000)})._repr_html_()
    whole = words("".join(re.findall('<span style="[^"]*nowrap">(.*?)</td>', shown)))
    assert "12KiB" in whole
