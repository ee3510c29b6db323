"""What stays of a run in the notebook: HTML and text."""

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from xla_nb.views import saved
from xla_nb.views.snapshot import Bar, Card, Excerpt, Phase, Series, Snapshot, Trouble

NOW = 1_763_726_585.0
TRACEBACK = (
    'Traceback (most recent call last):\n  File "Cell In[2]", line 7, in step\nValueError: boom'
)

# What JupyterLab 4.6 leaves in a notebook that is not trusted (its sanitizer, in jlab_core.*.js),
# as far as it is used here. It keeps a property only if the value matches its own pattern, which
# no var(), no url() of ours and no `unicode-bidi: isolate` does.
TAGS = {"div", "span", "b", "i", "bdi", "pre", "details", "summary", "img", "table", "thead"}
TAGS |= {"tbody", "tr", "th", "td"}
ATTRIBUTES = {"style", "title", "dir", "open", "src", "alt", "width", "height"}
PROPERTIES = set(
    re.findall(
        r"\S+",
        """align-items background border border-bottom border-collapse border-left border-radius
        border-top color cursor display flex flex-direction flex-wrap font font-family font-size
        font-style font-weight gap grid-template-columns height justify-content line-height margin
        margin-top max-height max-width min-width opacity overflow overflow-wrap overflow-x padding
        padding-left padding-top table-layout text-align text-decoration vertical-align
        white-space width word-break""",
    )
)
EVIL = (
    "<script>document.title='owned'</script></pre></div></details>\" onmouseover='x' "
    'style="position:fixed" <img src=x onerror=alert(1)> &lt;b&gt; <!-- ]]> javascript:'
)


class Page(HTMLParser):
    """HTML as a browser reads it: elements, their text, and whether all were closed in order."""

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
        ended=NOW,
        elapsed=12.5,
        ok=True,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def cards(count: int, phase: Phase = "finished") -> tuple[Card, ...]:
    return tuple(
        Card(rank, phase, NOW - 1, f"xla:{rank}", "h", 100 + rank) for rank in range(count)
    )


def printed(
    *lines: str, rank: int | None = 0, left_out: int = 0, tail: tuple[str, ...] = ()
) -> Excerpt:
    return Excerpt(rank, "out", lines, left_out, tail, f"/records/one/rank-{rank}.out")


def both(whole: Snapshot) -> tuple[str, str]:
    """The words of the HTML, and the text."""
    return Page(saved.render_html(whole)).text, saved.render_text(whole)


def hostile(evil: str) -> Snapshot:
    """Everything that a rank can have a say in says the same."""
    bar = Bar(evil, 1, 2)
    return snapshot(
        run=evil,
        cell=evil,
        headline=evil,
        record=evil,
        hosts=(evil,),
        ok=False,
        stopping=evil,
        notices=(evil,),
        bar=bar,
        cards=tuple(
            Card(
                rank,
                "failed",
                NOW,
                evil,
                evil,
                1,
                evil,
                evil,
                evil,
                1,
                1.0,
                1,
                2,
                1,
                1,
                1,
                {evil: 1},
                (bar,),
                {evil: 3},
            )
            for rank in range(2)
        ),
        troubles=(Trouble((0,), True, evil, evil, f"{evil}\n{evil}", (evil,)),),
        series=(Series(evil, {0: [(0.0, 1.0)]}),),
        excerpts=(printed(evil, tail=(evil,), left_out=3), printed(evil, rank=None)),
    )


def crowded(whole: Snapshot) -> Snapshot:
    return replace(
        whole, cards=whole.cards + tuple(replace(c, rank=c.rank + 2) for c in whole.cards * 10)
    )


# --- what is said ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"ok": True}, "✓ finished"),
        ({"ok": False}, "✗ failed"),
        ({"ok": False, "stopping": "by the user"}, "■ stopped"),
        ({"ok": None}, "● running"),
        ({"ok": None, "stopping": "by the user"}, "● stopping"),
    ],
)
def test_the_state_is_a_glyph_and_a_word(changes: dict[str, object], mark: str) -> None:
    for said in both(snapshot(**changes)):
        assert said.startswith(mark)


def test_a_stop_that_uncovered_an_error_is_a_failure() -> None:
    trouble = Trouble((0,), True, "ValueError", "", "")
    for said in both(snapshot(ok=False, stopping="by the user", troubles=(trouble,))):
        assert said.startswith("✗ failed")


def test_the_head_names_cell_headline_time_host_and_record() -> None:
    for said in both(snapshot(hosts=("tpu-vm-1",), simulated=True)):
        for part in ("Cell In[3]", "2 ranks finished", "12.5 s", "tpu-vm-1", "simulated TPU host"):
            assert part in said
        assert "/records/one" in said


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_a_run_that_still_goes_says_how_old_this_is() -> None:
    for said in both(snapshot(ok=None, ended=None)):
        assert "as of 12:03:05 on 2025-11-21" in said


@pytest.mark.usefixtures("utc")
def test_a_run_that_has_ended_says_when_it_started() -> None:
    for said in both(snapshot()):
        assert "started 12:02:52 on 2025-11-21" in said
        assert "as of" not in said


def test_notices_are_told() -> None:
    for said in both(snapshot(notices=("the data set travelled with the cell",))):
        assert "the data set travelled with the cell" in said


def test_an_error_is_told_once_with_its_ranks_the_first_and_its_place() -> None:
    trouble = Trouble((2, 0, 1, 5), True, "ValueError: boom", "Cell In[2], line 7", TRACEBACK)
    for said in both(snapshot(troubles=(trouble,))):
        assert "ranks 0-2, 5" in said
        assert "rank 2 first" in said
        assert "Cell In[2], line 7" in said
        assert said.count(TRACEBACK) == 1


def test_errors_with_other_words_are_told_too() -> None:
    trouble = Trouble(
        (0, 1), True, "ValueError: 0", "", TRACEBACK, ("rank 1 failed: ValueError: 1",)
    )
    for said in both(snapshot(troubles=(trouble,))):
        assert "rank 1 failed: ValueError: 1" in said


def test_only_the_first_error_lies_open() -> None:
    one = Trouble((0,), True, "ValueError", "", TRACEBACK)
    page = Page(saved.render_html(snapshot(troubles=(one, replace(one, ranks=(1,), first=False)))))
    assert ["open" in box for box in page.named("details")] == [True, False]


def test_errors_come_before_ranks_and_ranks_before_output() -> None:
    whole = snapshot(
        cards=cards(2),
        troubles=(Trouble((0,), True, "ValueError: boom", "", TRACEBACK),),
        excerpts=(printed("hello"),),
    )
    for said in both(whole):
        assert said.index("ValueError: boom") < said.index("xla:1") < said.index("hello")


def test_many_kinds_of_error_are_counted() -> None:
    troubles = tuple(Trouble((rank,), not rank, f"E{rank}", "", "") for rank in range(20))
    for said in both(snapshot(troubles=troubles)):
        assert "and 12 other errors, in ranks 8-19" in said


def test_progress_is_a_share_a_count_a_rate_and_what_is_left() -> None:
    for said in both(snapshot(bar=Bar("train", 620, 1000, 12.34, 30.8))):
        words = said.replace("\xa0", " ")
        assert "62 % · 620 of 1,000 · 12.3/s · 31 s to go" in words


def test_progress_without_an_end_is_a_count() -> None:
    for said in both(snapshot(bar=Bar("train", 41230, None))):
        assert "41,230 done" in said.replace("\xa0", " ")


def test_a_card_has_everything_that_is_known() -> None:
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
        rss=3 << 29,
        cpu=0.97,
        device_used=3 << 30,
        device_limit=16 << 30,
        compiles=3,
        compile_seconds=8.4,
        steps=1240,
        fallbacks={"aten::nonzero": 12},
        clients={"torch_xla": 1, "jax": 2},
        bars=(Bar("epoch 6", 1, 4),),
    )
    for said in both(snapshot(ok=None, cards=(card,), hosts=("tpu-vm-1", "tpu-vm-2"))):
        for part in (
            "rank 3",
            "◔ waiting",
            "for 5.50 s",
            "xla:3",
            "tpu-vm-2",
            "4711",
            "Cell In[2], line 31",
            "all_reduce: waits for rank 2",
            "epoch 6 loss 0.5",
            "1.5 GiB",
            "97 %",
            "3.0 of 16.0 GiB",
            "3 in 8.40 s",
            "1,240",
            "aten::nonzero 12",
            "jax 2, torch_xla 1",
            "25 %",
        ):
            assert part in said.replace("\xa0", " "), part


def test_what_is_not_known_is_not_said() -> None:
    for said in both(snapshot(cards=(Card(0, "running"),))):
        for word in ("memory", "CPU", "compiles", "steps", "device", "pid", "None", "for "):
            assert word not in said, word


def spread(hosts: int, each: int, lost: str = "worker-1") -> Snapshot:
    """A run of several hosts, of which one is lost."""
    ranks = tuple(
        replace(card, host=f"worker-{card.rank // each}") for card in cards(hosts * each, "running")
    )
    ranks = tuple(replace(card, phase="killed") if card.host == lost else card for card in ranks)
    names = tuple(f"worker-{number}" for number in range(hosts))
    return snapshot(hosts=names, lost={lost: "its node is gone"}, cards=ranks, ok=None)


@pytest.mark.parametrize(("hosts", "each"), [(3, 2), (256, 4)])
def test_of_several_hosts_a_lost_one_stands_first(hosts: int, each: int) -> None:
    html, text = both(spread(hosts, each))
    assert f"{hosts} hosts, 1 lost" in html
    assert f"{hosts} hosts, 1 lost" in text
    lost = f"worker-1† lostits node is gone† {each} killed"
    assert html.index(lost) < html.index(f"worker-0● {each} running")
    lost = f"worker-1 († lost: its node is gone): ranks {each}"
    assert text.index(lost) < text.index("worker-0: ranks 0")


def test_of_few_ranks_each_has_its_card_below_its_host() -> None:
    html, _ = both(spread(3, 2))
    places = [html.index(word) for word in ("worker-1†", "rank 2", "worker-0●", "rank 0", "rank 1")]
    assert places == sorted(places)


def test_of_many_hosts_a_bounded_number_is_named() -> None:
    html, text = both(spread(1000, 4))
    assert "and 976 more hosts" in html
    assert "and 976 more hosts" in text


def test_a_run_on_one_host_has_no_list_of_them() -> None:
    html, text = both(snapshot(hosts=("h",), cards=cards(3)))
    assert "3 finished" not in html + text


def test_a_card_counts_its_clients() -> None:
    for said in both(snapshot(cards=[replace(c, clients={"torch_xla": 1}) for c in cards(1)])):
        assert "torch_xla 1" in said.replace("\xa0", " ")


def test_of_many_ranks_the_one_client_that_each_has_is_not_said() -> None:
    for said in both(snapshot(cards=[replace(c, clients={"torch_xla": 1}) for c in cards(300)])):
        assert "clients" not in said


def test_of_many_ranks_it_is_said_who_started_clients() -> None:
    many = [replace(card, clients={"torch_xla": 1, "jax": 1}) for card in cards(300)]
    for said in both(snapshot(cards=tuple(many))):
        assert "torch_xla 300, jax 300" in said.replace("\xa0", " ")


def test_an_ended_rank_says_how_long_it_took() -> None:
    for said in both(snapshot(cards=(Card(0, "finished", since=NOW - 2.5),))):
        assert "after 10.0 s" in said


def test_every_rank_of_a_few_has_a_line_in_the_text() -> None:
    lines = saved.render_text(snapshot(cards=cards(16))).splitlines()
    assert [line for line in lines if re.match(r"rank \d+: ✓ finished", line)] == [
        line for line in lines if line.startswith("rank ")
    ]
    assert sum(line.startswith("rank ") for line in lines) == 16


PHASES: tuple[Phase, ...] = ("running", "failed", "finished", "killed", "waiting", "compiling")


def mixed(count: int) -> tuple[Card, ...]:
    return tuple(replace(card, phase=PHASES[card.rank % 6]) for card in cards(count))


def test_of_many_ranks_each_has_a_tile_with_its_details() -> None:
    page = Page(saved.render_html(snapshot(cards=mixed(256))))
    titles = [tile["title"] for tile in page.named("span") if "title" in tile]
    assert sorted(int(title.split()[1]) for title in titles if title) == list(range(256))
    assert any("rank 7 failed after 11.5 s" in (title or "") for title in titles)


def test_of_many_ranks_those_in_trouble_come_first() -> None:
    for said in both(snapshot(cards=mixed(256))):
        marks = ("✗ 43 failed", "† 43 killed", "◔ 42 waiting", "◍ 42 compiling", "● 43 running")
        at = [said.index(mark) for mark in marks]
        assert at == sorted(at)
        assert said.index("● 43 running") < said.index("✓ 43 finished")


def test_the_table_of_ranks_in_trouble_is_bounded() -> None:
    for said in both(snapshot(cards=cards(100, "failed"))):
        assert "and 76 more ranks" in said


def test_beyond_the_tiles_ranks_are_counted() -> None:
    page = Page(saved.render_html(snapshot(cards=cards(1500))))
    assert "✓ 1,500 finished (the first 1024 shown)" in page.text


def test_of_many_ranks_memory_is_a_range() -> None:
    many = tuple(replace(card, rss=(card.rank + 1) << 30) for card in cards(20))
    for said in both(snapshot(cards=many)):
        assert "memory 1.0 GiB to 20.0 GiB" in said


# --- figures -----------------------------------------------------------------------------------


def test_a_figure_is_a_picture_with_its_scale_and_each_rank_s_last_value() -> None:
    series = Series("loss", {rank: [(0.0, 2.4), (500.0, 0.25 + rank)] for rank in range(2)})
    html = saved.render_html(snapshot(series=(series,)))
    page = Page(html)
    (image,) = page.named("img")
    assert (image["src"] or "").startswith("data:image/png;base64,")
    assert "loss" in (image["alt"] or "")
    for part in ("3", "0", "500", "rank 0 0.25", "rank 1 1.25"):
        assert part in page.text


def test_a_figure_of_many_ranks_has_their_range() -> None:
    series = Series("loss", {rank: [(0.0, float(rank))] for rank in range(101)})
    for said in both(snapshot(series=(series,))):
        assert "0 to 100 over 101 ranks, median 50" in said


def test_a_figure_of_nan_alone_is_no_error() -> None:
    series = Series("loss", {rank: [(0.0, math.nan)] for rank in range(20)})
    assert "no finite value" in saved.render_text(snapshot(series=(series,)))
    assert not Page(saved.render_html(snapshot(series=(series,)))).named("img")


def test_labels_tell_close_values_apart() -> None:
    series = Series("loss", {0: [(0.0, 7.00001), (1.0, 7.00002)]})
    assert "7.00001" in Page(saved.render_html(snapshot(series=(series,)))).text


# --- output ------------------------------------------------------------------------------------


def test_output_is_head_what_is_left_out_and_tail() -> None:
    excerpt = printed("first", "second", left_out=91_204, tail=("last",))
    for said in both(snapshot(excerpts=(excerpt,))):
        assert "first\nsecond\n… 91,204 lines left out, in /records/one/rank-0.out\nlast" in said


def test_stderr_and_the_job_s_own_output_are_told_apart() -> None:
    whole = snapshot(
        excerpts=(replace(printed("careful", rank=1), stream="err"), printed("hm", rank=None))
    )
    for said in both(whole):
        assert "1 line of stderr" in said
        assert "the cell" in said


def test_short_output_lies_open_and_long_output_does_not() -> None:
    short = saved.render_html(snapshot(excerpts=(printed("hello"),)))
    long = saved.render_html(snapshot(excerpts=(printed(*["hello"] * 100),)))
    assert ["open" in box for box in Page(short).named("details")] == [True]
    assert ["open" in box for box in Page(long).named("details")] == [False]


def test_colours_of_output_are_kept_in_html_and_dropped_from_text() -> None:
    whole = snapshot(excerpts=(printed("\x1b[1;31mred\x1b[0m plain"),))
    html = saved.render_html(whole)
    assert re.search(r'<span style="color:#[0-9a-f]{6};font-weight:bold">red</span> plain', html)
    assert "\nred plain" in saved.render_text(whole)


@pytest.mark.parametrize(
    "code", ["30", "97", "38;2;0;0;0", "38;2;255;255;255", "38;5;226", "7", "37;47", "30;40"]
)
def test_coloured_output_can_be_read_on_white_and_on_black(code: str) -> None:
    html = saved.render_html(snapshot(excerpts=(printed(f"\x1b[{code}mword\x1b[0m"),)))
    found = re.search(r'style="color:(#\w{6})(?:;background:(#\w{6}))?[^"]*">word<', html)
    assert found
    ink, ground = found.groups()
    for paper in [ground] if ground else ["#ffffff", "#111111"]:
        bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) > 2.2


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_an_endless_line_is_cut_and_says_so() -> None:
    for said in both(snapshot(excerpts=(printed("x" * 10_000_000),))):
        assert "9,998,000 more characters" in said
        assert len(said) < 5_000


def test_what_one_rank_does_not_need_another_gets() -> None:
    few = [printed("short", rank=rank) for rank in range(63)]
    lines = [f"line {number} {'x' * 80}" for number in range(1200)]
    whole = snapshot(
        excerpts=(*few, printed(*lines[:600], rank=63, left_out=5, tail=tuple(lines[600:])))
    )
    html = saved.render_html(whole)
    assert html.count("short") == 63
    assert html.count("line ") > 3 * saved.OUTPUT / 64 / 90  # more than an equal part


def test_shortening_keeps_beginning_and_end_and_counts_the_rest() -> None:
    lines = tuple(f"{number:05} {'x' * 200}" for number in range(4000))
    for said in both(snapshot(excerpts=(printed(*lines[:2000], left_out=10, tail=lines[2000:]),))):
        shown = re.findall(r"(\d{5}) xxx", said)
        (left_out,) = re.findall(r"… ([\d,]+) lines left out", said)
        assert shown[0] == "00000"
        assert shown[-1] == "03999"
        assert len(shown) + int(left_out.replace(",", "")) == 4010


def test_of_too_many_streams_those_of_ranks_in_trouble_are_shown() -> None:
    many = tuple(
        replace(card, phase="failed" if card.rank == 899 else "finished") for card in cards(900)
    )
    whole = snapshot(
        cards=many, excerpts=tuple(printed(f"words-{rank}.", rank=rank) for rank in range(900))
    )
    for said in both(whole):
        assert "words-899." in said
        assert "words-800." not in said
        assert "388 more streams" in said


# --- bounds ------------------------------------------------------------------------------------


def flood(ranks: int, line: str) -> Snapshot:
    """As much of everything as there may be."""
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
def test_256_ranks_that_print_and_fail_without_end_take_a_bounded_size(line: str) -> None:
    whole = flood(256, line)
    assert len(saved.render_html(whole).encode()) < 400_000
    assert len(saved.render_text(whole).encode()) < 200_000


# --- inert, trusted or not ---------------------------------------------------------------------

SAMPLES = [
    snapshot(cards=cards(4), excerpts=(printed("\x1b[1;2;3;4;9;31;42mall\x1b[0m \x1b[7mx"),)),
    flood(20, "x" * 50),
    hostile(EVIL),
    crowded(hostile(EVIL)),
    crowded(hostile("\0\ud800\x1b]8;;http://e\x1b\\l\x1b]8;;\x1b\\\x1b[2J\u202e\x9b31m\r\n\x1b")),
]


@pytest.mark.parametrize("sample", SAMPLES)
def test_there_is_nothing_in_the_html_but_what_an_untrusted_notebook_keeps(
    sample: Snapshot,
) -> None:
    page = Page(saved.render_html(sample))
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, attributes in page.elements for name in attributes} <= ATTRIBUTES
    assert {name for name, _ in page.styles} <= PROPERTIES
    assert not [
        value for _, value in page.styles if re.search(r"var\(|url\(|expression|@|\\", value)
    ]
    for attributes in page.named("img"):
        assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", attributes["src"] or "")


@pytest.mark.parametrize("whole", [hostile(EVIL), crowded(hostile(EVIL))])
def test_hostile_words_are_shown_as_they_are(whole: Snapshot) -> None:
    page = Page(saved.render_html(whole))
    start = EVIL[:40]
    assert page.text.count(start) >= 15
    assert start in saved.render_text(whole)


@pytest.mark.parametrize("sample", SAMPLES)
def test_no_control_gets_through(sample: Snapshot) -> None:
    for said in (saved.render_html(sample), saved.render_text(sample)):
        said.encode()  # no lone surrogate
        assert not re.search(
            r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", said
        )


def test_text_from_right_to_left_does_not_reorder_ours() -> None:
    html = saved.render_html(snapshot(headline="שלום", cards=(Card(0, detail="مرحبا"),)))
    assert "<bdi>שלום</bdi>" in html
    assert "<bdi>مرحبا</bdi>" in html


def test_colour_is_never_alone() -> None:
    for phase, look in saved.PHASES.items():
        for count in (1, 40):
            html = saved.render_html(snapshot(cards=cards(count, phase)))
            assert re.search(rf"{look.glyph} (40 )?{phase}</span>", html)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300])
def test_no_number_is_an_error(number: float) -> None:
    whole = snapshot(
        now=number,
        started=number,
        elapsed=number,
        ok=None,
        bar=Bar("b", number, number, number, number),
        cards=(Card(0, since=number, cpu=number, compiles=1, compile_seconds=number),),
        series=(Series("s", {0: [(number, number), (1.0, 2.0)]}),),
    )
    for said in both(whole):
        assert "rank 0" in said


def test_nothing_known_at_all_is_still_a_page() -> None:
    for said in both(Snapshot("", "", "", "", NOW)):
        assert "● running" in said
