"""Signs and colours of saved HTML and text.

Colours are the page's own or mid-tones, readable on white and on black: a saved page has no style
sheet that could know the theme.
"""

from __future__ import annotations

from dataclasses import dataclass

from xla_nb.views.snapshot import Phase

SANS = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
MONO = "font-family:ui-monospace,Menlo,Consolas,monospace"
FAINT = "opacity:.72"
EDGE = "#80808052"
BLUE, _GREEN, RED, AMBER, _GREY = "#3b82d0", "#2f8f57", "#dc4c44", "#a8741a", "#7c7c7c"
ERR = "#c9622c"
#: The lines of the first ranks, in the hues of the live panel.
LINES = (
    "#4081d2",
    "#c26030",
    "#319751",
    "#a960ae",
    "#0096a8",
    "#ab7400",
    "#806fcd",
    "#c55865",
)


@dataclass(frozen=True)
class _Look:
    glyph: str
    colour: str


#: Every phase, those that need attention first.
PHASES: dict[Phase, _Look] = {
    "early": _Look("⚑", RED),
    "failed": _Look("✗", RED),
    "killed": _Look("†", "#c4407f"),
    "stopped": _Look("■", _GREY),
    "waiting": _Look("◔", AMBER),
    "compiling": _Look("◍", "#8a63d2"),
    "starting": _Look("◌", _GREY),
    "running": _Look("●", BLUE),
    "finished": _Look("✓", _GREEN),
}
TROUBLED = ("early", "failed", "killed", "stopped", "waiting")
ENDED = ("early", "failed", "killed", "stopped", "finished")
#: Heads the messages of ranks that failed with the same error but other words.
OTHERS = "same error, different message"
