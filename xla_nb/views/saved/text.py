"""A run as plain text, complete in itself: for readers without HTML, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, hosts, style
from xla_nb.views.snapshot import Bar, Card, Series, Snapshot, Trouble
from xla_nb.wording import several

_WIDTH = 100  # columns of our own sentences in text


def render_text(snapshot: Snapshot) -> str:
    """The same in plain text."""
    state = facts.state(snapshot)
    lines = [
        f"{state.glyph} {state.word}: {facts.cut(snapshot.cell, 80)}: "
        f"{facts.cut(snapshot.headline, 600)} ({facts.span(snapshot.elapsed)})",
        " · ".join(facts.cut(said, 200) for said in facts.about(snapshot)),
        *(f"note: {facts.cut(notice, 600)}" for notice in snapshot.notices[:20]),
        *_troubles_in_text(snapshot.troubles),
    ]
    if snapshot.bar:
        lines.append(_bar_in_text(snapshot.bar))
    lines += hosts.text(snapshot)
    lines += _ranks_in_text(snapshot)
    lines += _figures_in_text(snapshot.series)
    lines += _output_in_text(snapshot)
    lines += ["", f"record: {facts.cut(snapshot.record, 400)}"]
    return "\n".join(lines)


def _troubles_in_text(troubles: Sequence[Trouble]) -> list[str]:
    room = bounds.TRACEBACKS // max(min(len(troubles), bounds.GROUPS), 1)
    lines = [
        line for trouble in troubles[: bounds.GROUPS] for line in _trouble_in_text(trouble, room)
    ]
    if more := troubles[bounds.GROUPS :]:
        ranks = wording.ranks(rank for trouble in more for rank in trouble.ranks)
        lines.append(f"and {several(len(more), 'other error')}, in {ranks}")
    return lines


def _trouble_in_text(trouble: Trouble, room: int) -> list[str]:
    first = f" ({facts.first(trouble)})" if facts.first(trouble) else ""
    place = f", at {facts.cut(trouble.place, 200)}" if trouble.place else ""
    lines = ["", f"{wording.ranks(trouble.ranks)}{first}: {facts.cut(trouble.title, 300)}{place}"]
    told = trouble.text.split("\n") if trouble.text else []
    shown = bounds.bounded(told, 0, (), room * 3 // 4, bounds.plain_line)
    lines += shown.head
    lines += [f"… {several(shown.left_out, 'line')} left out"] if shown.left_out else []
    lines += shown.tail
    if trouble.others:
        said = bounds.fitting(trouble.others[:10], room // 4, 300, bounds.plain_line)
        more = len(trouble.others) - len(said)
        lines += ["the same with other words:", *(f"  {other}" for other in said)]
        lines += [f"  … and {more} more"] if more else []
    return lines


def _bar_in_text(bar: Bar) -> str:
    return f"{facts.cut(bar.label or 'progress', 80)}: {' · '.join(facts.progress(bar))}"


def _ranks_in_text(snapshot: Snapshot) -> list[str]:
    groups = facts.by_phase(snapshot.cards)
    cards = [card for alike in groups.values() for card in alike]
    if not cards:
        return []
    lines = [""]
    if len(cards) > bounds.CARDS:
        lines += [
            f"{style.PHASES[phase].glyph} {len(alike):,} {phase}: "
            f"{wording.ranks(card.rank for card in alike)}"
            for phase, alike in groups.items()
        ]
        lines += _filled([f"{name} {said}" for name, said in facts.over_all(cards)])
        cards = [card for card in cards if card.phase in style.TROUBLED]
    else:
        cards = sorted(cards, key=lambda card: card.rank)
    for card in cards[: bounds.ROWS]:
        lines += _card_in_text(card, snapshot)
    if cards[bounds.ROWS :]:
        lines.append(f"… and {several(len(cards) - bounds.ROWS, 'more rank')}")
    return lines


def _card_in_text(card: Card, snapshot: Snapshot) -> list[str]:
    where = " ".join(facts.cut(one, 60) for one in (card.device, card.host) if one)
    glyph = style.PHASES[card.phase].glyph
    first = f"{facts.name(card, snapshot)}: {glyph} {card.phase} {facts.when(card, snapshot)}"
    said = [where] if where else []
    said += [facts.cut(one, 200) for one in facts.what(card)]
    said += [f"{name} {value}" for name, value in facts.facts(card)]
    said += [_bar_in_text(bar) for bar in card.bars[:4]]
    said += [f"last line: {facts.cut(card.line, 200)}"] if card.line else []
    return _filled([first.rstrip(), *said])


def _filled(said: Sequence[str]) -> list[str]:
    """One after the other, in lines of _WIDTH columns where that can be."""
    lines = list(said[:1])
    for one in said[1:]:
        if len(lines[-1]) + len(one) + 2 <= _WIDTH:
            lines[-1] += f", {one}"
        else:
            lines.append(f"  {one}")
    return lines


def _figures_in_text(series: Sequence[Series]) -> list[str]:
    lines = []
    for one in series[: bounds.FIGURES]:
        lasts = facts.last_values(one)
        if 0 < len(lasts) <= bounds.NAMED:
            said = ", ".join(f"rank {rank} {facts.figure(value)}" for rank, value in lasts.items())
        else:
            said = facts.over_ranks(lasts)
        lines.append(f"{facts.cut(one.name, 80)}, last: {said}")
    lines += (
        [f"and {several(len(series) - bounds.FIGURES, 'more figure')}"]
        if series[bounds.FIGURES :]
        else []
    )
    return ["", *lines] if lines else []


def _output_in_text(snapshot: Snapshot) -> list[str]:
    lines = []
    record = snapshot.record if len(snapshot.cards) > bounds.CARDS else ""
    for excerpt, shown in bounds.excerpts(snapshot, bounds.TEXT, bounds.plain_line):
        who = "the cell" if excerpt.rank is None else f"rank {excerpt.rank}"
        lines += [
            "",
            f"{who}, {several(bounds.lines_of(excerpt), 'line')}{bounds.stream_name(excerpt)}:",
        ]
        lines += shown.head
        lines += [bounds.gap_text(excerpt, shown, record)] if shown.left_out else []
        lines += shown.tail
    return [*lines, note] if (note := bounds.unshown(snapshot)) else lines
