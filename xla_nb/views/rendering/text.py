"""Render a run as plain text, for readers without HTML and for screen readers."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import wording
from xla_nb.monitor.snapshot import Series, Snapshot
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, figures, log, returned, style


def render_text(snapshot: Snapshot) -> str:
    """Render the run as plain text, at most about 200 kB for up to 256 ranks."""
    glyph, title = facts.state(snapshot).glyph, facts.cut(facts.title(snapshot), 600)
    about = " · ".join(facts.cut(part, 200) for part in facts.about(snapshot))
    lines = [f"{glyph} {title}{facts.gap(snapshot)}{about}"]
    notes = (f"note: {notice}".splitlines() for notice in snapshot.notices[:20])
    lines += [facts.cut(line, 600) for note in notes for line in note]
    lines += _hang(snapshot)
    lines += _troubles(snapshot)
    lines += _lost(snapshot)
    lines += _whereabouts(snapshot)
    lines += [facts.bar_in_short(snapshot.bar)] if snapshot.bar and not snapshot.ok else []
    lines += _output(snapshot)
    lines += ["", *returned.as_text(snapshot.returned)] if snapshot.returned else []
    lines += _figures(snapshot.series)
    lines += ["", f"files: {facts.cut(facts.short_path(snapshot.record), 400)}"]
    return "\n".join(lines)


def _hang(snapshot: Snapshot) -> list[str]:
    hang = snapshot.hang
    if hang is None:
        return []
    heading = ": ".join(filter(None, ["hang", facts.verdict(snapshot)]))
    return ["", f"{heading} (reported at {facts.clock(hang.at)})"]


def _troubles(snapshot: Snapshot) -> list[str]:
    groups, note = bounds.troubles(snapshot, bounds.plain_line)
    lines = [line for group in groups for line in _trouble(group)]
    return [*lines, note] if note else lines


def _trouble(shown: bounds.ShownTrouble) -> list[str]:
    trouble = shown.trouble
    heading = f"{wording.ranks(trouble.ranks)}:"
    if not trouble.told:
        first = facts.first_to_fail(trouble)
        subject = f"{wording.ranks(trouble.ranks)}{f' ({first})' if first else ''}"
        has_place = trouble.place and trouble.place not in trouble.title
        place = f", at {facts.cut(trouble.place, 200)}" if has_place else ""
        heading = f"{subject}: {facts.cut(trouble.title, 300)}{place}"
    if trouble.follows:
        return ["", f"{heading[:-1]} failed {facts.BECAUSE}: {facts.cut(trouble.title, 300)}"]
    lines = ["", heading]
    lines += shown.traceback.lines()
    if trouble.others:
        lines += [f"{style.OTHERS}:", *(f"  {other}" for other in shown.others)]
        lines += [f"  {shown.more}"] if shown.more else []
    return lines


def _lost(snapshot: Snapshot) -> list[str]:
    hosts, note = bounds.limited([*snapshot.lost.items()], bounds.HOSTS, "lost host")
    lines = [f"{facts.cut(name, 60)} was lost: {facts.cut(reason, 100)}" for name, reason in hosts]
    return ["", *lines, *([note] if note else [])] if lines else []


def _whereabouts(snapshot: Snapshot) -> list[str]:
    groups, note = bounds.limited(facts.whereabouts(snapshot), bounds.GROUPS, "group")
    lines = [f"{ranks}: {facts.cut(activity, 300)}" for ranks, activity in groups]
    lines += [note] if note else []
    return ["", *lines] if lines else []


def _output(snapshot: Snapshot) -> list[str]:
    lines = []
    for line in log.folded(snapshot, bounds.TEXT, bounds.plain_line):
        kind = " (stderr)" if line.stream == "err" else ""
        lines.append(f"[{line.who}]{kind} {line.line}")
    lines += bounds.notes_on_output(snapshot)
    return ["", *lines] if lines else []


def _figures(series: Sequence[Series]) -> list[str]:
    shown, note = bounds.limited(series, bounds.FIGURES, "figure")
    rows = [(one.name, "; ".join(filter(None, [_lasts(one), figures.odd(one)]))) for one in shown]
    lines = [f"{facts.cut(name, 80)}, last: {values}" for name, values in rows]
    lines += [f"{note}, in the record"] if note else []
    return ["", *lines] if lines else []


def _lasts(series: Series) -> str:
    lasts = facts.last_values(series)
    if not 0 < len(lasts) <= bounds.NAMED:
        return facts.over_ranks(lasts)
    return ", ".join(f"rank {rank} {facts.figure(value)}" for rank, value in lasts.items())
