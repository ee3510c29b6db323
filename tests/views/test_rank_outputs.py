"""What ranks display, composed into outputs of a cell."""

import base64

import pytest

from xla_nb.record.displays import Display, Shown
from xla_nb.views import rank_outputs as composed

PNG = base64.b64encode(b"\x89PNG").decode()


def text(words, **more):
    return Display({"text/plain": words}, **more)


def html(markup, words="<HTML>"):
    return Display({"text/html": markup, "text/plain": words})


def figure(content=PNG, **metadata):
    data = {"image/png": content, "text/plain": "<Figure>"}
    return Display(data, {"image/png": metadata} if metadata else {})


def markdown(words):
    return Display({"text/markdown": words, "text/plain": "<Markdown>"})


def first(**ranks):
    """The HTML and the text of what ranks show: first(r0=[...], r1=[...])."""
    output = composed.outputs(shown(**ranks))[0]
    return output.data["text/html"], output.data["text/plain"]


def shown(**ranks):
    return {int(rank[1:]): Shown(list(displays)) for rank, displays in ranks.items()}


def test_without_displays_there_is_no_output():
    assert composed.outputs(shown(r0=[], r1=[])) == []
    assert composed.alone(shown(r0=[])) == {}


def test_the_first_rank_that_shows_is_open_and_the_others_are_folded():
    drawn, _ = first(r0=[], r1=[text("one")], r2=[text("two")])
    assert drawn.count("<details open>") == 1
    assert drawn.index("<details open>") < drawn.index("rank 1") < drawn.index("<details>")
    assert drawn.index("<details>") < drawn.index("rank 2")


def test_each_line_of_text_is_behind_its_rank():
    _, plain = first(r0=[text("a\nb")], r1=[html("<b>c</b>", "c")])
    assert plain == "[0] a\n[0] b\n[1] c"


def test_ranks_that_show_the_same_are_shown_once():
    same = [figure(), text("same", id="a")]
    drawn, plain = first(r0=same, r1=[figure(), text("same", id="b")], r2=same, r3=[text("x")])
    assert ">ranks 0–2</b>" in drawn
    assert drawn.count("<img") == 1
    assert plain == "[0–2] <Figure>\n[0–2] same\n[3] x"


def test_html_is_as_it_is_and_text_is_escaped():
    drawn, _ = first(r0=[html("<table><tr><td>1</td></tr></table>"), text("<b>&\x1b[31mred")])
    assert "<table><tr><td>1</td></tr></table>" in drawn
    assert "&lt;b&gt;&amp;red" in drawn


def test_images_are_data_of_their_size():
    drawn, _ = first(r0=[figure(width=300, height="x"), Display({"image/svg+xml": "<svg/>"})])
    assert f'<img alt="&lt;Figure&gt;" src="data:image/png;base64,{PNG}" width="300">' in drawn
    assert f"data:image/svg+xml;base64,{base64.b64encode(b'<svg/>').decode()}" in drawn


def test_a_result_is_marked_as_returned():
    drawn, _ = first(r0=[Display({"text/plain": "r"}, result=True)])
    assert ">returned</div>" in drawn


@pytest.mark.parametrize(
    "display",
    [
        markdown("**m**"),
        html("<div></div><SCRIPT>draw()</SCRIPT>"),
        Display({"application/vnd.vegalite.v5+json": {}, "text/plain": "chart", "text/html": "h"}),
        Display({"text/latex": "$x$"}, {"a": 1}),
    ],
)
def test_what_the_front_end_draws_itself_is_an_output_under_its_rank(display):
    main, note, own = composed.outputs(shown(r0=[], r2=[display]))
    assert "<SCRIPT" not in main.data["text/html"]
    assert "rank 2" in note.data["text/html"]
    assert note.data["text/plain"] == "[2]"
    assert (own.data, own.metadata) == (display.data, display.metadata)


def test_html_that_is_not_closed_does_not_reach_into_other_ranks():
    outputs = composed.outputs(
        shown(r0=[html("<!-- open"), html("</div></details>")], r1=[html("<b>1</b>")])
    )
    assert [one.data["text/html"] for one in outputs[2:]] == ["<!-- open", "</div></details>"]
    assert "<!--" not in outputs[0].data["text/html"]
    assert "<b>1</b>" in outputs[0].data["text/html"]


def test_what_is_no_image_stays_inside_its_attribute():
    drawn, _ = first(r0=[figure('"><!--')])
    assert "<!--" not in drawn


def test_an_image_without_a_sensible_size_is_shown():
    assert "<img" in first(r0=[figure(width=float("nan"), height=float("inf"))])[0]


def test_what_the_front_end_draws_itself_is_bounded_in_bytes():
    large = [Display({"text/markdown": "x", "text/plain": "x"}, nbytes=7_000_000)] * 3
    outputs = composed.outputs(shown(r0=large))
    assert [one.data["text/plain"] for one in outputs[1:]] == [
        "[0]",
        "x",
        "x",
        "… 1 more display: run.displays[0]",
    ]


def test_a_rank_is_named_once_for_all_that_follows():
    outputs = composed.outputs(shown(r0=[markdown("a"), markdown("b")], r1=[markdown("c")]))
    assert [one.data["text/plain"] for one in outputs[1:]] == [
        *("[0]", "<Markdown>", "<Markdown>", "[1]", "<Markdown>")
    ]


def test_of_many_that_the_front_end_draws_the_rest_is_counted():
    outputs = composed.outputs(shown(r3=[markdown(str(number)) for number in range(50)]))
    assert len(outputs) == 43
    assert outputs[-1].data["text/plain"] == "… 10 more displays: run.displays[3]"


def test_alone_they_are_text_in_the_one_output():
    bundle = composed.alone(shown(r0=[markdown("**m**"), text("t")]))
    assert "&lt;Markdown&gt;" in bundle["text/html"]
    assert bundle["text/plain"] == "[0] <Markdown>\n[0] t"


def test_what_is_left_out_is_told_with_numbers():
    one = Shown([text("new")], dropped=12, unreadable=1)
    drawn, plain = (
        composed.outputs({4: one})[0].data[kind] for kind in ("text/html", "text/plain")
    )
    told = "12 earlier displays left out: the newest 1 are kept"
    assert told in drawn
    assert "1 display cut off or damaged" in drawn
    assert plain.splitlines()[0] == f"[4] … {told}"


def test_the_html_is_bounded_and_says_where_the_rest_is(monkeypatch):
    monkeypatch.setattr(composed, "LARGEST", 5000)
    drawn, _ = first(r0=[figure("A" * 3000), figure("B" * 3000)], r1=[text("small")])
    assert "AAA" in drawn
    assert "BBB" not in drawn
    assert "3 KiB left out here: <code>run.displays[0][1]</code>" in drawn
    assert "small" in drawn


def test_a_long_text_is_cut_in_html_and_whole_in_text():
    drawn, plain = first(r0=[text("x" * 30_000)])
    assert "… 10,000 more characters" in drawn
    assert plain.count("x") == 30_000
