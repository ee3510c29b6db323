"""Events encoded and decoded."""

import pytest

from xla_nb.messages import events

SAMPLES = [
    events.Launched(),
    events.HostsPlaced(names=("here", "there")),
    events.HostLost(host="there", why="its node died"),
    events.JobStarted(pid=1, host="here", ranks=4, simulated=True),
    events.RankStarted(rank=0, local_rank=0, pid=2, device="xla:0"),
    events.RankFinished(rank=0, preview="1", nbytes=10),
    events.Changed(names=("history",), in_cell=True),
    events.RankFailed(rank=1, kind="ValueError", message="m", text="t", place="p", where="w"),
    events.RankStopped(rank=2),
    events.RankLeft(rank=2),
    events.RankAt(rank=2, place="Cell In[1], line 3", stack="…"),
    events.RankInterrupted(rank=2, place="Cell In[1], line 3", stack="…"),
    events.Asked(rank=2, pid=3, fd=9, ino=70, prompt="name? ", secret=True),
    events.Answered(rank=2, pid=3, fd=9),
    events.ProcessDied(pid=3, status=-9),
    events.ProgramBegan(number=2, run="/runs/2", label="Cell In[3]", ranks=(0, 1)),
    events.ProgramEnded(number=2, outcome="finished", headline="2 ranks finished"),
    events.GroupBegan(name="ranks", idle=1800.0),
    events.GroupEnding(why="by %xla_shutdown"),
    events.NotOpened(rank=1, why="a class that is not there"),
    events.NamesBound(rank=0, bound=("model",), deleted=("x",)),
    events.JobFailed(kind="k", message="m", text="t"),
    events.StopRequested(why="Stopped by %xla_stop"),
    events.SignalSent(number=15),
    events.Notice(text="careful"),
    events.HangReported(
        verdict="v", ranks=(1,), groups=(events.StackGroup((0, 1), "p", "s", "n"),)
    ),
    events.FigureTurned(rank=1, name="loss", kinds=("inf", "NaN"), since=30.0, last=0.31),
    events.Concluded(kind="compiles", sentence="line 9 compiled", ranks=(1,), strength=2.0),
    events.HangOver(why="Rank 1 made progress"),
    events.JobEnded(status=None),
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_round_trips(event):
    assert events.decode(events.encode(event)) == event


def test_every_kind_of_event_has_a_sample_here():
    kinds = {*events.Event.__subclasses__(), *events.OfHost.__subclasses__()} - {events.OfHost}
    assert {type(event) for event in SAMPLES} == kinds


def test_a_long_text_keeps_its_head_and_its_tail():
    text = "a" * 50_000 + "the end"
    notice = events.decode(events.encode(events.Notice(text=text)))
    assert len(notice.text) < events.TEXT_LIMIT + 100
    assert notice.text.startswith("aaa")
    assert notice.text.endswith("the end")
    assert "42,007 characters left out" in notice.text


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b'{"event": "Nonsense"}', b'{"event": "Notice"}', b"\xff"),
        b'{"event": "HangReported", "verdict": "v", "ranks": [], "groups": [1]}',
        b'{"event": "HangOver", "why": "w", "invented": 1}',
        b'{"event": ["HangOver"], "why": "w"}',
        b"[" * 100_000,
    ],
)
def test_other_data_is_refused(data):
    with pytest.raises(ValueError):
        events.decode(data)


def test_an_event_of_another_version_is_told_from_damage():
    with pytest.raises(events.UnknownEvent):
        events.decode(b'{"event": "Invented", "at": 3}')


def test_invalid_unicode_arrives_readable():
    got = events.decode(events.encode(events.Notice(text="bad \udcff byte")))
    assert got.text == r"bad \udcff byte"
