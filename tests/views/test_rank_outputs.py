"""Displays of ranks as outputs of a cell."""

import base64

from xla_nb.record.displays import Display, Shown
from xla_nb.views import rank_outputs

PNG = base64.b64encode(b"\x89PNG").decode()


def text(words, **more):
    return Display({"text/plain": words}, **more)


def figure(content=PNG, **metadata):
    data = {"image/png": content, "text/plain": "<Figure>"}
    return Display(data, {"image/png": metadata} if metadata else {})


def markdown(words, **more):
    return Display({"text/markdown": words, "text/plain": "<Markdown>"}, **more)


def shown(**ranks):
    return {int(rank[1:]): Shown(list(displays)) for rank, displays in ranks.items()}


def told(**ranks):
    """The text of each output for displays of ranks: `told(r0=[...], r1=[...])`."""
    return [one.data["text/plain"] for one in rank_outputs.outputs(shown(**ranks))]


def test_ranks_without_displays_have_no_output():
    assert rank_outputs.outputs(shown(r0=[], r1=[])) == []
    assert rank_outputs.counted(shown(r0=[])) == []


def test_each_display_is_an_output_below_its_rank():
    assert told(r0=[], r1=[text("a\nb"), figure()], r2=[text("c")]) == [
        *("[1]", "a\nb", "<Figure>", "[2]", "c")
    ]


def test_displays_are_passed_to_the_front_end_unchanged():
    display = markdown("**m**", metadata={"a": 1})
    _, own = rank_outputs.outputs(shown(r0=[display]))
    assert (own.data, own.metadata) == (display.data, display.metadata)


def test_equal_displays_of_ranks_are_shown_once():
    same = [figure(), text("same", id="a")]
    each = {"r0": same, "r1": [figure(), text("same", id="b")], "r2": same, "r3": [text("x")]}
    assert told(**each) == ["[0–2]", "<Figure>", "same", "[3]", "x"]
    head, *_ = rank_outputs.outputs(shown(**each))
    assert "<b>ranks 0–2</b>" in head.data["text/html"]


def test_result_is_marked_as_returned():
    displays = [text("a"), text("r", result=True)]
    assert told(r0=displays) == ["[0]", "a", "[0] returned", "r"]
    assert told(r0=displays[1:]) == ["[0] returned", "r"]


def test_displays_beyond_limit_are_counted():
    many = [text(str(number)) for number in range(99)]
    found = told(r0=[text("first")], r3=[*many, text("left"), text("out")])
    assert len(found) == 103
    assert found[-2:] == ["98", "… 2 more displays: run.displays"]


def test_displays_are_bounded_in_bytes():
    large = [text("x", nbytes=7_000_000)] * 3
    assert told(r0=large) == ["[0]", "x", "x", "… 1 more display: run.displays"]


def test_dropped_and_damaged_displays_are_counted():
    one = Shown([text("new")], dropped=12, unreadable=1)
    head, _ = rank_outputs.outputs({4: one})
    missing = "12 earlier displays left out: the newest 1 are kept"
    assert head.data["text/plain"] == f"[4] {missing} 1 display cut off or damaged"
    assert missing in head.data["text/html"]
