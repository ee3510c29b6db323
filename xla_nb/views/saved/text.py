"""A run as plain text, complete in itself: for readers without HTML, and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.views import facts
from xla_nb.views.saved import bounds, cells, figures, hang, log, ranks, returned, style
from xla_nb.views.snapshot import Card, Series, Snapshot

_WIDTH = 100  # columns of our own sentences


def render_text(snapshot: Snapshot) -> str:
    """The run as plain text, at most some 200 kB for up to 256 ranks."""
    glyph, title = facts.state(snapshot).glyph, facts.cut(facts.title(snapshot), 600)
    about = " · ".join(facts.cut(part, 200) for part in facts.about(snapshot))
    lines = [f"{glyph} {title}{facts.gap(snapshot)}{about}"]
    notes = (f"note: {notice}".splitlines() for notice in snapshot.notices[:20])
    lines += [facts.cut(line, 600) for note in notes for line in note]
    lines += hang.as_text(snapshot)
    lines += _troubles(snapshot)
    lines += _whereabouts(snapshot)
    lines += [facts.bar_in_short(snapshot.bar)] if snapshot.bar and not snapshot.ok else []
    lines += cells.as_text(snapshot.live)
    lines += _output(snapshot)
    lines += ["", *returned.as_text(snapshot.returned)] if snapshot.returned else []
    lines += _figures(snapshot.series)
    lines += ranks.hosts_as_text(snapshot)
    lines += _ranks(snapshot)
    lines += ["", f"files: {facts.cut(facts.short_path(snapshot.record), 400)}"]
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
        unsaid = trouble.place and trouble.place not in trouble.title
        place = f", at {facts.cut(trouble.place, 200)}" if unsaid else ""
        heading = f"{who}: {facts.cut(trouble.title, 300)}{place}"
    if trouble.follows:
        return ["", f"{heading[:-1]} failed {facts.BECAUSE}: {facts.cut(trouble.title, 300)}"]
    lines = ["", heading]
    lines += shown.traceback.lines(bounds.gap_text(shown.traceback))
    if trouble.others:
        lines += [f"{style.OTHERS}:", *(f"  {other}" for other in shown.others)]
        lines += [f"  {shown.more}"] if shown.more else []
    return lines


def _whereabouts(snapshot: Snapshot) -> list[str]:
    shown, more = bounds.limited(facts.whereabouts(snapshot), bounds.GROUPS, "group")
    lines = [f"{ranks}: {facts.cut(what, 300)}" for ranks, what in shown]
    lines += [more] if more else []
    return ["", *lines] if lines else []


def _output(snapshot: Snapshot) -> list[str]:
    excerpts = bounds.excerpts(snapshot, bounds.TEXT, bounds.plain_line)
    lines = []
    for group in log.groups(
        excerpts, lambda shown, excerpt: bounds.gap_text(shown, excerpt, snapshot.record)
    ):
        kind = " (stderr)" if group.stream == "err" else ""
        lines += [f"[{group.ranks}]{kind} {line}" for line in group.lines]
    lines += bounds.notes_on_output(snapshot)
    return ["", *lines] if lines else []


def _figures(series: Sequence[Series]) -> list[str]:
    shown, more = bounds.limited(series, bounds.FIGURES, "figure")
    told = [(one.name, "; ".join(filter(None, [_lasts(one), figures.odd(one)]))) for one in shown]
    lines = [f"{facts.cut(name, 80)}, last: {values}" for name, values in told]
    lines += [f"{more}, in the record"] if more else []
    return ["", *lines] if lines else []


def _lasts(series: Series) -> str:
    lasts = figures.last_values(series)
    if not 0 < len(lasts) <= bounds.NAMED:
        return facts.over_ranks(lasts)
    return ", ".join(f"rank {rank} {facts.figure(value)}" for rank, value in lasts.items())


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
        same = []
    else:
        cards = sorted(cards, key=lambda card: card.rank)
        same = facts.in_common(snapshot)
        who = facts.everybody(snapshot)
        lines += _filled([f"{who}: {_in_words(same)}"]) if same else []
    many = len(snapshot.cards) > bounds.CARDS
    listed, more = bounds.limited(cards, bounds.ROWS if many else bounds.CARDS, "rank")
    for card in listed:
        lines += _card(card, snapshot, same)
    return [*lines, more] if more else lines


def _in_words(known: Sequence[facts.Fact]) -> str:
    return ", ".join(f"{fact.label} {facts.cut(fact.value, 80)}" for fact in known)


def _card(card: Card, snapshot: Snapshot, same: Sequence[facts.Fact]) -> list[str]:
    glyph = style.PHASES[card.phase].glyph
    first = f"{facts.name(card, snapshot)}: {glyph} {card.phase} {facts.when(card, snapshot)}"
    parts = [facts.cut(one, 200) for one in facts.activity(card)]
    spent = facts.lane(card.lane)
    lane = ", ".join(f"{word} {facts.span(seconds)}" for word, seconds in spent)
    parts += [f"last {facts.span(sum(part for _, part in spent))}: {lane}"] if lane else []
    parts += [_in_words([fact]) for fact in facts.in_table(card, snapshot) if fact not in same]
    parts += [facts.bar_in_short(bar) for bar in card.bars[:4]]
    if card.line and len(snapshot.cards) > bounds.CARDS:  # else it is above, in the output
        parts.append(f"last line: {facts.cut(card.line, 200)}")
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
