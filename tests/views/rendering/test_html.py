"""The HTML and the text of a run that are saved in a notebook."""

import base64
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.support.shown import rows
from xla_nb.messages.events import Concluded, HangReported, StackGroup
from xla_nb.monitor.activity import Slot
from xla_nb.monitor.snapshot import (
    Bar,
    Card,
    Diagnosis,
    Excerpt,
    Live,
    Phase,
    Series,
    Snapshot,
    Trouble,
)
from xla_nb.record.sample import Sample
from xla_nb.views import facts, rendering
from xla_nb.views.observer import Figure
from xla_nb.views.rendering import ranks, style
from xla_nb.views.rendering.figures import of_series

NOW = 1_763_726_585.0
TRACEBACK = (
    'Traceback (most recent call last):\n  File "Cell In[2]", line 7, in step\nValueError: boom'
)

# The HTML that JupyterLab 4.6 allows in untrusted notebooks (its sanitizer, in jlab_core.*.js),
# limited to what is used here. It keeps a property only if the value matches the property's
# pattern; var(), our url() and `unicode-bidi: isolate` do not.
TAGS = {"div", "span", "b", "i", "bdi", "pre", "details", "summary", "img", "table", "thead"}
TAGS |= {"code", "tbody", "tr", "th", "td", "h4", "h5", "ul", "li", "figure", "figcaption"}
ATTRIBUTES = {"style", "title", "dir", "open", "src", "alt", "width", "height", "class", "scope"}
#: Used by panels; the sanitizer drops them.
ATTRIBUTES |= {"data-cell", "data-line", "data-share"}
PROPERTIES = set(
    re.findall(
        r"\S+",
        """align-items background border border-bottom border-collapse border-left border-radius
        border-top color cursor display flex flex-direction flex-wrap font font-family font-size
        font-style font-weight gap grid-template-columns height justify-content line-height
        list-style margin margin-top max-height max-width min-width opacity overflow overflow-wrap
        overflow-x padding padding-left padding-top page-break-inside position table-layout
        text-align text-decoration vertical-align white-space width word-break""",
    )
)
EVIL = (
    "<script>document.title='owned'</script></pre></div></details>\" onmouseover='x' "
    'style="position:fixed" <img src=x onerror=alert(1)> &lt;b&gt; <!-- ]]> javascript:'
)


def hang_report(verdict: str, *groups: StackGroup) -> HangReported:
    return HangReported(verdict=verdict, ranks=(), groups=groups, at=NOW)


class Page(HTMLParser):
    """Parsed HTML: the elements and their text. Asserts that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def styles(self) -> Iterator[tuple[str, str]]:
        for _, attributes in self.elements:
            for rule in filter(None, (attributes.get("style") or "").split(";")):
                name, _, value = rule.partition(":")
                yield name, value


def snapshot(**changes: object) -> Snapshot:
    whole = Snapshot(
        run="one",
        cell="Cell In[3]",
        headline="2 ranks finished",
        record="/records/one",
        now=NOW,
        started=NOW - 12.5,
        elapsed=12.5,
        ok=True,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def sample(**figures: object) -> Sample:
    return Sample(at=NOW, since=NOW, **figures)  # type: ignore[arg-type]


def cards(count: int, phase: Phase = "finished") -> tuple[Card, ...]:
    return tuple(
        Card(rank, phase, NOW - 1, f"xla:{rank}", "h", 100 + rank) for rank in range(count)
    )


def printed(
    *lines: str, rank: int | None = 0, left_out: int = 0, tail: tuple[str, ...] = ()
) -> Excerpt:
    return Excerpt(rank, "out", lines, left_out, tail, f"/records/one/rank-{rank}.out")


def both(whole: Snapshot) -> tuple[str, str]:
    """The text of the HTML, and the plain text."""
    return Page(rendering.render_html(whole)).text, rendering.render_text(whole)


def hostile(evil: str) -> Snapshot:
    """A snapshot with `evil` in every field that a rank can influence."""
    bar = Bar(evil, 1, 2)
    counts = {evil: 1}
    figures = sample(memory=1, device_used=1, compiles=1, steps=1, fallbacks=counts)
    return snapshot(
        run=evil,
        cell=evil,
        headline=evil,
        record=evil,
        hosts=(evil,),
        hang=hang_report(evil, StackGroup((0,), evil, evil, evil)),
        ok=False,
        stopping=evil,
        notices=(evil,),
        bar=bar,
        cards=tuple(
            Card(
                rank,
                "failed",
                NOW,
                device=evil,
                host=evil,
                pid=1,
                place=evil,
                detail=evil,
                line=evil,
                bars=(bar,),
                sample=figures,
            )
            for rank in range(2)
        ),
        troubles=(Trouble((0,), True, evil, evil, f"{evil}\n{evil}", (evil,)),),
        series=(Series(evil, {0: [(0.0, 1.0)]}),),
        excerpts=(printed(evil, tail=(evil,), left_out=3), printed(evil, rank=None)),
    )


def crowded(whole: Snapshot) -> Snapshot:
    return replace(
        whole, cards=whole.cards + tuple(replace(c, rank=c.rank + 2) for c in whole.cards * 20)
    )


# --- the run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"ok": True}, "✓ 2 ranks finished in 12.5 s"),
        ({"ok": True, "elapsed": 0.002}, "✓ 2 ranks finished in 2 ms"),
        ({"ok": False}, "✗ 2 ranks finished · ended after 12.5 s"),
        ({"ok": False, "stopping": "by the user"}, "■ 2 ranks finished · ended after"),
        ({"ok": None}, "● 2 ranks finished · 12 s so far · "),
    ],
)
def test_glyph_headline_and_time_appear_first(changes: dict[str, object], mark: str) -> None:
    for shown in both(snapshot(**changes)):
        assert shown.startswith(mark)


def test_stopping_run_shows_stop_reason() -> None:
    for shown in both(snapshot(ok=None, stopping="by the user")):
        assert "stopping: by the user" in shown


def test_stop_reason_appears_once() -> None:
    why = "Stopped by an interrupt"
    told = Diagnosis(f"{why}; 1 rank still waiting", "warning")
    for shown in both(snapshot(ok=None, stopping=why, diagnosis=told)):
        assert shown.count(why) == 1


def test_failed_run_shows_how_other_ranks_were_stopped() -> None:
    failed = Trouble((1,), True, "ValueError: boom", "Cell In[3], line 7", "", told=True)
    stopped = snapshot(ok=False, stopping="Stopped by the Stop button", troubles=(failed,))
    for shown in both(stopped):
        assert " · ended after 12.5 s · stopped by the Stop button · " in shown


SLOW = Diagnosis("Rank 2 is the slowest", "warning", (2,))


@pytest.mark.parametrize("ok", [None, True, False])
def test_diagnosis_is_the_title(ok: bool | None) -> None:
    for shown in both(snapshot(ok=ok, diagnosis=SLOW)):
        assert shown[1:].lstrip().startswith("Rank 2 is the slowest")
        assert "2 ranks finished" not in shown


def test_text_in_backticks_is_code() -> None:
    html = rendering.render_html(snapshot(diagnosis=Diagnosis("`w` <differs>", "warning")))
    assert re.search(r"<code [^>]*>w</code> &lt;differs&gt;", html)
    html = rendering.render_html(snapshot(diagnosis=Diagnosis("waits for `all_red…", "bad")))
    assert "`" not in html


@pytest.mark.parametrize("ok", [True, False])
def test_conclusion_with_warning_has_its_own_sign(ok: bool) -> None:
    found = Concluded(kind="compiling", sentence="line 9 compiled in every step", strength=26.0)
    told = Diagnosis("2 ranks finished in 12.5 s; line 9 compiled in every step", "warning")
    shown = snapshot(ok=ok, stopping="" if ok else "by you", conclusion=found, diagnosis=told)
    for one in both(shown):
        assert one.startswith("! 2 ranks finished in 12.5 s; line 9 compiled in every step · ")
    assert facts.state(shown).colour == style.AMBER


def test_stopped_run_with_error_is_shown_as_failed() -> None:
    trouble = Trouble((0,), True, "ValueError", "", "")
    for shown in both(snapshot(ok=False, stopping="by the user", troubles=(trouble,))):
        assert shown.startswith("✗")


def test_head_shows_cell_headline_time_host_and_record() -> None:
    for shown in both(snapshot(hosts=("tpu-vm-1",))):
        for part in ("Cell In[3]", "2 ranks finished", "12.5 s", "tpu-vm-1", "/records/one"):
            assert part in shown


def test_single_simulated_host_is_labeled_but_not_named() -> None:
    for shown in both(snapshot(hosts=("here",), simulated=True)):
        assert "simulated TPU host" in shown
        assert "here" not in shown
    for shown in both(snapshot(hosts=("here", "there"), simulated=True)):
        assert "2 hosts" in shown


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_run_in_progress_shows_current_time() -> None:
    for shown in both(snapshot(ok=None)):
        assert "as of 12:03:05 on 2025-11-21" in shown


@pytest.mark.usefixtures("utc")
def test_ended_run_shows_its_start_time() -> None:
    for shown in both(snapshot()):
        assert "2025-11-21 12:02" in shown
        assert "as of" not in shown


def test_notices_are_shown() -> None:
    for shown in both(snapshot(notices=("the data set travelled with the cell",))):
        assert "the data set travelled with the cell" in shown


def test_stack_in_notice_keeps_its_lines() -> None:
    note = 'Sent SIGTERM to rank 1.\n  File "Cell In[3]", line 9, in f\n    wait()'
    shown = snapshot(notices=(note,))
    assert f"note: {note}\n" in rendering.render_text(shown)
    page = rendering.render_html(shown)
    first, _, third = page[page.index("Sent SIGTERM") :].splitlines()[:3]
    assert 'white-space:pre-wrap"><bdi>Sent SIGTERM' in page
    assert first == "Sent SIGTERM to rank 1.</bdi>"
    assert third.startswith("<bdi>    wait()</bdi>")


def hanging(groups: int = 1, lines: int = 1) -> HangReported:
    stack = "\n".join(f"  line {n} of it" for n in range(lines))
    places = (StackGroup((rank,), f"place {rank}", stack, "note") for rank in range(groups))
    return hang_report("Rank 1 hangs", *places)


def test_hang_report_shows_its_time_and_folds_its_stacks() -> None:
    whole = snapshot(hang=hanging())
    html, text = both(whole)
    for part in ("hang", "Rank 1 hangs", "reported at "):
        assert part in html
        assert part in text
    for part in ("rank 0", "place 0", "line 0 of it"):
        assert part in html
    assert {"open": ""} not in Page(rendering.render_html(whole)).named("details")


def test_hang_in_title_is_not_repeated() -> None:
    stopped = snapshot(hang=hanging(), headline="Stopped at a hang: Rank 1 hangs", ok=False)
    stopped = replace(stopped, diagnosis=Diagnosis(""))
    for shown in both(stopped):
        assert shown.count("Rank 1 hangs") == 1


def test_stacks_of_hang_report_are_bounded() -> None:
    html, _ = both(snapshot(hang=hanging(groups=16, lines=400)))
    assert len(html) < 45_000
    assert "place 15" in html


def test_error_is_shown_once_with_ranks_first_rank_and_line() -> None:
    trouble = Trouble((2, 0, 1, 5), True, "ValueError: boom", "Cell In[2], line 7", TRACEBACK)
    for shown in both(snapshot(troubles=(trouble,))):
        assert "ranks 0–2, 5" in shown
        assert "rank 2 first" in shown
        assert "Cell In[2], line 7" in shown
        assert shown.count(TRACEBACK) == 1


def test_error_in_headline_is_not_repeated() -> None:
    headline = "Rank 2 failed at Cell In[2], line 7: ValueError: boom"
    trouble = Trouble((2,), True, "ValueError: boom", "Cell In[2], line 7", "the stack", told=True)
    for shown in both(snapshot(headline=headline, ok=False, troubles=(trouble,))):
        assert shown.count("ValueError: boom") == shown.count("line 7") == 1
        assert shown.count("the stack") == 1
    for shown in both(snapshot(headline=headline, ok=False, troubles=(replace(trouble, text=""),))):
        assert "errors" not in shown
        assert shown.count("boom") == 1


def test_different_messages_of_same_error_are_shown() -> None:
    trouble = Trouble(
        (0, 1), True, "ValueError: 0", "", TRACEBACK, ("rank 1 failed: ValueError: 1",)
    )
    for shown in both(snapshot(troubles=(trouble,))):
        assert "rank 1 failed: ValueError: 1" in shown


def test_only_first_error_is_open() -> None:
    one = Trouble((0,), True, "ValueError", "", TRACEBACK)
    page = Page(
        rendering.render_html(snapshot(troubles=(one, replace(one, ranks=(1,), first=False))))
    )
    assert ["open" in box for box in page.named("details")] == [False, True, False]  # files first


def test_errors_appear_before_output() -> None:
    whole = snapshot(
        cards=cards(2),
        troubles=(Trouble((0,), True, "ValueError: boom", "", TRACEBACK),),
        excerpts=(printed("hello"),),
    )
    for shown in both(whole):
        assert shown.index("ValueError: boom") < shown.index("hello")


def test_errors_beyond_limit_are_counted() -> None:
    troubles = tuple(Trouble((rank,), not rank, f"E{rank}", "", "") for rank in range(20))
    for shown in both(snapshot(troubles=troubles)):
        assert "and 12 more errors, in ranks 8–19" in shown


def test_progress_shows_percentage_count_rate_and_remaining_time() -> None:
    for shown in both(snapshot(ok=None, bar=Bar("train", 620, 1000, 12.34, 30.8))):
        assert "train: 62 % · 620 of 1,000 · 12.3/s · 31 s to go" in shown


def test_finished_run_shows_no_progress() -> None:
    for shown in both(snapshot(bar=Bar("train", 1000, 1000))):
        assert "train" not in shown


def test_progress_without_total_is_a_count() -> None:
    for shown in both(snapshot(ok=None, bar=Bar("train", 41230, None))):
        assert "41,230 done" in shown


def test_rank_is_shown_with_all_facts() -> None:
    card = Card(
        rank=3,
        phase="waiting",
        since=NOW - 5.5,
        device="xla:3",
        host="tpu-vm-2",
        pid=4711,
        place="Cell In[2], line 31",
        detail="all_reduce: waits for rank 2",
        line="epoch 6 loss 0.5",
        bars=(Bar("epoch 6", 1, 4),),
        step=0.083,
        waits=0.28,
        sample=sample(
            memory=3 << 29,
            device_used=3 << 30,
            device_limit=16 << 30,
            compiles=3,
            compile_seconds=8.4,
            steps=1240,
            fallbacks={"aten::nonzero": 12},
        ),
    )
    html, text = both(snapshot(ok=None, cards=(card,), hosts=("tpu-vm-1", "tpu-vm-2")))
    assert "rank 3: waiting at Cell In[2], line 31: all_reduce: waits for rank 2" in text
    for shown in [html]:
        for part in (
            "◔ waiting",
            "for 5 s",
            "tpu-vm-2",
            "Cell In[2], line 31",
            "all_reduce: waits for rank 2",
            "83 ms",
            "28 %",
            "1.5 GiB",
            "3.0 GiB of 16.0 GiB",
            "3 in 8.4 s",
            "1,240",
            "aten::nonzero 12",
        ):
            assert part in shown.replace("\xa0", " "), part


def test_range_of_counts_includes_ranks_that_did_nothing() -> None:
    busy = sample(compiles=2, compile_seconds=0.25, steps=3)
    some = [Card(0, sample=busy), Card(1, sample=sample()), Card(2, sample=sample())]
    for card in (busy, replace(busy, items=3, steps=0)):
        values = {
            f.label: f.value for f in facts.of_cards([replace(some[0], sample=card), *some[1:]])
        }
        assert values["compiles"] == "0 to 2"
        assert values["compile time"] == "0 ms to 250 ms"
        assert values["steps" if card.items else "syncs"] == "0 to 3"
        assert len(values) == 3


def test_unknown_facts_are_omitted() -> None:
    for shown in both(snapshot(cards=(Card(0, "running"),))):
        for word in ("memory", "CPU", "compiles", "steps", "device", "pid", "None", "for "):
            assert word not in shown, word


def spread(hosts: int, each: int, lost: str = "worker-1") -> Snapshot:
    """A run on several hosts with one lost host."""
    ranks = tuple(
        replace(card, host=f"worker-{card.rank // each}") for card in cards(hosts * each, "running")
    )
    ranks = tuple(replace(card, phase="died") if card.host == lost else card for card in ranks)
    names = tuple(f"worker-{number}" for number in range(hosts))
    return snapshot(hosts=names, lost={lost: "its node is gone"}, cards=ranks, ok=None)


@pytest.mark.parametrize(("hosts", "each"), [(3, 2), (256, 4)])
def test_lost_host_is_first(hosts: int, each: int) -> None:
    html, text = both(spread(hosts, each))
    assert f"{hosts} hosts, 1 lost" in html
    assert f"{hosts} hosts, 1 lost" in text
    lost = f"worker-1† lostits node is gone† {each} died"
    assert html.index(lost) < html.index(f"worker-0● {each} running")
    assert "worker-1 was lost: its node is gone" in text


def test_each_rank_is_a_row_under_named_columns() -> None:
    head, *ranks = rows(rendering.render_html(spread(3, 2)))
    assert head == ["rank", "state", "", "host"]
    assert [row[0] for row in ranks] == [str(rank) for rank in range(6)]
    assert ranks[2] == ["2", "† died", "after 11.5 s", "worker-1"]
    figures = sample(memory=1 << 30, steps=7), sample(memory=2 << 30, steps=8)
    measured = (replace(card, sample=one) for card, one in zip(cards(2), figures, strict=True))
    told = snapshot(cards=tuple(measured))
    head, *ranks = rows(rendering.render_html(told))
    assert head == ["rank", "state", "", "memory"]
    assert ranks[1][2:] == ["after 11.5 s", "2.0 GiB"]
    assert "syncs 7 to 8" in both(told)[0].replace("\xa0", " ")


def test_lane_is_a_picture_with_its_seconds_as_alt_text() -> None:
    slots = (Slot(100, compiling=1.0), Slot(101, running=0.5, others=0.5), Slot(102, data=1.0))
    whole = snapshot(cards=(Card(0, lane=slots), Card(1, lane=slots[:1])))
    html, _ = both(whole)
    alts = [image["alt"] for image in Page(rendering.render_html(whole)).named("img")]
    told = "compiling 1 s, running 500 ms, waiting for others 500 ms, waiting for data 1 s"
    assert alts == [told, "compiling 1 s"]
    assert "waiting for data" in html  # the key of the colors


def test_lane_covers_only_the_run_and_names_its_states() -> None:
    parts = [Slot(100, blocked=0.7), Slot(101, blocked=1.0), Slot(102, blocked=1.0)]
    whole = snapshot(elapsed=2.7, cards=(Card(0, lane=(*parts,)), Card(1, "finished")))
    page = Page(rendering.render_html(whole))
    assert "whole run" in page.text
    assert "in a blocking call" in page.text
    assert "waiting for data" not in page.text


def test_lane_of_a_run_in_progress_is_not_said_to_be_longer_than_the_run() -> None:
    lane = (Slot(100, running=0.4), Slot(101, running=1.0), Slot(102, running=0.3))
    shown = ranks.as_news(snapshot(ok=None, elapsed=2.7, cards=(Card(0, "running", lane=lane),)))
    assert rows(shown)[0][3] == "last 2 s"


def test_lane_of_idle_ranks_shows_the_time_of_its_end() -> None:
    lane = (Slot(100, running=1.0), Slot(101, running=1.0))
    ends = facts.time_of_day(102.0)
    for running, told in ((0, f"last 2 s until {ends}"), (1, "last 2 s")):
        live = Live(name="default", since=NOW - 30, running=running)
        shown = ranks.as_news(snapshot(ok=None, live=live, cards=(Card(0, "idle", lane=lane),)))
        assert rows(shown)[0][3] == told


def test_running_rank_shows_no_duration() -> None:
    whole = snapshot(ok=None)
    assert "30 s" not in ranks.detail(Card(0, "running", since=NOW - 30), whole)
    assert "for 30 s" in ranks.detail(Card(0, "waiting", since=NOW - 30), whole)


def drawn_lane(*slots: Slot) -> str:
    """The drawing of a lane of four seconds, the last of which is 103."""
    (image,) = re.findall(r'base64,([^"]+)"', ranks._strip(slots, 103, 4))
    return base64.b64decode(image).decode()


def test_known_part_of_first_and_last_second_fills_the_lane() -> None:
    lane = drawn_lane(Slot(101, running=0.4), Slot(102, running=1.0), Slot(103, running=0.1))
    assert "d='M0 12V12H5V0h5V0h5V0h5V12z'" in lane


def test_short_state_in_lane_is_two_pixels_high() -> None:
    busy = Slot(101, running=1.0)
    lane = drawn_lane(busy, Slot(102, running=0.01), replace(busy, second=103))
    assert "V0h5V10h5V0h5" in lane


def test_run_without_lanes_has_no_lane_column() -> None:
    assert "last 60 s" not in Page(rendering.render_html(snapshot(cards=cards(4)))).text


def test_table_shows_last_value_of_first_figure() -> None:
    series = Series("loss", {rank: [(0.0, 0.5 + rank)] for rank in range(2)})
    html = rendering.render_html(
        snapshot(cards=cards(2), series=(series, replace(series, name="x")))
    )
    head, *ranks = rows(html)
    assert [row[head.index("loss")] for row in ranks] == ["0.5", "1.5"]


def test_failed_run_shows_where_other_ranks_were() -> None:
    at = tuple(replace(card, place="Cell In[3], line 9") for card in cards(4, "stopped"))
    failed = (replace(at[0], phase="failed"), *at[1:])
    trouble = Trouble((0,), True, "ValueError: boom", "", TRACEBACK)
    for shown in both(snapshot(ok=False, cards=failed, troubles=(trouble,))):
        assert re.search(r"ranks 1–3:? stopped at Cell In\[3\], line 9", shown)
    for shown in both(snapshot(cards=at)):
        assert "ranks 1–3" not in shown


def test_list_of_hosts_is_bounded() -> None:
    html, _ = both(spread(1000, 4))
    assert "and 976 more hosts" in html


def test_run_on_one_host_has_no_list_of_hosts() -> None:
    html, text = both(snapshot(hosts=("h",), cards=cards(3)))
    assert "3 finished" not in html + text


def test_ended_rank_shows_its_duration() -> None:
    html, _ = both(snapshot(cards=(Card(0, "finished", since=NOW - 2.5),)))
    assert "after 10 s" in html


def test_text_of_run_in_progress_shows_state_of_ranks() -> None:
    each = (*cards(3, "running"), Card(3, "waiting", detail="in time.sleep"))
    told = rendering.render_text(snapshot(ok=None, cards=each)).splitlines()
    assert {"ranks 0–2: running", "rank 3: waiting: in time.sleep"} <= set(told)
    assert not any(
        "running" in line for line in rendering.render_text(snapshot(cards=each)).splitlines()
    )


PHASES: tuple[Phase, ...] = ("running", "failed", "finished", "died", "waiting", "compiling")


def mixed(count: int) -> tuple[Card, ...]:
    return tuple(replace(card, phase=PHASES[card.rank % 6]) for card in cards(count))


def test_phases_with_trouble_are_first() -> None:
    shown, _ = both(snapshot(cards=mixed(256)))
    marks = ("✗ 43 failed", "† 43 died", "◔ 42 waiting", "◍ 42 compiling", "● 43 running")
    at = [shown.index(mark) for mark in (*marks, "✓ 43 finished")]
    assert at == sorted(at)


def test_table_of_failed_ranks_is_bounded() -> None:
    html, _ = both(snapshot(cards=cards(100, "failed")))
    assert "and 76 more ranks" in html


def test_memory_of_many_ranks_is_a_range() -> None:
    many = tuple(replace(card, sample=sample(memory=(card.rank + 1) << 30)) for card in cards(40))
    html, _ = both(snapshot(cards=many))
    assert "memory 1.0 GiB to 40.0 GiB" in html


@pytest.mark.parametrize("count", [2, 40])
def test_free_memory_of_host_is_shown_for_few_and_many_ranks(count: int) -> None:
    told = snapshot(cards=cards(count), free=3 << 30)
    for html in rendering.render_html(told), ranks.as_news(told):
        assert "host's free memory 3.0 GiB" in Page(html).text


# --- figures -----------------------------------------------------------------------------------


def test_figure_is_a_chart_with_scale_and_last_value_of_each_rank() -> None:
    series = Series("loss", {rank: [(0.0, 2.4), (500.0, 0.25 + rank)] for rank in range(2)})
    html = rendering.render_html(snapshot(series=(series,)))
    page = Page(html)
    (image,) = page.named("img")
    assert (image["src"] or "").startswith("data:image/svg+xml;base64,")
    assert "loss" in (image["alt"] or "")
    for part in ("3", "0", "500", "rank 0 0.25", "rank 1 1.25"):
        assert part in page.text


def test_figure_with_one_step_names_it_once() -> None:
    series = Series("loss", {0: [(7.0, 0.5)]})
    page = Page(rendering.render_html(snapshot(series=(series,))))
    assert page.text.count("step 7") == 1


def test_figure_of_many_ranks_shows_their_range() -> None:
    series = Series("loss", {rank: [(0.0, float(rank))] for rank in range(101)})
    whole = snapshot(series=(series,))
    (image,) = Page(rendering.render_html(whole)).named("img")
    for shown in (rendering.render_text(whole), image["alt"] or ""):
        assert "0 to 100 over 101 ranks, median 50" in shown
    assert "last 0 to 100 over 101 ranks, median 50; mean and range" in both(whole)[0]


def test_ranks_with_nonfinite_last_value_are_counted_beside_chart() -> None:
    lasts = [0.5, 1.5, math.nan, math.inf]
    series = Series("loss", {rank: [(0.0, 1.0), (1.0, last)] for rank, last in enumerate(lasts)})
    told = "last 0.5 to 1.5 over 2 ranks, median 1; 2 not finite"
    assert told in both(snapshot(series=(series,)))[0]


@pytest.mark.parametrize(("ranks", "told"), [(1, "rank 0 NaN"), (20, "loss last NaN in 20 ranks")])
def test_figure_with_only_nan_is_text_without_chart(ranks: int, told: str) -> None:
    series = Series("loss", {rank: [(0.0, math.nan)] for rank in range(ranks)})
    html, text = both(snapshot(series=(series,)))
    assert told in html
    assert "NaN" in text
    assert not Page(rendering.render_html(snapshot(series=(series,)))).named("img")


@pytest.mark.parametrize("ranks", [1, 4])
def test_chart_ends_at_last_reported_step_despite_nonfinite_values(ranks: int) -> None:
    line = [(float(step), 1.0 if step < 7 else math.nan) for step in range(60)]
    odd = dict.fromkeys(range(ranks), ((7.0, "NaN"),))
    series = Series("loss", dict.fromkeys(range(ranks), line), odd)
    html, text = both(snapshot(series=(series,)))
    assert ">step 0</div><div>59</div>" in rendering.render_html(snapshot(series=(series,)))
    assert "NaN since step 7" in html
    assert "NaN since step 7" in text


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({1: [40]}, "NaN at step 40 (rank 1)"),
        ({1: range(40, 50)}, "NaN at step 40 (rank 1)"),
        (
            {1: [*range(20, 30), *range(60, 70)]},
            "first NaN at step 20 (rank 1) and NaN again, last from step 60 (rank 1)",
        ),
        (
            {1: [20, 21, 22, 50, 51, 80]},
            "first NaN at step 20 (rank 1) and NaN again, last from step 80 (rank 1)",
        ),
        ({0: [30], 1: [30]}, "NaN at step 30 (ranks 0, 1)"),
        (
            {0: [30, 40], 1: [31]},
            "first NaN at step 30 (rank 0), first NaN at step 31 (rank 1) and 1 more",
        ),
        (
            {1: [5, 6, *range(90, 900)]},
            "NaN at step 5 (rank 1) and NaN since step 90 (rank 1)",
        ),
        ({1: range(1, 900, 2)}, "NaN at step 1 (rank 1) and NaN since step 899 (rank 1)"),
    ],
)
def test_first_and_latest_nonfinite_values_are_shown(
    odd: dict[int, Sequence[int]], told: str
) -> None:
    figure = Figure(limit=100)
    for step in range(900):
        for rank in range(2):
            figure.add(rank, step, math.nan if step in odd.get(rank, ()) else 0.5)
    series = figure.series("loss")
    html, text = both(snapshot(series=(series,)))
    assert told in html
    assert told in text
    assert told in of_series(series)["note"]  # shown in the panel


def test_axis_labels_distinguish_close_values() -> None:
    series = Series("loss", {0: [(0.0, 7.00001), (1.0, 7.00002)]})
    assert "7.00001" in Page(rendering.render_html(snapshot(series=(series,)))).text


# --- output ------------------------------------------------------------------------------------


def test_output_shows_first_and_last_lines_and_counts_the_rest() -> None:
    excerpt = printed("first", "second", left_out=91_204, tail=("last",))
    for shown in both(snapshot(excerpts=(excerpt,))):
        told = "first\nsecond\n… 91,204 lines left out, in rank-0.out\nlast"
        assert told in shown.replace("[0] ", "")


def test_stderr_and_job_output_are_labeled() -> None:
    whole = snapshot(
        excerpts=(replace(printed("careful", rank=1), stream="err"), printed("hm", rank=None))
    )
    html, text = both(whole)
    assert "cellhm1stderrcareful" in html
    assert "[cell] hm\n[1] (stderr) careful" in text


def test_stdout_precedes_stderr_from_same_time_even_when_merged_later() -> None:
    step = [replace(printed("step", "on"), rank=rank, times=(1.0, 2.0)) for rank in range(3)]
    late = replace(printed("step"), rank=3, times=(1.2,))
    warned = replace(printed("slow"), rank=2, stream="err", times=(1.0,))
    _, text = both(snapshot(excerpts=(*step, warned, late)))
    shown = [line for line in text.splitlines() if line.startswith("[")]
    assert shown == ["[0–3] step", "[2] (stderr) slow", "[0–2] on"]


def test_equal_lines_from_several_ranks_are_merged() -> None:
    each = [printed("hello", "done", rank=rank) for rank in range(4)]
    each[1] = printed("hello", "loss 0.5", "done", rank=1)
    html, text = both(snapshot(excerpts=tuple(each)))
    assert "0\N{EN DASH}3hello1loss 0.50\N{EN DASH}3done" in html
    assert "[0–3] hello\n[1] loss 0.5\n[0–3] done" in text


def test_middle_of_long_output_is_folded_but_short_output_is_not() -> None:
    def folds(lines: int) -> list[str]:
        numbered = (f"line {number}" for number in range(lines))
        html = rendering.render_html(snapshot(excerpts=(printed(*numbered),)))
        return re.findall(r">(\d+) more lines<", html)

    assert folds(24) == []
    assert folds(100) == ["76"]


def test_fold_counts_lines_left_out() -> None:
    numbered = tuple(f"line {number}" for number in range(25))
    excerpt = printed(*numbered, left_out=59_950, tail=numbered)
    html = rendering.render_html(snapshot(excerpts=(excerpt,)))
    (told,) = re.findall(r"<summary[^>]*>(?:(?!</summary>).)*more lines.*?</summary>", html)
    assert "26 more lines, <i>… 59,950 lines left out, in rank-0.out</i>" in told


def test_fold_counts_alternating_lines_of_ranks() -> None:
    each = []
    for rank in (0, 1):
        numbered = tuple(f"{number} of {rank}" for number in range(60))
        at = tuple(float(number) for number in range(60))
        each.append(replace(printed(*numbered, rank=rank), times=at))
    html = rendering.render_html(snapshot(excerpts=tuple(each)))
    shown = len(re.findall(r"\d+ of \d", html))
    (told,) = re.findall(r">(\d+) more lines<", html)
    hidden = re.findall(r"\d+ of \d", html[html.index(" more lines") : html.rindex("</details>")])
    assert (shown, int(told)) == (120, len(hidden))


def test_output_already_shown_by_cell_is_folded_under_title() -> None:
    whole = snapshot(excerpts=(printed("hello"),))
    page = Page(rendering.render_html(whole, folds_output=True))
    assert [name for name, _ in page.elements].count("details") == 2
    assert page.text.index("output") < page.text.index("hello") < page.text.index("files")


def test_output_is_colored_in_html_and_plain_in_text() -> None:
    whole = snapshot(excerpts=(printed("\x1b[1;31mred\x1b[0m plain"),))
    html = rendering.render_html(whole)
    tinted = r'<span style="background:#[0-9a-f]{6}40;font-weight:bold">red</span> plain'
    assert re.search(tinted, html)
    assert "[0] red plain" in rendering.render_text(whole)


@pytest.mark.parametrize(
    "code", ["30", "97", "38;2;0;0;0", "38;2;255;255;255", "38;5;226", "7", "37;47", "30;40"]
)
def test_colored_output_is_readable_on_light_and_dark_pages(code: str) -> None:
    html = rendering.render_html(snapshot(excerpts=(printed(f"\x1b[{code}mword\x1b[0m"),)))
    found = re.search(r'style="background:(#\w{6})(\w\w)[^"]*">word<', html)
    assert found
    ground, opacity = found.groups()
    for page, words in ((0xFF, 0x21), (0x11, 0xDE)):  # JupyterLab's themes
        part = int(opacity, 16) / 255
        tinted = tuple(round(part * own + (1 - part) * page) for own in rgb(ground))
        assert contrast((words,) * 3, tinted) >= 4.5


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:7]))


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    bright, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    parts = [part / 255 for part in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_white_signs_have_enough_contrast() -> None:
    for look in rendering.PHASES.values():
        assert contrast((255, 255, 255), rgb(look.colour)) >= 4.5


def test_very_long_line_is_truncated_with_a_count() -> None:
    for shown in both(snapshot(excerpts=(printed("x" * 10_000_000),))):
        assert "9,998,000 more characters" in shown
        assert len(shown) < 5_000


def test_truncated_output_keeps_both_ends_and_counts_the_rest() -> None:
    lines = tuple(f"{number:05} {'x' * 200}" for number in range(4000))
    for shown in both(snapshot(excerpts=(printed(*lines[:2000], left_out=10, tail=lines[2000:]),))):
        numbers = re.findall(r"(\d{5}) xxx", shown)
        (left_out,) = re.findall(r"… ([\d,]+) lines left out", shown)
        assert numbers[0] == "00000"
        assert numbers[-1] == "03999"
        assert len(numbers) + int(left_out.replace(",", "")) == 4010


# --- bounds ------------------------------------------------------------------------------------


def flood(ranks: int, line: str) -> Snapshot:
    """A snapshot with the maximum amount of everything."""
    excerpt = printed(*[line] * 200, left_out=10**6, tail=(line,) * 200)
    return snapshot(
        cards=tuple(
            replace(card, place=line[:500], detail=line[:500], line=line[:200])
            for card in mixed(ranks)
        ),
        troubles=tuple(
            Trouble(
                (rank,), not rank, line[:500], line[:200], "\n".join([line] * 1000), (line,) * 50
            )
            for rank in range(ranks)
        ),
        series=tuple(
            Series(
                f"figure {n}",
                {
                    rank: [(float(x), math.sin(x * rank)) for x in range(40)]
                    for rank in range(ranks)
                },
            )
            for n in range(2)
        ),
        excerpts=tuple(
            replace(excerpt, rank=rank, stream=stream)
            for rank in range(ranks)
            for stream in ("out", "err")
        ),
    )


@pytest.mark.parametrize("line", ["x" * 300, '"<&' * 100, "猫" * 300, "\x1b[31ma\x1b[32mb" * 150])
def test_size_is_bounded_for_any_output_and_errors_of_256_ranks(line: str) -> None:
    whole = flood(256, line)
    assert len(rendering.render_html(whole).encode()) < 400_000
    assert len(rendering.render_text(whole).encode()) < 200_000


# --- safety, trusted or not --------------------------------------------------------------------

SAMPLES = [
    snapshot(cards=cards(4), excerpts=(printed("\x1b[1;2;3;4;9;31;42mall\x1b[0m \x1b[7mx"),)),
    flood(20, "x" * 50),
    hostile(EVIL),
    crowded(hostile(EVIL)),
    crowded(hostile("\0\ud800\x1b]8;;http://e\x1b\\l\x1b]8;;\x1b\\\x1b[2J\u202e\x9b31m\r\n\x1b")),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_html_uses_only_markup_allowed_in_untrusted_notebooks(sample: Snapshot) -> None:
    page = Page(rendering.render_html(sample))
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert {name for name, _ in page.styles} <= PROPERTIES
    assert not [
        value for _, value in page.styles if re.search(r"var\(|url\(|expression|@|\\", value)
    ]
    for attributes in page.named("img"):
        assert re.fullmatch(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", attributes["src"] or "")


@pytest.mark.parametrize("whole", [hostile(EVIL), crowded(hostile(EVIL))])
def test_hostile_text_is_shown_as_text(whole: Snapshot) -> None:
    page = Page(rendering.render_html(whole))
    start = EVIL[:40]
    assert page.text.count(start) >= 15
    assert start in rendering.render_text(whole)


@pytest.mark.parametrize("sample", SAMPLES)
def test_control_characters_are_removed(sample: Snapshot) -> None:
    for shown in (rendering.render_html(sample), rendering.render_text(sample)):
        shown.encode()  # no lone surrogate
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", shown
        )


def test_right_to_left_text_is_isolated() -> None:
    html = rendering.render_html(snapshot(headline="שלום", cards=(Card(0, detail="مرحبا"),)))
    assert "<bdi>שלום</bdi>" in html
    assert "<bdi>مرحبا</bdi>" in html


def test_each_phase_has_a_word_beside_its_color() -> None:
    for phase, look in rendering.PHASES.items():
        for count in (1, 40):
            html = rendering.render_html(snapshot(cards=cards(count, phase)))
            assert re.search(rf">{look.glyph}</span> (40 )?{phase}</span>", html)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_any_number_can_be_rendered(number: float) -> None:
    figures = sample(compiles=1, compile_seconds=number)
    whole = snapshot(
        now=number,
        started=number,
        elapsed=number,
        ok=None,
        bar=Bar("b", number, number, number, number),
        cards=(Card(0, since=number, sample=figures),),
        series=(Series("s", {0: [(number, number), (1.0, 2.0)]}),),
    )
    assert "rank 0" in rendering.render_text(whole)
    assert rows(rendering.render_html(whole))[1][0] == "0"


def test_empty_snapshot_can_be_rendered() -> None:
    for shown in both(Snapshot("", "", "", "", NOW)):
        assert "●" in shown
