"""Counts, sizes, lists, ranks, shortened texts and durations, in words."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence


def odd(value: float) -> str:
    """`NaN`, `inf` or `-inf`; empty for a finite number."""
    if math.isfinite(value):
        return ""
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"


def launched_already(magic: str, launcher: str) -> str:
    """The error for a launch in a cell that a magic already launches."""
    return f"`{magic}` already launches this cell. Remove the magic, or the call to {launcher}."


def several(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`, `12,000 lines`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(nbytes: float) -> str:
    """`12 B`, `3 KiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit != "GiB" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def meant(word: str, known: Iterable[str]) -> str:
    """A suggestion of the closest known word, after a space; empty if none is close."""
    known, letters = list(known), word.lstrip("-")
    matches = [name for name in known if letters and name.lstrip("-") == letters]  # `--n` for `-n`
    matches = matches or difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f" Did you mean {matches[0]}?" if matches else ""


def listed(items: Iterable[object], last: str = "and", most: int | None = None) -> str:
    """`a`, `a and b`, `a, b or c`; beyond `most` only the first ones: `a, b and 3 more`."""
    words = list(map(str, items))
    if most is not None and len(words) > most:
        words[most:] = [f"{len(words) - most:,} more"]
    *first, final = words or ["none"]
    return f"{', '.join(first)} {last} {final}" if first else final


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The head and the rows of a table as lines, each column as wide as its widest cell. Columns
    that are empty in all rows are omitted."""
    filled = [column for column in zip(head, *rows, strict=True) if any(column[1:])]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in filled]
    return ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]


def ranks(numbers: Iterable[int], most: int = 12) -> str:
    """`rank 3`, or `ranks 0–3, 7`: at most so many numbers and spans."""
    ordered = sorted(set(numbers))
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {spans(ordered, most)}"


def everybody(number: int) -> str:
    """`both ranks`, `all 4 ranks`: for so many ranks."""
    return "both ranks" if number == 2 else f"all {number:,} ranks"


def spans(numbers: Iterable[int], most: int = 12) -> str:
    """`3`, or `0–3, 7`: at most so many numbers and spans."""
    groups: list[list[int]] = []
    for number in sorted(set(numbers)):
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    shown = [f"{g[0]}–{g[-1]}" if len(g) > 2 else ", ".join(map(str, g)) for g in groups[:most]]
    if groups[most:]:
        shown.append(f"and {sum(map(len, groups[most:]))} more")
    return ", ".join(shown)


def shortened(text: str, longest: int) -> str:
    """The text in at most so many characters, its end replaced by `…`."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def encodable(text: str, stream: object) -> str:
    """The text for a stream, whose encoding may lack some of its characters: these as escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def without_middle(text: str, longest: int) -> str:
    """The text in at most so many characters, its middle replaced by `…`."""
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[: longest - end - 1]}…{text[len(text) - end :]}"


def in_one_line(text: str, longest: int) -> str:
    """The text on one line, shortened, every run of white space as one space."""
    return shortened(" ".join(text.split()), longest)


def exactly(seconds: float) -> str:
    """A duration as it was set: `0.5 s`, `1 min 30 s`, `2 h`."""
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, remainder = divmod(round(seconds), 60)
    parts = ((minutes // 60, "h"), (minutes % 60, "min"), (remainder, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def lasting(seconds: float) -> str:
    """How long something has lasted, rounded down, like `duration` in panel.js: `45 s`,
    `1 min 49 s`, `2 h 5 min`."""
    whole = int(min(max(0.0, seconds), 1e9))
    return exactly(whole if whole < 3600 else whole - whole % 60)


def took(seconds: float) -> str:
    """How long something took: `83 ms`, `1.25 s`; from a minute on in whole seconds, rounded down
    like `lasting`: `2 min 5 s`."""
    if seconds < 0.9995:
        return f"{max(0.0, 1000 * seconds):.3g} ms"
    return f"{seconds:.3g} s" if seconds < 59.95 else lasting(max(seconds, 60.0))
