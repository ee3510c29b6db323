"""`display` and related functions in a rank write to the rank's journal."""

import base64
import os
import sys
import threading
import types

import pytest

from xla_nb.rank import displays
from xla_nb.rank.displays import Screen
from xla_nb.record.displays import LARGEST, read
from xla_nb.record.files import Losses, Record

PNG = b"\x89PNG\r\n\x1a\nnot really"


class Drawn:
    """An object with an HTML representation."""

    def __repr__(self):
        return "Drawn()"

    def _repr_html_(self):
        return "<b>drawn</b>"


class Pictured:
    def _repr_png_(self):
        return PNG


IPYTHONS = "IPython.display", "IPython.core.display", "IPython.core.display_functions"


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Starts a rank's screen; returns the displays that it shows."""
    record = Record(tmp_path)
    displays.screens.begin(Screen(record, 0, Losses(tmp_path, print)))
    for module in filter(None, map(sys.modules.get, IPYTHONS)):
        for name in ("display", "publish_display_data", "clear_output"):
            monkeypatch.setitem(vars(module), name, None)  # undone afterwards
    displays._take_ipythons_place()
    yield lambda: read(record.displays(0))
    displays.screens.end()


def texts(shown):
    return [display.text for display in shown()]


# ---------------------------------------------------------------- display


def test_object_is_displayed_in_all_representations(shown):
    displays.display(Drawn())
    (one,) = shown()
    assert one.data == {"text/plain": "Drawn()", "text/html": "<b>drawn</b>"}


def test_each_object_is_a_separate_display(shown):
    displays.display("text", 1, [2])
    assert texts(shown) == ["'text'", "1", "[2]"]


def test_image_bytes_are_base64_encoded(shown):
    displays.display(Pictured())
    assert base64.b64decode(shown()[0].data["image/png"]) == PNG


def test_raw_bundle_is_displayed_unchanged(shown):
    displays.display({"text/markdown": "**m**"}, raw=True, metadata={"a": 1})
    (one,) = shown()
    assert (one.data, one.metadata) == ({"text/markdown": "**m**"}, {"a": 1})
    with pytest.raises(TypeError, match="must be a dict"):
        displays.display("no bundle", raw=True)


def test_failing_representation_is_reported_and_others_are_shown(shown, capsys):
    class Broken(Drawn):
        def _repr_html_(self):
            raise ValueError("cannot draw")

    displays.display(Broken())
    assert shown()[0].data == {"text/plain": "Drawn()"}
    assert "ValueError: cannot draw" in capsys.readouterr().err


def test_data_invalid_in_json_is_reported_in_one_line(shown, capsys):
    displays.display({"application/json": object()}, raw=True)
    assert shown() == []
    assert capsys.readouterr().err == (
        "Not displayed: not valid JSON (application/json): TypeError: "
        "Object of type object is not JSON serializable\n"
    )


def test_representation_of_invalid_type_is_omitted(shown):
    class Odd:
        def _repr_html_(self):
            return 7

    with pytest.warns(match="html formatter returned invalid type"):
        displays.display(Odd())
    assert list(shown()[0].data) == ["text/plain"]


def test_widgets_are_shown_as_text(shown):
    bundle = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Box()"}
    displays.display(bundle, raw=True)
    assert shown()[0].data == {"text/plain": "Box()"}


def test_oversized_representation_is_omitted_with_a_note(shown):
    displays.display({"text/html": "x" * (LARGEST + 1), "text/plain": "big"}, raw=True)
    (one,) = shown()
    assert set(one.data) == {"text/plain"}
    assert one.text == "big\n(text/html of 8 MiB omitted: the limit per display is 8 MiB)"


def test_long_text_is_truncated_with_the_omitted_count(shown):
    displays.display({"text/plain": "x" * 150_000}, raw=True)
    assert texts(shown)[0].endswith("x\n… 50,000 more characters")


def test_surrogates_become_question_marks(shown):
    displays.display({"text/plain": "a\udc80b"}, raw=True)
    assert texts(shown) == ["a?b"]


# ---------------------------------------------------------------- ids and clearing


def test_handle_updates_its_display(shown):
    handle = displays.display("first", display_id=True)
    displays.display("other")
    handle.update("second")
    assert texts(shown) == ["'second'", "'other'"]
    assert handle.display_id == shown()[0].id


def test_display_id_may_be_given(shown):
    displays.display("first", display_id="mine")
    displays.display("second", display_id="mine", update=True)
    displays.display("third", display_id="unknown", update=True)
    assert texts(shown) == ["'second'", "'third'"]
    with pytest.raises(TypeError, match="display_id required"):
        displays.display("x", update=True)


def test_clear_output_clears_immediately_or_before_the_next_display(shown):
    displays.display("one")
    displays.clear_output()
    assert shown() == []
    displays.display("two")
    displays.clear_output(wait=True)
    assert texts(shown) == ["'two'"]
    displays.display("three")
    assert texts(shown) == ["'three'"]


def test_clearing_an_empty_output_writes_nothing(shown, tmp_path):
    for _ in range(100):
        displays.clear_output(wait=True)
    assert Record(tmp_path).displays(0).read_bytes() == b""


def test_immediate_clear_after_a_waiting_clear_removes_everything(shown):
    displays.display("one")
    displays.clear_output(wait=True)
    displays.clear_output()
    assert shown() == []


def test_repeated_waiting_clears_write_one_line(shown, tmp_path):
    displays.display("one")
    for _ in range(100):
        displays.clear_output(wait=True)
    assert Record(tmp_path).displays(0).read_bytes().count(b"\n") == 2


# ---------------------------------------------------------------- threads and processes


def test_clear_output_clears_displays_of_forked_processes(shown):
    displays.display("one")
    displays.clear_output()
    if (pid := os.fork()) == 0:
        displays.display("of the child")
        os._exit(0)
    os.waitpid(pid, 0)
    displays.clear_output()
    assert shown() == []


def test_ipython_display_functions_write_to_the_journal(shown):
    from IPython.display import HTML, clear_output, display, publish_display_data

    display(HTML("<i>h</i>"))
    display("a", display_id=True).update("b")
    publish_display_data({"text/plain": "published"})
    drawn = [one.data.get("text/html", one.text) for one in shown()]
    assert drawn == ["<i>h</i>", "'b'", "published"]
    clear_output()
    assert shown() == []


def test_thread_displays_for_its_rank(shown):
    thread = threading.Thread(target=displays.display, args=("there",))
    thread.start()
    thread.join()
    assert texts(shown) == ["'there'"]


def test_forked_process_displays_for_its_rank(shown):
    child = os.fork()
    if child == 0:
        displays.display("there")
        os._exit(0)
    os.waitpid(child, 0)
    assert texts(shown) == ["'there'"]


def test_display_outside_a_rank_prints_text(capsys):
    displays.display(Drawn())
    displays.clear_output()
    assert capsys.readouterr().out == "Drawn()\n"


def test_unwritable_journal_is_reported_without_raising(tmp_path):
    told = []
    losses = types.SimpleNamespace(note=lambda what, problem: told.append(what))
    displays.screens.begin(Screen(Record(tmp_path / "gone"), 0, losses))
    try:
        displays.display("lost")
    finally:
        displays.screens.end()
    assert told == ["all of its displays"]


# ---------------------------------------------------------------- results of functions


def test_result_with_rich_representation_is_displayed(shown):
    displays.show_what_is_left(Drawn())
    (one,) = shown()
    assert one.result
    assert one.data["text/html"] == "<b>drawn</b>"


@pytest.mark.parametrize("value", [1, None, "text", [Drawn()], {"a": 1}, Drawn, types])
def test_plain_results_are_not_displayed(value, shown):
    displays.show_what_is_left(value)
    assert shown() == []


def test_failing_representation_of_a_result_is_harmless(shown, capsys):
    class Broken(Drawn):
        def _repr_html_(self):
            raise SystemExit(3)

    displays.show_what_is_left(Broken())
    assert shown() == []
    assert "SystemExit" in capsys.readouterr().err
