"""The panel's messages, and its view in a real kernel whose client speaks only the messages.

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
from tests.support.run_double import Run
from xla_nb.messages.events import HangReported, StackGroup
from xla_nb.record.sample import Sample
from xla_nb.run.activity import Slot
from xla_nb.views import facts
from xla_nb.views.observer import Observer
from xla_nb.views.panel import messages, widget
from xla_nb.views.panel.messages import PanelNews, Turns, fault
from xla_nb.views.snapshot import Bar, Card, Diagnosis, Snapshot, Trouble

# ---------------------------------------------------------------- from the page

VALID = [
    {"type": "whole", "run": "r", "page": "p"},
    {"type": "stop", "run": "r", "request": 1},
    {"type": "stacks", "run": "r", "request": 2},
    {"type": "focus", "run": "r", "rank": None},
    {"type": "focus", "run": "r", "rank": 3},
    {
        "type": "earlier",
        "run": "r",
        "request": 3,
        "rank": None,
        "stream": "err",
        "before": 10,
        "count": 5,
    },
]


@pytest.mark.parametrize("message", VALID, ids=lambda message: message["type"])
def test_a_valid_message_has_no_fault(message):
    assert fault(message, "r") == ""


@pytest.mark.parametrize("message", VALID, ids=lambda message: message["type"])
def test_a_message_for_another_run_is_refused(message):
    assert "for run 'r'" in fault(message, "another")


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        "stop",
        {},
        {"type": "exec", "run": "r"},
        {"type": ["stop"], "run": "r"},
        {"type": "stop", "run": "r"},
        {"type": "stop", "run": "r", "request": "1"},
        {"type": "stop", "run": "r", "request": True},
        {"type": "focus", "run": "r", "rank": "0"},
        {"type": "focus", "run": "r"},
        VALID[-1] | {"stream": "../../etc/passwd"},
        VALID[-1] | {"before": -1},
        VALID[-1] | {"rank": "../../x"},
        VALID[-1] | {"count": 1.5},
        VALID[-1] | {"count": -1},
    ],
    ids=repr,
)
def test_any_other_message_is_refused(message):
    assert fault(message, "r")


# ---------------------------------------------------------------- to the page


def snapshot(*cards, **about):
    return Snapshot(
        run="r", cell="Cell In[3]", headline="h", record="/r", now=1.0, cards=cards, **about
    )


@pytest.fixture
def observer(tmp_path):
    return Observer(Run(tmp_path))


def sample(**figures):
    return Sample(at=1.0, since=1.0, **figures)


def test_news_has_only_what_changed(observer):
    news = PanelNews()
    stepped = Card(1, sample=sample(steps=2))
    first = news.of(snapshot(Card(0), Card(1)), observer)
    assert [card["rank"] for card in first["cards"]] == [0, 1]
    assert news.of(snapshot(Card(0), Card(1)), observer) == {}
    assert news.of(snapshot(Card(0), stepped), observer)["cards"][0]["rank"] == 1
    assert set(news.of(snapshot(Card(0), stepped, stopping="why"), observer)) == {"about"}


def test_a_newer_sample_with_the_same_figures_is_no_news(observer):
    news = PanelNews()
    news.of(snapshot(Card(0, sample=Sample(at=1.0, since=1.0, cpu=1.0))), observer)
    assert news.of(snapshot(Card(0, sample=Sample(at=2.0, since=1.0, cpu=1.5))), observer) == {}


def test_points_are_sent_once_and_replaced_when_thinned_out(observer):
    news = PanelNews()
    line = observer._line("loss", 0)
    line.limit = 4
    sent = []
    for n in range(5):
        line.add(n, float(n), 0.5 * n)
        (one,) = news.of(snapshot(), observer)["figures"]
        sent.append((one["replace"], one["points"]))
    assert sent[:2] == [(True, [[0, 0.0, 0.0]]), (False, [[1, 1.0, 0.5]])]
    assert sent[4] == (True, [[0, 0, 0], [2, 2, 1], [4, 4, 2]])
    assert "figures" not in news.of(snapshot(), observer)


def test_the_newest_point_is_sent_also_where_it_is_not_kept(observer):
    news = PanelNews()
    line = observer._line("loss", 0)
    line.limit = 2
    shown = []
    for n in range(12):
        line.add(n, float(n))
        (one,) = news.of(snapshot(), observer)["figures"]
        shown = [] if one["replace"] else shown[: len(shown) - one["drops"]]
        shown += [x for x, *_ in one["points"]]
        assert shown == [x for x, _ in line.whole()]
        assert shown[-1] == n
        assert "figures" not in news.of(snapshot(), observer)


def test_nan_and_infinity_are_told_by_name(observer):
    observer._line("loss", 0).add(0, float("nan"))
    observer._line("loss", 0).add(1, float("inf"))
    (sent,) = PanelNews().of(snapshot(), observer)["figures"]
    assert sent["points"] == [[0, "NaN", 0], [1, "Infinity", 0]]
    json.dumps(sent, allow_nan=False)


def test_only_seconds_that_changed_are_sent(observer):
    news = PanelNews()
    past, present = Slot(100, running=1.0), Slot(101, compiling=0.125, others=0.25)
    first = news.of(snapshot(Card(0, lane=(past, present)), Card(1)), observer)
    assert first["lanes"] == [
        {"rank": 0, "slots": [[100, 0, 1, 0, 0, 0], [101, 0.12, 0, 0.25, 0, 0]]},
    ]
    later = replace(present, data=0.5), Slot(102, running=0.25)
    second = news.of(snapshot(Card(0, lane=(past, *later)), Card(1)), observer)
    assert second["lanes"] == [
        {"rank": 0, "slots": [[101, 0.12, 0, 0.25, 0.5, 0], [102, 0, 0.25, 0, 0, 0]]},
    ]
    assert "lanes" not in news.of(snapshot(Card(0, lane=(past, *later)), Card(1)), observer)


def test_lanes_are_sent_again_after_forget(observer):
    news, cards = PanelNews(), [Card(n, lane=(Slot(100, running=1.0),)) for n in (0, 1)]
    news.of(snapshot(*cards), observer)
    news.forget([1])
    assert [one["rank"] for one in news.of(snapshot(*cards), observer)["lanes"]] == [1]


def test_of_many_ranks_only_the_one_in_focus_has_a_lane(observer):
    cards = [Card(n, lane=(Slot(100, running=1.0),)) for n in range(65)]
    assert len(PanelNews().of(snapshot(*cards[:64]), observer)["lanes"]) == 64
    assert "lanes" not in PanelNews().of(snapshot(*cards), observer)
    (lane,) = PanelNews().of(snapshot(*cards), observer, 7)["lanes"]
    assert lane["rank"] == 7


def test_a_card_has_its_step_waits_and_memory_in_words_as_saved(observer):
    rank = Card(0, step=0.0312345, waits=0.27612, sample=sample(memory=3 << 20))
    (card,) = PanelNews().of(snapshot(rank), observer)["cards"]
    assert (card["waits"], card["memory"]) == (0.28, 3 << 20)
    told = {fact["id"]: fact["value"] for fact in card["facts"]}
    assert told == {fact.id: fact.value for fact in facts.in_table(rank, snapshot(rank))}
    assert told == {"step": "≈ 31 ms", "waits": "28 %", "memory": "3 MiB"}
    (card,) = PanelNews().of(snapshot(Card(0)), observer)["cards"]
    assert (card["waits"], card["memory"], card["facts"]) == (None, None, [])


@pytest.mark.parametrize(
    ("exact", "told"), [(True, ("step", "207 ms")), (False, ("per sync", "≈ 210 ms"))]
)
def test_the_time_of_a_step_has_the_digits_that_are_known(exact, told):
    seen = sample(items=9 * exact)
    step, *_ = facts.of_steps(Card(0, step=0.2068, sample=seen))
    assert (step.label, step.value) == told


def test_the_diagnosis_is_sent_with_its_level_and_ranks(observer):
    late = Diagnosis("3 ranks have waited 16 s for rank 2, at line 6", "warning", (2,))
    about = PanelNews().of(snapshot(diagnosis=late), observer)["about"]
    assert about["diagnosis"] == {
        "sentence": late.sentence.replace("16 s", "16\xa0s"),
        "level": "warning",
        "ranks": [2],
    }
    assert PanelNews().of(snapshot(), observer)["about"]["diagnosis"] is None


def test_everything_is_sent_again_after_forget(observer):
    news = PanelNews()
    news.of(snapshot(Card(0)), observer)
    news.forget()
    assert set(news.of(snapshot(Card(0)), observer)) == {
        "about",
        "bar",
        "troubles",
        "hang",
        "cards",
    }


def test_a_card_has_facts_with_ids_labels_and_values_in_order(observer):
    figures = sample(memory=3 << 29, steps=1204)
    rank = Card(3, host="w-1", pid=77, cpu=0.97, sample=figures)
    (card,) = PanelNews().of(snapshot(rank), observer)["cards"]
    assert card["from"] == "w-1 · pid 77"
    assert card["facts"] == [
        {"id": "memory", "label": "memory", "value": "1.5 GiB"},
        {"id": "cpu", "label": "CPU", "value": "97 %"},
        {"id": "steps", "label": "syncs", "value": "1,204"},
    ]


def ids_that_the_page_knows():
    """The ids of facts in the page's style sheet, and those that its script compares with."""
    style = Path(messages.__file__).with_name("panel.css").read_text("utf-8")
    compared = re.findall(r'\bid === "([^"]+)"', widget.joined())
    return {*compared, *re.findall(r'\[data-fact="([^"]+)"\]', style)}


def test_a_changed_label_changes_no_id_that_the_page_knows(observer, monkeypatch):
    relabeled = tuple(kind._replace(label=f"new {kind.label}") for kind in facts._FACTS)
    monkeypatch.setattr(facts, "_FACTS", relabeled)
    figures = sample(memory=1, device_used=1, compiles=1, fallbacks={"aten::nonzero": 1})
    (card,) = PanelNews().of(snapshot(Card(0, sample=figures)), observer)["cards"]
    assert all(fact["label"].startswith("new ") for fact in card["facts"])
    known = ids_that_the_page_knows()
    assert {"device", "fallbacks"} <= known <= {fact["id"] for fact in card["facts"]}


def test_a_bar_has_a_share_and_words(observer):
    known, endless = Bar("epoch", 250, 1000, 12.5, 30), Bar("", 3, None)
    news = PanelNews().of(snapshot(Card(0, bars=(known, endless)), bar=known), observer)
    sent = {"label": "epoch", "part": 0.25, "done": "250 of 1,000", "left": "12.5/s · 30 s to go"}
    assert news["bar"] == sent
    without = {"label": "", "part": None, "done": "3 done", "left": ""}
    assert news["cards"][0]["bars"] == [sent, without]


def trouble(*ranks, first=False):
    return Trouble(ranks=ranks, first=first, title="t", place="", text="")


def test_an_error_names_its_ranks_and_the_first_of_them(observer):
    cards = (*(Card(rank, "failed") for rank in range(4)), Card(4, "died"))
    troubles = (trouble(2, 0, 1, first=True), trouble(4))
    several = PanelNews().of(snapshot(*cards, troubles=troubles), observer)["troubles"]
    assert [one["who"] for one in several] == ["ranks 0–2 failed, rank 2 first", "rank 4 died"]
    assert [one["open"] for one in several] == [True, False]
    (alone,) = PanelNews().of(snapshot(*cards, troubles=troubles[1:]), observer)["troubles"]
    assert (alone["who"], alone["open"]) == ("rank 4 died", True)


def test_a_hang_is_sent_with_its_groups_once_and_then_that_there_is_none(observer):
    group = StackGroup((0, 1, 2), "Cell In[3], line 9", "  stack", "note")
    hang = HangReported(verdict="Ranks 0–2 hang", ranks=(), groups=(group,), at=30.0)
    news = PanelNews()
    sent = news.of(replace(snapshot(Card(0)), hang=hang), observer)["hang"]
    assert sent == {
        "verdict": "Ranks 0–2 hang",
        "groups": [{**vars(group), "who": "ranks 0–2"}],
    }
    assert "hang" not in news.of(replace(snapshot(Card(0)), hang=hang), observer)
    assert news.of(snapshot(Card(0)), observer)["hang"] is None


def test_hosts_are_counted_with_the_reasons_of_lost_ones(observer):
    whole = snapshot(hosts=("a", "b", "c"), lost={"b": "its node is gone"})
    about = PanelNews().of(whole, observer)["about"]
    assert (about["host"], about["lost"]) == ("3 hosts, 1 lost", {"b": "its node is gone"})


def test_only_forgotten_ranks_are_sent_again(observer):
    news = PanelNews()
    cards = [Card(rank) for rank in range(5)]
    news.of(snapshot(*cards), observer)
    news.forget([1, 3])
    assert [card["rank"] for card in news.of(snapshot(*cards), observer)["cards"]] == [1, 3]


def test_turns_start_again_at_the_end():
    turns = Turns(2)
    assert [list(turns.take(range(5))) for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]
    assert list(turns.take(range(2))) == [0, 1]


# ---------------------------------------------------------------- in a kernel


class Page:
    """What one cell's messages tell a page."""

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
        """The latest of each part of the news."""
        parts = {}
        for message in self.news:
            parts.update(message)
        return parts

    @property
    def shown(self):
        """The displays of the cell at its end, in order."""
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
    """What is told of ranks that print, and then live on until the page has heard of it all."""

    def look(shown):
        if heard(Page(shown.messages)) >= LINES:
            gate.touch()

    return Page(notebook.run(PRINT + HOLD.format(gate=str(gate)), during=look).messages)


def test_the_page_gets_ranks_and_output(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert {card["rank"] for m in page.news for card in m.get("cards", [])} == {0, 1}
    assert page.whole["about"]["simulated"]
    assert page.whole["about"]["ranks"] == 2
    assert heard(page) == LINES


def test_messages_are_numbered_without_gaps(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert [m["seq"] for m in page.news] == list(range(1, len(page.news) + 1))
    assert page.news[0]["whole"]


def test_a_flood_makes_at_most_twenty_bounded_messages_per_second(notebook):
    flood = "%%xla_spawn -n 2 --view panel -o flood\nimport time\nend = time.time() + 2\n"
    flood += "while time.time() < end:\n    print('x' * 100)"
    page = launched(notebook, flood)
    took = page.news[-1]["now"] - page.news[0]["now"]
    assert len(page.news) <= 20 * took + 2
    assert max(sum(len(one["lines"]) for one in m.get("lines", [])) for m in page.news) <= 1000
    sent = sum(len(one["lines"]) + one["skipped"] for one in page.lines)
    notebook.ok("total = sum(flood.output(r).count('\\n') for r in (0, 1))")
    assert sent <= int(notebook.value("total"))


def test_an_ended_run_leaves_html_and_text_without_the_widget(notebook):
    page = launched(notebook, PRINT)
    final, beside = page.shown
    assert set(final) == {"text/html", "text/plain", "application/vnd.xla-nb.run+json"}
    assert "2 ranks finished" in final["text/plain"]
    assert "line 4 1" in final["text/plain"]
    assert "line 4 1" in final["text/html"]
    assert beside["text/html"] == ""


def test_the_widget_of_an_ended_run_is_closed_when_a_page_has_had_time_to_load_it(notebook):
    page = launched(notebook, PRINT)
    opened = {m["comm_id"] for m in page.of("comm_open")}
    closed = {m["comm_id"] for m in page.of("comm_close")}  # perhaps of one before
    assert not closed & opened  # a page that loads it would report an error
    notebook.ok("from xla_nb.views.panel import widget\nwaits, widget._LOADS = widget._LOADS, 0.1")
    page = launched(notebook, PRINT)
    opened = {m["comm_id"] for m in page.of("comm_open")}
    closed |= {m["comm_id"] for m in page.of("comm_close")}
    while not closed >= opened:
        message = notebook.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "comm_close":
            closed.add(message["content"]["comm_id"])
    notebook.ok("widget._LOADS = waits")


def test_a_saved_snapshot_is_displayed_from_the_start(notebook):
    page = launched(notebook, PRINT)
    widget, beside = page.of("display_data")[:2]
    assert "application/vnd.jupyter.widget-view+json" in widget["data"]
    assert "Cell In[" in beside["data"]["text/plain"]


def test_a_failed_cell_raises_a_short_error_beside_the_panel(notebook):
    failed = notebook.run(
        "%%xla_spawn -n 2 --view panel\ndef f(rank):\n    raise ValueError('boom')"
    )
    assert failed.ename == "RunFailed"
    assert failed.below == "RunFailed: the run above shows why."
    (html, *_) = (data["text/html"] for data in Page(failed.messages).shown)
    assert "boom" in html
    assert "line 3" in html


def test_output_that_looks_like_html_is_escaped(notebook):
    evil = "<script>alert(1)</script></pre></div><img src=x onerror=alert(2)>"
    page = launched(notebook, f"%%xla_spawn -n 1 --view panel\nprint({evil!r})")
    final = page.shown[0]["text/html"]
    assert "<script" not in final
    assert "<img src=x" not in final
    assert "&lt;script&gt;" in final


# ---------------------------------------------------------------- requests


# Once a rank has printed, it is at the one line of its loop.
BEHIND = """%%xla_spawn -n 2 --view panel --bg -o behind
import time
for n in range(30000): print(n); time.sleep(0.02)
"""


@pytest.fixture
def behind(notebook):
    """The page of a background run whose ranks have both printed: `ask` sends a message, `answer`
    waits for one."""
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
        self.run = opened["data"]["state"]["run"]

    def ask(self, kind, **body):
        content = {
            "comm_id": self.comm,
            "data": {"method": "custom", "content": {"type": kind, "run": self.run} | body},
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


def test_everything_is_sent_again_at_the_pages_request(behind):
    behind.ask("whole", page="p")
    whole = behind.answer("news", whole=True)
    assert [card["rank"] for card in whole["cards"]] == [0, 1]


def test_a_page_that_asks_for_the_first_time_gets_the_lines_before(behind):
    behind.answer("news")
    behind.ask("whole", page="reloaded")
    news = behind.answer("news", whole=True)
    assert news["pages"] == ["reloaded"]
    assert [(one["rank"], one["start"], one["lines"][:2]) for one in news["before"]] == [
        (0, 0, ["0", "1"]),
        (1, 0, ["0", "1"]),
    ]
    behind.ask("whole", page="reloaded")
    assert "before" not in behind.answer("news", whole=True)


def test_a_stop_request_is_acknowledged_and_stops_the_run(behind, notebook):
    behind.ask("stop", request=7)
    assert behind.answer("ack")["request"] == 7
    behind.notebook.ok("assert behind._ended.wait(60)")
    assert "Stopped by the Stop button" in notebook.value("behind.state.stopping")


def test_stacks_name_the_line_of_each_rank(behind):
    behind.ask("stacks", request=8)
    (group,) = behind.answer("stacks")["groups"]
    assert (group["ranks"], group["who"]) == ([0, 1], "ranks 0, 1")
    assert re.fullmatch(r"Cell In\[\d+\], line 3", group["place"])


def test_earlier_output_comes_from_the_record(behind):
    behind.hear(
        lambda m: any(
            one["lines"] and one["start"] > 20
            for one in m["content"].get("data", {}).get("content", {}).get("lines", [])
        )
    )
    behind.ask("earlier", request=9, rank=1, stream="out", before=8, count=3)
    answer = behind.answer("earlier")
    assert (answer["start"], answer["lines"]) == (2, ["1", "2", "3"])


def test_invalid_messages_are_ignored_and_logged(behind, notebook):
    notebook.ok(
        "import logging, io; log = io.StringIO()\n"
        "logging.getLogger('xla_nb.views.panel.view').addHandler(logging.StreamHandler(log))"
    )
    behind.ask("exec", code="1")
    behind.ask("stop", request="now")
    logged = notebook.value("log.getvalue()")
    assert "unknown type 'exec'" in logged
    assert "invalid request 'now'" in logged
    assert notebook.value("behind.done") == "False"
