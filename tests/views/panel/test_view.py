"""The panel's messages, and its view in a real kernel with a client that uses only messages.

The page itself is tested in tests/browser.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.kernel import Notebook
from xla_nb.monitor.snapshot import Card, Diagnosis, Series, Snapshot
from xla_nb.record.sample import Sample
from xla_nb.views import facts
from xla_nb.views.panel.view import PanelNews

# ---------------------------------------------------------------- messages to the page


def snapshot(*cards, **about):
    return Snapshot(
        run="r", cell="Cell In[3]", headline="h", record="/r", now=1.0, cards=cards, **about
    )


def sample(**figures):
    return Sample(at=1.0, since=1.0, **figures)


def test_news_contains_only_changes():
    news = PanelNews()
    one, stepped = (Card(1, sample=sample(steps=steps)) for steps in (1, 2))
    first = news.of(snapshot(Card(0), one))
    assert first["ranks"] == [0, 1]
    assert 'data-rank="1"' in first["parts"]["ranks"]
    assert news.of(snapshot(Card(0), one)) == {}
    assert set(news.of(snapshot(Card(0), stepped, stopping="why"))) == {"about", "parts"}
    assert set(news.of(snapshot(Card(0), Card(1, "failed")))["parts"]) == {
        "about",
        "counts",
        "ranks",
    }


def test_passing_time_is_not_news():
    """The page itself counts the seconds."""
    news, began = PanelNews(), 1000.0
    whole = replace(snapshot(Card(0)), started=began, now=began + 0.2)
    news.of(whole)
    assert news.of(replace(whole, now=began + 0.7)) == {}


def test_news_has_details_of_selected_rank():
    told = PanelNews().of(snapshot(Card(0), Card(1, pid=77)), focus=1)
    assert told["about"]["focus"] == 1
    assert "pid 77" in told["parts"]["detail"]
    assert PanelNews().of(snapshot(Card(0)), focus=9)["parts"]["detail"] == ""


def test_changed_figures_are_sent_whole():
    news = PanelNews()

    def sent(lines, focus=None):
        shown = replace(snapshot(), series=(Series("loss", lines), Series("lr", {0: [(0, 1)]})))
        return [one["name"] for one in news.of(shown, focus).get("figures", ())]

    assert sent({0: [(0, 1.0)]}) == ["loss", "lr"]
    assert sent({0: [(0, 1.0)]}) == []
    assert sent({0: [(0, 1.0), (1, 2.0)]}) == ["loss"]
    assert sent({0: [(0, 1.0), (1, 2.0)]}, focus=0) == ["loss", "lr"]


def test_nonfinite_values_are_gaps_and_last_value_is_text():
    nothing = float("nan")
    lines = {0: [(0, nothing), (1, 2.0), (2, float("inf")), (3, 1.0)], 1: [(0, 0.1)]}
    told = PanelNews().of(replace(snapshot(), series=(Series("loss", lines),)))
    (chart,) = told["figures"]
    first, second = chart["lines"]
    assert (first["x"], first["y"], first["last"]) == ([0, 1, 2, 3], [None, 2.0, None, 1.0], "1")
    assert (second["name"], second["rank"], second["last"]) == ("rank 1", 1, "0.1")
    json.dumps(chart, allow_nan=False)


@pytest.mark.parametrize(
    ("exact", "told"), [(True, ("step", "207 ms")), (False, ("per sync", "≈ 210 ms"))]
)
def test_step_time_shows_only_known_digits(exact, told):
    seen = sample(items=9 * exact)
    step, *_ = facts.of_steps(Card(0, step=0.2068, sample=seen))
    assert (step.label, step.value) == told


def test_diagnosis_is_sent_with_level_and_ranks():
    late = Diagnosis("3 ranks have been waiting 16 s for rank 2, at line 6", "warning", (2,))
    about = PanelNews().of(snapshot(diagnosis=late))["about"]
    assert about["title"] == late.sentence
    parts = PanelNews().of(snapshot(diagnosis=late))["parts"]
    assert "waiting 16\xa0s for" in parts["title"]
    assert (about["level"], about["marked"]) == ("warning", [2])
    about = PanelNews().of(snapshot())["about"]
    assert (about["title"], about["level"], about["marked"]) == ("h", "calm", [])


def test_everything_is_sent_again_after_forget():
    news = PanelNews()
    first = news.of(snapshot(Card(0)))
    news.forget()
    assert news.of(snapshot(Card(0))) == first


# ---------------------------------------------------------------- in a kernel


class Page:
    """The messages of one cell, as a page receives them."""

    def __init__(self, messages):
        self.messages = messages

    def of(self, kind):
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    @property
    def news(self):
        contents = (m["data"].get("content", {}) for m in self.of("comm_msg"))
        return [message for message in contents if message.get("type") == "news"]

    @property
    def lines(self):
        return [one for message in self.news for one in message.get("lines", [])]

    @property
    def whole(self):
        """The latest value of each part of the news."""
        parts = {}
        for message in self.news:
            parts.update(message)
        return parts

    @property
    def shown(self):
        """The final displays of the cell, in order."""
        displays = {}
        for m in self.messages:
            if m["msg_type"] in ("display_data", "update_display_data"):
                displays[m["content"]["transient"]["display_id"]] = m["content"]["data"]
        return list(displays.values())


def launched(notebook: Notebook, code: str) -> Page:
    return Page(notebook.ok(code).messages)


PRINT = "%%xla_spawn -n 2 --view panel\nfor n in range(5):\n    print('line', n, rank)\n"
LINES = {(rank, f"line {n} {rank}") for n in range(5) for rank in (0, 1)}
HOLD = """
import pathlib, time
while not pathlib.Path({gate!r}).exists():
    time.sleep(0.02)
"""


def heard(page: Page) -> set[tuple[int, str]]:
    return {(one["rank"], text) for one in page.lines for text in one["lines"]}


def held(notebook: Notebook, gate: Path) -> Page:
    """The messages of ranks that print and then run until the page has received all lines."""

    def look(shown):
        if heard(Page(shown.messages)) >= LINES:
            gate.touch()

    return Page(notebook.run(PRINT + HOLD.format(gate=str(gate)), during=look).messages)


def test_page_receives_ranks_and_output(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert page.whole["ranks"] == [0, 1]
    assert any(
        "simulated TPU host" in m["parts"].get("about", "") for m in page.news if "parts" in m
    )
    assert heard(page) == LINES


def test_messages_are_numbered_without_gaps(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert [m["seq"] for m in page.news] == list(range(1, len(page.news) + 1))
    assert page.news[0]["whole"]
    assert not any("uplot" in message for message in page.news)  # the chart library


def test_hidden_snapshot_is_removed_before_the_panel(notebook):
    updates = [
        update["data"]["text/plain"]
        for update in launched(notebook, PRINT).of("update_display_data")
    ]
    assert updates[-2] == ""
    assert "2 ranks finished" in updates[-1]


def test_chart_library_is_sent_once_and_only_with_figures(notebook, tmp_path):
    report = PRINT.replace("    print", "    import xla_nb\n    xla_nb.report(n=n)\n    print")
    gate = tmp_path / "go"

    def look(shown):
        if any("figures" in message for message in Page(shown.messages).news):
            gate.touch()

    page = Page(notebook.run(report + HOLD.format(gate=str(gate)), during=look).messages)
    assert sum("uplot" in message for message in page.news) == 1


def test_flood_causes_at_most_twenty_bounded_messages_per_second(notebook):
    flood = "%%xla_spawn -n 2 --view panel -o flood\nimport time\nend = time.time() + 2\n"
    flood += "while time.time() < end:\n    print('x' * 100)"
    page = launched(notebook, flood)
    took = page.news[-1]["now"] - page.news[0]["now"]
    assert len(page.news) <= 20 * took + 2
    assert max(sum(len(one["lines"]) for one in m.get("lines", [])) for m in page.news) <= 1000
    sent = sum(len(one["lines"]) + one["skipped"] for one in page.lines)
    notebook.ok("total = sum(flood.output(r).count('\\n') for r in (0, 1))")
    assert sent <= int(notebook.value("total"))


def test_ended_run_leaves_html_and_text_without_the_widget(notebook):
    page = launched(notebook, PRINT)
    final, beside = page.shown
    assert set(final) == {"text/html", "text/plain", "application/vnd.xla-nb.run+json"}
    assert "2 ranks finished" in final["text/plain"]
    assert "line 4 1" in final["text/plain"]
    assert "line 4 1" in final["text/html"]
    assert beside["text/html"] == ""


def test_widget_of_ended_run_closes_after_time_to_load(notebook):
    page = launched(notebook, PRINT)
    opened = {m["comm_id"] for m in page.of("comm_open")}
    closed = {m["comm_id"] for m in page.of("comm_close")}  # may include an earlier widget
    assert not closed & opened  # a page still loading it would report an error
    notebook.ok("from xla_nb.views.panel import view\nwaits, view._LOADS = view._LOADS, 0.1")
    page = launched(notebook, PRINT)
    opened = {m["comm_id"] for m in page.of("comm_open")}
    closed |= {m["comm_id"] for m in page.of("comm_close")}
    while not closed >= opened:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "comm_close":
            closed.add(message["content"]["comm_id"])
    notebook.ok("view._LOADS = waits")


def test_saved_snapshot_is_displayed_from_the_start(notebook):
    page = launched(notebook, PRINT)
    widget, beside = page.of("display_data")[:2]
    assert "application/vnd.jupyter.widget-view+json" in widget["data"]
    assert "Cell In[" in beside["data"]["text/plain"]


def test_failed_cell_raises_a_short_error_below_the_panel(notebook):
    failed = notebook.run(
        "%%xla_spawn -n 2 --view panel\ndef f(rank):\n    raise ValueError('boom')"
    )
    assert failed.ename == "RunFailed"
    assert failed.below == "RunFailed: the run above shows why."
    (html, *_) = (data["text/html"] for data in Page(failed.messages).shown)
    assert "boom" in html
    assert "line 3" in html


def test_output_with_html_is_escaped(notebook):
    evil = "<script>alert(1)</script></pre></div><img src=x onerror=alert(2)>"
    page = launched(notebook, f"%%xla_spawn -n 1 --view panel\nprint({evil!r})")
    final = page.shown[0]["text/html"]
    assert "<script" not in final
    assert "<img src=x" not in final
    assert "&lt;script&gt;" in final


# ---------------------------------------------------------------- requests


# After it has printed, a rank is at the only line of its loop.
BEHIND = """%%xla_spawn -n 2 --view panel --bg -o behind
import time
for n in range(9000): print(n); time.sleep(0.1)
"""


@pytest.fixture
def behind(notebook):
    """The page of a background run in which both ranks have printed: `ask` sends a message and
    `answer` waits for one."""
    page = Asking(notebook, launched(notebook, BEHIND))
    printed = set()
    while printed != {0, 1}:
        printed |= {one["rank"] for one in page.answer("news").get("lines", [])}
    yield page
    notebook.ok(
        "import threading\nbehind.stop()\n"
        "for thread in threading.enumerate():\n"
        "    if thread.name == behind.name + '-view': thread.join(30)\n"
        "assert behind.done"
    )


class Asking:
    def __init__(self, notebook, page):
        self.notebook = notebook
        (opened,) = (m for m in page.of("comm_open") if "_esm" in m["data"]["state"])
        self.comm = opened["comm_id"]

    def ask(self, kind, **body):
        content = {
            "comm_id": self.comm,
            "data": {"method": "custom", "content": {"type": kind} | body},
        }
        client = self.notebook.client
        client.shell_channel.send(client.session.msg("comm_msg", content))

    def hear(self, wanted):
        """The first message that `wanted` accepts."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = self.notebook.client.get_iopub_msg(timeout=60)
            if wanted(message):
                return message
        raise AssertionError("the message never came")

    def answer(self, kind, **about):
        def wanted(message):
            told = message["content"].get("data", {}).get("content", {})
            about_this = {"type": kind, **about}.items() <= told.items()
            return message["msg_type"] == "comm_msg" and about_this

        return self.hear(wanted)["content"]["data"]["content"]


def test_page_can_request_whole_message(behind):
    behind.ask("whole")
    whole = behind.answer("news", whole=True)
    assert whole["ranks"] == [0, 1]


def test_whole_message_includes_earlier_lines(behind):
    behind.answer("news")
    behind.ask("whole")
    before = behind.answer("news", whole=True)["before"]
    told = [(one["rank"], one["skipped"], one["lines"][0]) for one in before]
    assert told == [(0, 0, "0"), (1, 0, "0")]


def test_stop_request_is_acknowledged_and_stops_the_run(behind, notebook):
    behind.ask("stop", request=7)
    assert behind.answer("ack")["request"] == 7
    behind.notebook.ok("assert behind._ended.wait(60)")
    assert "Stopped by the Stop button" in notebook.value("behind.state.stopping")


def test_stacks_show_the_line_of_each_rank(behind):
    behind.ask("stacks", request=8)
    told = behind.answer("stacks")["html"]
    assert "ranks 0, 1" in told
    assert re.search(r"Cell In\[\d+\], line 3", told)


def test_earlier_output_is_read_from_the_record(behind):
    behind.hear(
        lambda m: any(
            "9" in one["lines"]
            for one in m["content"].get("data", {}).get("content", {}).get("lines", [])
        )
    )
    behind.ask("earlier", request=9, rank=1)
    answer = behind.answer("earlier")
    assert answer["request"] == 9
    assert answer["lines"][:10] == [["out", str(n)] for n in range(10)]


def test_unknown_requests_and_other_files_are_ignored_and_logged(behind, notebook):
    notebook.ok(
        "import logging, io; log = io.StringIO()\n"
        "logging.getLogger('xla_nb.views.panel.view').addHandler(logging.StreamHandler(log))"
    )
    behind.ask("exec", code="1")
    behind.ask("earlier", request=9, rank="../x")
    behind.ask("stacks", request=8)
    behind.answer("stacks")  # the earlier requests have been handled
    logged = notebook.value("log.getvalue()")
    assert "'exec'" in logged
    assert "rank '../x'" in logged
    assert notebook.value("behind.done") == "False"
