"""The panel of live ranks in a real kernel with a client that uses only messages.

The page itself is tested in tests/browser.
"""

from __future__ import annotations

import re
import time
from html import unescape

import pytest

from tests.support.kernel import Notebook

#: The panel of the newest ranks: other tests may have left panels of ranks that died.
PANEL = "from xla_nb import live\n*_, panel = live._shown().values()"
#: Wait until the panel has sent everything and is idle.
REST = "while panel._due['beat'] - time.monotonic() < 10:\n    time.sleep(0.01)"


class Panel:
    """The panel that a cell opened: receives its messages and sends requests."""

    def __init__(self, notebook: Notebook, shown) -> None:
        self.notebook, self.shown = notebook, shown
        opens = (m["content"] for m in shown.messages if m["msg_type"] == "comm_open")
        (opened,) = (content for content in opens if "_esm" in content["data"]["state"])
        self.comm = opened["comm_id"]
        self.displays = [
            m["content"]["transient"]["display_id"]
            for m in shown.messages
            if m["msg_type"] == "display_data"
        ]

    def ask(self, kind, **body):
        message = {"type": kind} | body
        content = {"comm_id": self.comm, "data": {"method": "custom", "content": message}}
        client = self.notebook.client
        client.shell_channel.send(client.session.msg("comm_msg", content))

    def hear(self, wanted):
        """The first message from the kernel that `wanted` accepts."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = self.notebook.client.get_iopub_msg(timeout=60)
            if wanted(message):
                return message["content"]
        raise AssertionError("the message never came")

    def answer(self, kind, **about):
        def wanted(message):
            told = message["content"].get("data", {}).get("content", {})
            its = message["content"].get("comm_id") == self.comm
            return its and {"type": kind, **about}.items() <= told.items()

        return self.hear(wanted)["data"]["content"]

    def whole(self):
        """Request and return the whole message."""
        self.ask("whole")
        return self.answer("news", whole=True)

    def end(self):
        """The output that replaces the widget."""
        return self.hear(
            lambda m: (
                m["msg_type"] == "update_display_data"
                and m["content"]["transient"]["display_id"] == self.displays[0]
            )
        )["data"]


@pytest.fixture
def in_panel(kernel):
    """A kernel with `view=panel`."""
    kernel.ok("import time\n%xla_config view=panel")
    yield kernel
    kernel.ok("%xla_config view=None")


@pytest.fixture
def panel(in_panel):
    """The panel of two live ranks."""
    opened = Panel(in_panel, in_panel.ok("%xla_start -n 2"))
    in_panel.ok(PANEL)
    yield opened
    in_panel.run("%xla_shutdown")
    in_panel.ok("%reset_selective -f ^panel$")


def quiet(notebook, code):
    """Run a cell on the live ranks without a view of its own."""
    return notebook.run(f"%%xla --view none\n{code}")


# ---------------------------------------------------------------- messages to the page


def cells(told):
    """The rows of the list of cells as text, newest first."""
    rows = re.findall(r"<tr.*?</tr>", told["parts"]["cells"])[1:]
    words = ([re.sub(r"<.*?>", "", one) for one in re.findall(r"<td.*?</td>", row)] for row in rows)
    return [[unescape(word) for word in row] for row in words]


def test_new_live_ranks_are_idle_and_list_no_cells(panel):
    whole = panel.whole()
    assert whole["ranks"] == [0, 1]
    about = whole["about"]
    assert (about["title"], about["live"]) == ("2 live ranks, idle", True)
    assert "no cells" in whole["parts"]["about"]
    assert whole["parts"]["cells"] == ""


def test_cells_are_listed_with_ranks_and_outcome(panel, kernel):
    quiet(kernel, "1 + 1")
    kernel.run("%%xla 1 --view none\n1 / 0")
    second, first = cells(panel.whole())
    assert (first[0], first[2]) == ("1", "0, 1")
    assert first[3].endswith("finished")
    assert (second[0], second[2]) == ("2", "1")
    assert "ZeroDivisionError" in second[3]
    assert second[1].startswith("Cell In[")


def test_list_shows_same_cell_duration_as_the_run(panel, kernel):
    kernel.ok("%%xla --view none -o own_\nimport time\ntime.sleep(0.3)")
    (cell,) = cells(panel.whole())
    own = "__import__('xla_nb.wording').wording.took(own_.elapsed)"
    assert cell[4] == eval(kernel.value(own))


def test_running_cell_is_shown(panel, kernel):
    kernel.ok("%%xla 0 --bg --view none -o busy_\nimport time\ntime.sleep(600)")
    told = panel.answer("news")
    while not told.get("parts", {}).get("cells"):
        told = panel.answer("news")
    assert cells(told)[0][3].endswith("running")
    assert "is running on rank 0" in told["about"]["title"]
    assert "1 idle" in panel.whole()["parts"]["counts"]
    kernel.ok("busy_.stop()\nbusy_.join_end()")


def test_details_of_selected_rank_are_sent_while_ranks_are_idle(panel, kernel):
    quiet(kernel, "x = 1")
    kernel.ok(REST)
    panel.ask("focus", rank=1)
    told = panel.answer("news")
    while "detail" not in told.get("parts", {}):
        told = panel.answer("news")
    assert "rank 1" in told["parts"]["detail"]
    assert told["about"]["focus"] == 1


def test_stacks_of_idle_ranks_arrive_soon(panel, kernel):
    quiet(kernel, "x = 1")
    kernel.ok(REST)
    panel.ask("stacks", request=7)
    asked = time.monotonic()
    assert "ranks 0, 1" in panel.answer("stacks", request=7)["html"]
    assert time.monotonic() - asked < 30  # an idle panel looks for news once a minute


def test_idle_ranks_cause_no_messages(panel, kernel):
    quiet(kernel, "x = 1")
    kernel.ok(f"{REST}\nbefore = panel._sequence")
    wake = "with panel.run.changed: panel.run.changed.notify_all()"
    kernel.ok(
        f"panel._due['beat'], panel._seen = 0.0, None\n{wake}\n{REST}"
    )  # the panel checks again
    assert kernel.value("panel._sequence - before") == "0"


def test_saved_snapshot_shows_call_for_the_result(panel, kernel):
    quiet(kernel, "x = 1")
    kernel.ok("while panel._saved_of != panel._mark():\n    time.sleep(0.01)")
    text = kernel.value("panel._saved_snapshot()['text/plain']")
    assert "Snapshot of a run in progress. See `import xla_nb; xla_nb.open_run(" in text
    assert "1 cell" in text


# ---------------------------------------------------------------- the end


def test_shutdown_request_is_acknowledged_and_ends_the_ranks(panel, kernel):
    quiet(kernel, "x = 1")
    panel.ask("stop", request=7)
    assert panel.answer("ack")["request"] == 7
    end = panel.end()
    assert "2 live ranks ended by the Shut down button" in end["text/plain"]
    assert "1 cell" in end["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" not in end
    assert "There are no live ranks" in kernel.run("%xla_ranks").error


def test_shutdown_closes_the_widget(panel, kernel):
    panel.whole()
    kernel.ok("from xla_nb.views.panel import view\nwaits, view._LOADS = view._LOADS, 0.1")
    shown = kernel.ok("%xla_shutdown")
    assert "Ended ranks 0, 1." in shown.stdout
    kernel.ok("panel.join(60)\nview._LOADS = waits")
    kernel.ok("import time\nwhile panel._page.comm is not None: time.sleep(0.02)")


def test_idle_timeout_is_shown_as_end_reason(in_panel):
    panel = Panel(in_panel, in_panel.ok("%xla_start -n 1 --name short --idle 0.5"))
    told = panel.end()["text/plain"]
    assert "1 live rank ended after 0.5 s without a cell (--idle)" in told
    in_panel.ok("%xla_shutdown short")


def test_xla_ranks_moves_panel_and_keeps_last_minute(panel, kernel):
    quiet(kernel, "import time; time.sleep(2)")
    again = kernel.ok("%xla_ranks")
    moved = Panel(kernel, again)
    kernel.ok("panel.join(60)\n" + PANEL)
    known = "sum(sum(slot.parts) for slot in panel.run.tracks[0].lane)"
    assert float(kernel.value(known)) > 1
    assert moved.whole()["about"]["title"] == "2 live ranks, idle"
    assert len(moved.displays) == 2


def test_displaying_ranks_from_code_shows_their_panel(panel, kernel):
    moved = Panel(kernel, kernel.ok("xla_nb.ranks()"))
    assert moved.whole()["about"]["title"] == "2 live ranks, idle"


def test_failing_panel_does_not_affect_ranks_and_is_retried(panel, kernel):
    kernel.ok("def broken(now): raise OSError('no page')\npanel._send_news = broken")
    quiet(kernel, "kept = rank")
    kernel.ok("%%xla -o kept_ --view none\nkept")
    assert kernel.value("dict(kept_.results)") == "{0: 0, 1: 1}"
    kernel.ok("del panel._send_news")
    assert panel.whole()["about"]["title"] == "2 live ranks, idle"
