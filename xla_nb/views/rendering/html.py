"""Render a run as HTML that is readable without a kernel, trusted or not, light or dark, and on
paper.

Styles are inline and limited to those that JupyterLab keeps in an untrusted notebook (it has a
pattern for each property; no `var()`, no `break-inside` but the older `page-break-inside`, and no
`unicode-bidi`, hence <bdi>). A colour never appears without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.messages.events import ProgramBegan, ProgramEnded, StackGroup
from xla_nb.monitor.snapshot import Live, Snapshot
from xla_nb.monitor.state import ProgramState
from xla_nb.views import facts
from xla_nb.views.rendering import bounds, figures, log, ranks, returned
from xla_nb.views.rendering.style import AMBER, EDGE, FAINT, FOUND, MONO, OTHERS, PHASES, RED, SANS
from xla_nb.views.rendering.tags import (
    WHOLE,
    at_least,
    bit,
    boxed,
    chip,
    code,
    coloured,
    details,
    div,
    escaped,
    faint,
    frame,
    gap,
    heading,
    in_parts,
    mark,
    place,
    sentence,
    table,
    unbroken,
    uncoloured,
    unseen,
)
from xla_nb.wording import several

_HEAD = 8_000  # maximum bytes of the head, without its folded content
_STACK = 8_000  # bytes of one stack in a panel
_STACKS = 24_000  # bytes of all stacks of a hang report in saved HTML
_AMBER_BOX = f"margin:4px 0;padding:2px 10px;border-left:3px solid {AMBER};background:{AMBER}1a"


def render_html(snapshot: Snapshot, *, folds_output: bool = False) -> str:
    """Render the run as HTML, at most about 400 kB for up to 256 ranks. `folds_output`: the output
    is folded too, like everything that is not important at once."""
    status, table = _status(snapshot), ranks.as_html(snapshot) if snapshot.cards else ""
    is_live = snapshot.live is not None
    group = [table, _cells(snapshot.live)] if is_live else []
    folds = [
        ("ranks", "" if is_live else table),
        ("files", _files(snapshot)),
        (several(len(snapshot.notices), "note"), _notes(snapshot) if snapshot.ok else ""),
    ]
    tail = [returned.as_html(snapshot.returned), figures.as_html(snapshot.series)]
    used = bounds.size_of("".join([status, *tail, *group, *(inner for _, inner in folds)])) + _HEAD
    output = log.as_html(snapshot, bounds.LARGEST - used)
    if folds_output:
        folds.insert(0, ("output", output))
    sections = [status, *group, "" if folds_output else output, *tail]
    style = (
        f"{SANS};font-size:13px;line-height:1.5;overflow-wrap:break-word;margin:4px 0;"
        f"border:1px solid {EDGE};border-radius:6px"
    )
    rows = [div(f"padding:4px 12px;border-top:1px solid {EDGE}", part) for part in sections if part]
    return frame(style, _head(snapshot, folds), *rows)


def parts(snapshot: Snapshot, focus: int | None) -> dict[str, str]:
    """Render the parts of a panel by name; "" if a part is empty. `focus` is the selected rank."""
    selected = [card for card in snapshot.cards if card.rank == focus]
    state = facts.state(snapshot)
    return {
        "sign": chip(state.glyph, state.colour),
        "title": sentence(_UNIT.sub("\\1\xa0\\2", facts.title(snapshot))),
        "about": _small_print(snapshot),
        "bar": ranks.bar(snapshot.bar) if snapshot.bar and snapshot.ok is None else "",
        "errors": _troubles(snapshot) + _hang(snapshot) + _notices(snapshot),
        "counts": ranks.counts(snapshot),
        "ranks": ranks.as_news(snapshot) if snapshot.cards else "",
        "detail": ranks.detail(selected[0], snapshot) if selected else "",
        "cells": _cells(snapshot.live),
    }


_UNIT = re.compile(r"(\d) (ms|s|min|h|%)(?!\w)")  # a number, and a unit that must stay with it


def _small_print(snapshot: Snapshot) -> str:
    """The small print of a panel: the page counts the seconds of a run in progress."""
    if snapshot.ok is not None:
        return _about(facts.about(snapshot), snapshot)
    template, since = facts.duration(snapshot)
    time = template.format(f'<span data-since="{since:.1f}"></span>')
    return " · ".join(filter(None, [time, _about(facts.details(snapshot), snapshot)]))


def _about(parts: Sequence[str], snapshot: Snapshot) -> str:
    drawn = (place(part) if part == snapshot.cell else unbroken(part) for part in parts)
    return " · ".join(drawn)


def stacks(groups: Sequence[StackGroup]) -> str:
    """Render the stacks of ranks, those with the same stack together."""
    return "".join(_stack(group, _STACK) for group in groups)


def _status(snapshot: Snapshot) -> str:
    """Errors, progress, hang report and notices."""
    bar = [ranks.bar(snapshot.bar)] if snapshot.bar and not snapshot.ok else []
    sections = [_troubles(snapshot), _whereabouts(snapshot), *bar]
    return "".join([*sections, _hang(snapshot), _notices(snapshot)])


def _head(snapshot: Snapshot, folds: Sequence[tuple[str, str]]) -> str:
    """The title with folds beside it; an open fold takes a whole row."""
    state = facts.state(snapshot)
    about = _about(facts.about(snapshot), snapshot)
    words = [
        f'{chip(state.glyph, state.colour)} <b style="font-size:14px">',
        f"{sentence(facts.title(snapshot))}</b>{facts.gap(snapshot)}{faint(about)}",
    ]
    return div(
        f"display:flex;flex-wrap:wrap;align-items:baseline;gap:0 16px;padding:5px 12px;{WHOLE}",
        div(
            "flex:1 1 280px;min-width:0",
            heading(4, "font-size:13px", *words),
        ),
        *(_fold(title, inner) for title, inner in folds if inner),
    )


def _fold(title: str, inner: str) -> str:
    """A fold in the head. Its content asks for more width than any page has, so it wraps below the
    title, where it takes the available width."""
    content = div("width:3000px;max-width:100%;padding:2px 0 4px", inner)
    return details(bit("font-size:12px", title), content, style="min-width:0")


def _files(snapshot: Snapshot) -> str:
    run = f'import xla_nb; xla_nb.open_run("{snapshot.run}")'
    return div(
        "font-size:12px",
        code(facts.short_path(snapshot.record), 400),
        f" {faint('· opens with')} {code(run, 120)}" if snapshot.run else "",
    )


def _notes(snapshot: Snapshot) -> str:
    style = "font-size:12px;white-space:pre-wrap"  # some contain a stack, line by line
    lines = [[escaped(line, 600) for line in text.splitlines()] for text in snapshot.notices[:20]]
    return "".join(div(style, "\n".join(note_lines)) for note_lines in lines)


def _notices(snapshot: Snapshot) -> str:
    """Show notices of a run that may have failed; otherwise they are folded in the head."""
    if snapshot.ok or not snapshot.notices:
        return ""
    return div(_AMBER_BOX, _notes(snapshot))


def _troubles(snapshot: Snapshot) -> str:
    groups, note = bounds.troubles(snapshot, coloured)
    html = [
        _trouble(group, not number and not group.trouble.follows)
        for number, group in enumerate(groups)
    ]
    return "".join(html) + (div("", note) if note else "")


def _trouble(shown: bounds.ShownTrouble, opened: bool) -> str:
    trouble = shown.trouble
    first = facts.first_to_fail(trouble)
    words = [mark(PHASES["failed"].glyph, wording.ranks(trouble.ranks), RED)]
    if trouble.follows:
        words.append(faint(f"failed {facts.BECAUSE}"))
    elif not trouble.told:
        words += [
            faint(f"({first})") if first else "",
            f"<b>{escaped(trouble.title)}</b>",
            f"{faint('at')} {place(trouble.place)}" if trouble.place else "",
        ]
    summary = heading(5, "display:inline;font-size:13px", " ".join(words))
    traceback = shown.traceback.lines(gap)
    message = shown.message.lines(gap)
    inner = boxed(message, RED) if message else ""
    if trouble.text:
        boxed_traceback = boxed(traceback, RED)
        inner += details(faint("Traceback"), boxed_traceback) if message else boxed_traceback
    if trouble.others:
        lines = [*shown.others, *([gap(shown.more)] if shown.more else [])]
        inner += details(faint(f"{OTHERS} ({len(trouble.others)})"), boxed(lines, RED))
    return details(summary, inner, opened) if inner else div("", summary)


def _whereabouts(snapshot: Snapshot) -> str:
    """One line per group of ranks without an error, with their last activity. Empty during a run,
    when the table shows it."""
    if snapshot.ok is None:
        return ""
    groups, note = bounds.limited(facts.whereabouts(snapshot), bounds.GROUPS, "group")
    lines = [f"<b>{ranks}</b> {escaped(activity)}" for ranks, activity in groups]
    lines += [note] if note else []
    items = "".join(f'<li style="margin:0">{line}</li>' for line in lines)
    style = "list-style:none;margin:2px 0;padding:0;font-size:12px"
    return f'<ul style="{style}">{items}</ul>' if items else ""


# ---------------------------------------------------------------- hang report


def _hang(snapshot: Snapshot) -> str:
    """The verdict of a hang report, with the stacks folded below it."""
    hang = snapshot.hang
    if hang is None:
        return ""
    time = faint(f"(reported at {facts.clock(hang.at)})")
    room = _STACKS // max(1, sum(bool(stack_group.stack) for stack_group in hang.groups))
    groups = [_stack(stack_group, room) for stack_group in hang.groups]
    stacks = details("Where each rank was", "".join(groups), False) if groups else ""
    return div(_AMBER_BOX, f"<b>hang</b> {escaped(facts.verdict(snapshot), 1000)} {time}", stacks)


def _stack(stack_group: StackGroup, room: int) -> str:
    """Render ranks with the same stack, in `room` bytes."""
    at = f" {faint('at')} {place(stack_group.place)}" if stack_group.place else ""
    note = f" {faint(escaped(stack_group.note))}" if stack_group.note else ""
    heading = div("margin-top:4px", f"<b>{wording.ranks(stack_group.ranks)}</b>{at}{note}")
    if not stack_group.stack:
        return heading
    stack = bounds.bounded(stack_group.stack.split("\n"), room, uncoloured)
    return heading + boxed(stack.lines(gap), AMBER)


# ---------------------------------------------------------------- cells of live ranks


_NEWEST = 6  # rows shown unfolded
_OUTCOME = "outcome"
_TITLES = ("", "cell", "ranks", _OUTCOME, "took", "started")
_LONGEST_OUTCOME = 300  # characters of an outcome


def _cells(live: Live | None) -> str:
    """The table of the cells that live ranks have run, newest first; empty if there are none."""
    if live is None or not live.cells:
        return ""
    html = in_parts(live.cells, _cell_table, "cells", (_NEWEST, 0))
    left_out = live.count - len(live.cells)
    note = f"… and {several(left_out, 'earlier cell')}"
    footer = div(f"font-size:12px;{FAINT}", note) if left_out else ""
    return unseen("Cells") + html + footer


def _cell_table(cells: Sequence[ProgramState]) -> str:
    if not cells:
        return ""
    wrap_style = at_least(max(len(_outcome(cell.ended)) for cell in cells))
    rows = (_cell_row(cell.place, cell.began, cell.ended) for cell in cells)
    styles = [f"text-align:left{wrap_style if title == _OUTCOME else ''}" for title in _TITLES]
    return table([faint(title) for title in _TITLES], rows, styles)


def _cell_row(number: int, began: ProgramBegan, ended: ProgramEnded | None) -> tuple[str, ...]:
    sign, time = PHASES["running"], ""
    if ended is not None:
        sign = FOUND if ended.found and ended.outcome == "finished" else PHASES[ended.outcome]
        time = wording.took(ended.at - began.at if ended.elapsed is None else ended.elapsed)
    return (
        faint(f"{number:,}"),
        bit("white-space:nowrap", place(began.label)),
        bit(MONO, escaped(wording.spans(began.ranks), 80)),
        f"{mark(sign.glyph, '', sign.colour)}{sentence(_outcome(ended), _LONGEST_OUTCOME)}",
        bit(f"{MONO};white-space:nowrap", time),
        bit(f"{MONO};white-space:nowrap", facts.time_of_day(began.at)),
    )


def _outcome(ended: ProgramEnded | None) -> str:
    """The outcome: running, finished or the error, and any problem found."""
    if ended is None:
        return "running"
    finished = ended.outcome == "finished"
    outcome = ended.outcome if finished else ended.headline or "ended with the ranks"
    return "; ".join(filter(None, [outcome, ended.found]))
