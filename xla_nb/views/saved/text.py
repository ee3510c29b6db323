"""A run as plain text, complete in itself: for readers without HTML, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, hang, hosts, style
from xla_nb.views.snapshot import Bar, Card, Series, Snapshot

_WIDTH = 100  # columns of our own sentences


def render_text(snapshot: Snapshot) -> str:
    """The run as plain text, at most some 200 kB for up to 256 ranks."""
    state = facts.state(snapshot)
    title = state.word, facts.cut(snapshot.cell, 80), facts.cut(snapshot.headline, 600)
    lines = [
        f"{state.glyph} {': '.join(filter(None, title))} ({facts.span(snapshot.elapsed)})",
        " · ".join(facts.cut(part, 200) for part in facts.about(snapshot)),
        *(f"note: {facts.cut(notice, 600)}" for notice in snapshot.notices[:20]),
        *hang.as_text(snapshot),
        *_troubles(snapshot),
    ]
    if snapshot.bar:
        lines.append(_bar(snapshot.bar))
    lines += hosts.as_text(snapshot)
    lines += _ranks(snapshot)
    lines += _figures(snapshot.series)
    lines += _output(snapshot)
    lines += ["", f"record: {facts.cut(snapshot.record, 400)}"]
    return "\n".join(lines)


def _troubles(snapshot: Snapshot) -> list[str]:
    groups, more = bounds.troubles(snapshot, bounds.plain_line)
    lines = [line for group in groups for line in _trouble(group)]
    return [*lines, more] if more else lines


def _trouble(shown: bounds.ShownTrouble) -> list[str]:
    trouble = shown.trouble
    heading = f"{wording.ranks(trouble.ranks)}:"
    if not trouble.told:
        first = facts.first_to_fail(trouble)
        who = f"{wording.ranks(trouble.ranks)}{f' ({first})' if first else ''}"
        place = f", at {facts.cut(trouble.place, 200)}" if trouble.place else ""
        heading = f"{who}: {facts.cut(trouble.title, 300)}{place}"
    lines = ["", heading]
    lines += shown.traceback.lines(bounds.gap_text(shown.traceback))
    if trouble.others:
        lines += [f"{style.OTHERS}:", *(f"  {other}" for other in shown.others)]
        lines += [f"  {shown.more}"] if shown.more else []
    return lines


def _bar(bar: Bar) -> str:
    return f"{facts.cut(bar.label or 'progress', 80)}: {' · '.join(facts.progress(bar))}"


def _ranks(snapshot: Snapshot) -> list[str]:
    groups = facts.by_phase(snapshot.cards)
    cards = [card for group in groups.values() for card in group]
    if not cards:
        return []
    lines = [""]
    if len(cards) > bounds.CARDS:
        lines += [
            f"{style.PHASES[phase].glyph} {len(group):,} {phase}: "
            f"{wording.ranks(card.rank for card in group)}"
            for phase, group in groups.items()
        ]
        lines += _filled([f"{fact.label} {fact.value}" for fact in facts.of_cards(cards)])
        cards = [card for card in cards if card.phase in style.TROUBLED]
    else:
        cards = sorted(cards, key=lambda card: card.rank)
    listed, more = bounds.limited(cards, bounds.ROWS, "rank")
    for card in listed:
        lines += _card(card, snapshot)
    return [*lines, more] if more else lines


def _card(card: Card, snapshot: Snapshot) -> list[str]:
    where = " ".join(facts.cut(one, 60) for one in (card.device, card.host) if one)
    glyph = style.PHASES[card.phase].glyph
    first = f"{facts.name(card, snapshot)}: {glyph} {card.phase} {facts.when(card, snapshot)}"
    parts = [where] if where else []
    parts += [facts.cut(one, 200) for one in facts.activity(card)]
    parts += [f"{fact.label} {fact.value}" for fact in facts.of_card(card)]
    parts += [_bar(bar) for bar in card.bars[:4]]
    parts += [f"last line: {facts.cut(card.line, 200)}"] if card.line else []
    return _filled([first.rstrip(), *parts])


def _filled(parts: Sequence[str]) -> list[str]:
    """The parts after each other, in lines of at most _WIDTH columns where they fit."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 <= _WIDTH:
            lines[-1] += f", {part}"
        else:
            lines.append(f"  {part}")
    return lines


def _figures(series: Sequence[Series]) -> list[str]:
    lines = []
    shown, more = bounds.limited(series, bounds.FIGURES, "figure")
    for one in shown:
        lasts = facts.last_values(one)
        if 0 < len(lasts) <= bounds.NAMED:
            values = ", ".join(
                f"rank {rank} {facts.figure(value)}" for rank, value in lasts.items()
            )
        else:
            values = facts.over_ranks(lasts)
        lines.append(f"{facts.cut(one.name, 80)}, last: {values}")
    lines += [f"{more}, in the record"] if more else []
    return ["", *lines] if lines else []


def _output(snapshot: Snapshot) -> list[str]:
    lines = []
    folder = bounds.folder(snapshot)
    for excerpt, shown in bounds.excerpts(snapshot, bounds.TEXT, bounds.plain_line):
        lines += ["", f"{bounds.source(excerpt.rank)}, {bounds.counted(excerpt)}:"]
        lines += shown.lines(bounds.gap_text(shown, excerpt, folder))
    return [*lines, note] if (note := bounds.unshown(snapshot)) else lines
