"""The panel from the kernel's side: what it tells a page, what it takes from one, what stays.

The page itself is tested in tests/browser; here a real kernel is driven by a client that knows
only the messages.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests.support.kernel import Notebook
from tests.support.run_double import Run
from xla_nb.views.observer import Observer
from xla_nb.views.panel import view
from xla_nb.views.panel.view import PanelNews, Turns, fault
from xla_nb.views.snapshot import Bar, Card, Snapshot, Trouble

# ---------------------------------------------------------------- what a page may say

RIGHT = [
    {"type": "whole", "run": "r"},
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


@pytest.mark.parametrize("message", RIGHT, ids=lambda message: message["type"])
def test_what_the_page_says_is_taken(message):
    assert fault(message, "r") == ""


@pytest.mark.parametrize("message", RIGHT, ids=lambda message: message["type"])
def test_what_is_said_of_another_run_is_not(message):
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
        RIGHT[5] | {"stream": "../../etc/passwd"},
        RIGHT[5] | {"before": -1},
        RIGHT[5] | {"rank": "../../x"},
        RIGHT[5] | {"count": 1.5},
        RIGHT[5] | {"count": -1},
    ],
    ids=repr,
)
def test_anything_else_is_not(message):
    assert fault(message, "r")


# ---------------------------------------------------------------- what it is told


def snapshot(*cards, **about):
    return Snapshot(
        run="r", cell="Cell In[3]", headline="h", record="/r", now=1.0, cards=cards, **about
    )


@pytest.fixture
def eyes(tmp_path):
    return Observer(Run(tmp_path))


def test_only_what_changed_is_told(eyes):
    news = PanelNews()
    first = news.of(snapshot(Card(0), Card(1)), eyes)
    assert [card["rank"] for card in first["cards"]] == [0, 1]
    assert news.of(snapshot(Card(0), Card(1)), eyes) == {}
    assert news.of(snapshot(Card(0), Card(1, steps=2)), eyes)["cards"][0]["rank"] == 1
    assert set(news.of(snapshot(Card(0), Card(1, steps=2), stopping="why"), eyes)) == {"about"}


def test_points_are_told_once_and_anew_when_thinned_out(eyes):
    news = PanelNews()
    line = eyes._line("loss", 0)
    line.limit = 4
    told = []
    for n in range(6):
        line.add(n, float(n))
        told.append(news.of(snapshot(), eyes).get("figures"))
    assert told[0] == [{"name": "loss", "rank": 0, "replace": True, "points": [[0, 0.0]]}]
    assert told[1] == [{"name": "loss", "rank": 0, "replace": False, "points": [[1, 1.0]]}]
    assert told[4] == [
        {"name": "loss", "rank": 0, "replace": True, "points": [[0, 0], [2, 2], [4, 4]]}
    ]
    assert told[5] is None


def test_what_is_no_number_to_json_is_null(eyes):
    eyes._line("loss", 0).add(0, float("nan"))
    eyes._line("loss", 0).add(1, float("inf"))
    (told,) = PanelNews().of(snapshot(), eyes)["figures"]
    assert told["points"] == [[0, None], [1, None]]
    json.dumps(told, allow_nan=False)


def test_after_a_loss_everything_is_told_again(eyes):
    news = PanelNews()
    news.of(snapshot(Card(0)), eyes)
    news.forget()
    assert set(news.of(snapshot(Card(0)), eyes)) == {"about", "bar", "troubles", "cards"}


def test_a_rank_is_told_in_the_words_of_what_stays(eyes):
    clients = {"torch_xla": 1, "jax": 1}
    rank = Card(3, host="w-1", pid=77, rss=3 << 29, cpu=0.97, steps=1204, clients=clients)
    (told,) = PanelNews().of(snapshot(rank), eyes)["cards"]
    assert told["from"] == "w-1 · pid 77"
    assert told["facts"] == {
        "memory": "1.5 GiB",
        "CPU": "97 %",
        "steps": "1,204",
        "clients": "torch_xla 1, jax 1",
    }


def test_how_far_a_loop_is_is_told_in_words_and_as_a_share(eyes):
    known, endless = Bar("epoch", 250, 1000, 12.5, 30), Bar("", 3, None)
    news = PanelNews().of(snapshot(Card(0, bars=(known, endless)), bar=known), eyes)
    told = {"label": "epoch", "part": 0.25, "done": "250 of 1,000", "left": "12.5/s · 30 s to go"}
    assert news["bar"] == told
    without = {"label": "", "part": None, "done": "3 done", "left": ""}
    assert news["cards"][0]["bars"] == [told, without]


def trouble(*ranks, first=False):
    return Trouble(ranks=ranks, first=first, title="t", place="", text="")


def test_an_error_is_told_with_its_ranks_and_which_was_first(eyes):
    cards = (*(Card(rank, "failed") for rank in range(4)), Card(4, "killed"))
    troubles = (trouble(2, 0, 1, first=True), trouble(4))
    several = PanelNews().of(snapshot(*cards, troubles=troubles), eyes)["troubles"]
    assert [one["who"] for one in several] == ["ranks 0-2 failed, rank 2 first", "rank 4 killed"]
    assert [one["open"] for one in several] == [True, False]
    (alone,) = PanelNews().of(snapshot(*cards, troubles=troubles[1:]), eyes)["troubles"]
    assert (alone["who"], alone["open"]) == ("rank 4 killed", True)


def test_hosts_are_counted_and_it_is_told_why_one_was_lost(eyes):
    whole = snapshot(hosts=("a", "b", "c"), lost={"b": "its node is gone"})
    about = PanelNews().of(whole, eyes)["about"]
    assert (about["host"], about["lost"]) == ("3 hosts, 1 lost", {"b": "its node is gone"})


def test_of_very_many_ranks_those_whose_turn_it_is_are_told_again(eyes):
    news = PanelNews()
    cards = [Card(rank) for rank in range(5)]
    news.of(snapshot(*cards), eyes)
    news.forget([1, 3])
    assert [card["rank"] for card in news.of(snapshot(*cards), eyes)["cards"]] == [1, 3]


def test_turns_go_round():
    turns = Turns(2)
    assert [list(turns.take(range(5))) for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]
    assert list(turns.take(range(2))) == [0, 1]


# ---------------------------------------------------------------- in a kernel


class Page:
    """What a page has heard of the panels of a kernel, by the messages of one cell."""

    def __init__(self, messages):
        self.messages = messages

    def of(self, kind):
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    @property
    def news(self):
        told = (m["data"].get("content", {}) for m in self.of("comm_msg"))
        return [message for message in told if message.get("type") == "news"]

    @property
    def lines(self):
        return [one for message in self.news for one in message.get("lines", [])]

    @property
    def whole(self):
        """The last thing told of each part."""
        known = {}
        for message in self.news:
            known.update(message)
        return known

    @property
    def shown(self):
        """The displays of the cell as they stand at its end, in order."""
        found = {}
        for m in self.messages:
            if m["msg_type"] in ("display_data", "update_display_data"):
                found[m["content"]["transient"]["display_id"]] = m["content"]["data"]
        return list(found.values())


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


def test_the_page_is_told_of_ranks_and_output(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert {card["rank"] for m in page.news for card in m.get("cards", [])} == {0, 1}
    assert page.whole["about"]["simulated"]
    assert page.whole["about"]["ranks"] == 2
    assert heard(page) == LINES


def test_messages_are_numbered_without_a_gap(notebook, tmp_path):
    page = held(notebook, tmp_path / "go")
    assert [m["seq"] for m in page.news] == list(range(1, len(page.news) + 1))
    assert page.news[0]["whole"]


def test_a_flood_is_at_most_twenty_messages_a_second_of_bounded_size(notebook):
    flood = "%%xla_spawn -n 2 --view panel -o flood\nimport time\nend = time.time() + 2\n"
    flood += "while time.time() < end:\n    print('x' * 100)"
    page = launched(notebook, flood)
    took = page.news[-1]["now"] - page.news[0]["now"]
    assert len(page.news) <= 20 * took + 2
    assert max(sum(len(one["lines"]) for one in m.get("lines", [])) for m in page.news) <= 1000
    told = sum(len(one["lines"]) + one["skipped"] for one in page.lines)
    notebook.ok("total = sum(flood.output(r).count('\\n') for r in (0, 1))")
    assert told <= int(notebook.value("total"))


def test_what_stays_is_html_and_text_without_the_widget(notebook):
    page = launched(notebook, PRINT)
    final, beside = page.shown
    assert set(final) == {"text/html", "text/plain"}
    assert "2 ranks finished" in final["text/plain"]
    assert "line 4 1" in final["text/plain"]
    assert "line 4 1" in final["text/html"]
    assert beside["text/html"] == ""


def test_the_widget_is_closed_when_the_run_has_ended(notebook):
    page = launched(notebook, PRINT)
    opened = {m["comm_id"] for m in page.of("comm_open")}
    assert opened == {m["comm_id"] for m in page.of("comm_close")}


def test_a_still_picture_stands_beside_the_widget_from_the_start(notebook):
    page = launched(notebook, PRINT)
    widget, beside = page.of("display_data")[:2]
    assert "application/vnd.jupyter.widget-view+json" in widget["data"]
    assert "Cell In[" in beside["data"]["text/plain"]


def test_a_failed_cell_says_in_the_error_what_the_panel_does_not_repeat(notebook):
    failed = notebook.run(
        "%%xla_spawn -n 2 --view panel\ndef f(rank):\n    raise ValueError('boom')"
    )
    assert failed.ename == "RunFailed"
    assert "boom" in failed.error
    assert "Traceback" not in failed.error
    (html, *_) = (data["text/html"] for data in Page(failed.messages).shown)
    assert "boom" in html
    assert "line 3" in html


def test_text_that_is_code_elsewhere_stays_text(notebook):
    evil = "<script>alert(1)</script></pre></div><img src=x onerror=alert(2)>"
    page = launched(notebook, f"%%xla_spawn -n 1 --view panel\nprint({evil!r})")
    final = page.shown[0]["text/html"]
    assert "<script" not in final
    assert "<img src=x" not in final
    assert "&lt;script&gt;" in final


# ---------------------------------------------------------------- what a page asks


# Once a rank has printed, it is at the one line of its loop.
BEHIND = """%%xla_spawn -n 2 --view panel --bg -o behind
import time
for n in range(30000): print(n); time.sleep(0.02)
"""


@pytest.fixture
def behind(notebook):
    """A run in the background, its page: `ask` says something, `hear` waits for an answer. Both
    ranks have printed."""
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
        """The first message that is wanted."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = self.notebook.client.get_iopub_msg(timeout=60)
            if wanted(message):
                return message
        raise AssertionError("it was never said")

    def answer(self, kind, **about):
        def wanted(message):
            told = message["content"].get("data", {}).get("content", {})
            about_this = {"type": kind, **about}.items() <= told.items()
            return message["msg_type"] == "comm_msg" and about_this

        return self.hear(wanted)["content"]["data"]["content"]


def test_everything_is_told_again_when_the_page_asks(behind):
    behind.ask("whole")
    whole = behind.answer("news", whole=True)
    assert [card["rank"] for card in whole["cards"]] == [0, 1]


def test_stop_is_acknowledged_and_stops(behind, notebook):
    behind.ask("stop", request=7)
    assert behind.answer("ack")["request"] == 7
    behind.notebook.ok("assert behind._ended.wait(60)")
    assert "you pressed Stop" in notebook.value("behind.state.stopping")


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


def test_nonsense_is_ignored_with_a_line_in_the_log(behind, notebook):
    notebook.ok(
        "import logging, io; log = io.StringIO()\n"
        "logging.getLogger('xla_nb.views.panel.view').addHandler(logging.StreamHandler(log))"
    )
    behind.ask("exec", code="1")
    behind.ask("stop", request="now")
    said = notebook.value("log.getvalue()")
    assert "type 'exec' is unknown" in said
    assert "its request is 'now'" in said
    assert notebook.value("behind.done") == "False"


# ---------------------------------------------------------------- its size


def test_the_page_module_is_small():
    assert Path(view.__file__).with_name("panel.js").stat().st_size <= 60_000
