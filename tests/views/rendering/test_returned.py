"""Results of ranks in saved HTML and text: merged if equal, and always bounded."""

from tests.views.rendering.test_html import rows
from xla_nb.messages import events
from xla_nb.monitor import sentences
from xla_nb.monitor.state import RunState
from xla_nb.views.rendering import returned


def of(*results, **numbers):
    """The results of ranks that returned objects with these reprs."""
    state = RunState()
    for rank, result in enumerate(results):
        each = {name: str(words[rank]) for name, words in numbers.items()}
        event = events.RankFinished(rank=rank, preview=result, nbytes=9, numbers=each)
        state.apply(events.decode(events.encode(event)))
    return sentences.returned(state)


def test_first_of_256_different_results_are_shown_and_rest_counted():
    shown = of(*map(repr, range(256)))
    assert returned.as_text(shown)[14:] == [
        "[14] returned 14",
        "[15] returned 15",
        "… and 240 more results",
    ]
    page = returned.as_html(shown)
    assert page.count("→") == 16
    assert "… and 240 more results" in page
    assert len(page) < 5_000


def test_first_ranks_have_columns_for_256_different_dicts():
    shown = of(*["{}"] * 256, loss=range(256))
    head, loss = rows(returned.as_html(shown))
    assert head == ["returned", *map(str, range(16))]
    assert loss == ["loss", *map(str, range(16))]
    assert returned.as_text(shown)[-1] == "… and 240 more results"
    assert len(returned.as_html(shown)) < 8_000


def test_equal_results_of_nonadjacent_ranks_are_merged():
    assert returned.as_text(of("1", "2", "1", "1")) == [
        "[0, 2, 3] returned 1",
        "[1] returned 2",
    ]


def test_numbers_have_enough_digits_to_differ():
    shown = of(*["{}"] * 2, loss=[1 / 3, 1 / 3 + 1e-9], lr=[1 / 3, 1 / 3], steps=["1", "1.0"])
    assert returned.as_text(shown)[1:] == [
        "loss      0.333333333  0.333333334",
        "lr        0.333333     0.333333",
        "steps     1            1.0",
    ]


def test_rounded_number_does_not_look_whole():
    shown = of(*["{}"] * 2, at=[1796056871.5, 1796056875.25], x=[0.0, 123456.789])
    assert returned.as_text(shown)[1:] == [
        "at        1796056871.5  1796056875.25",
        "x         0.0           123456.789",
    ]


def test_dicts_with_different_keys_are_shown_by_repr():
    state = RunState()
    for rank, each in enumerate(({"a": "1"}, {"b": "2"})):
        state.apply(events.RankFinished(rank=rank, preview=f"{each}", nbytes=9, numbers=each))
    assert returned.as_text(sentences.returned(state)) == [
        "[0] returned {'a': '1'}",
        "[1] returned {'b': '2'}",
    ]


def test_results_are_escaped_in_html_and_text():
    evil = "<script>alert(1)</script>\x1b[2J"
    shown = of(evil)
    assert "<script" not in returned.as_html(shown)
    assert "\x1b" not in returned.as_html(shown) + "".join(returned.as_text(shown))
    named = of("{}", **{"<b>evil": [1]})
    assert "<b>evil" not in returned.as_html(named)


def test_nothing_is_shown_without_results():
    assert returned.as_html(of("None", "")) == ""
    assert returned.as_text(of("None", "")) == []
