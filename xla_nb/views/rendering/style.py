"""Signs and colours of saved HTML and text.

A saved page has no style sheet that knows the theme, and no text colour is readable enough
(4.5 : 1) both on white and on JupyterLab's black. So text has the page's own colour, and colours
are used for backgrounds (solid behind white signs, tints behind words) and drawings.
"""

from __future__ import annotations

from dataclasses import dataclass

from xla_nb.monitor.snapshot import Phase

SANS = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
MONO = "font-family:ui-monospace,Menlo,Consolas,monospace"
OUTPUT = f"{MONO};font-size:12px;line-height:1.5;white-space:pre-wrap;margin:0;padding:0"
FAINT = "opacity:.75"
EDGE = "#80808052"
BLUE, GREEN, RED, AMBER, GREY = "#1f6feb", "#1a7f37", "#cf222e", "#9a6700", "#656d76"
#: Line colours of ranks in charts, by turns.
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
class Look:
    glyph: str
    colour: str


#: Every phase, those that need attention first, in the colours used in lanes.
PHASES: dict[Phase, Look] = {
    "early": Look("⚑", RED),
    "failed": Look("✗", RED),
    "died": Look("†", "#bf3989"),
    "stopped": Look("■", GREY),
    "not responding": Look("?", GREY),
    "waiting": Look("◔", GREY),
    "compiling": Look("◍", AMBER),
    "starting": Look("◌", GREY),
    "running": Look("●", BLUE),
    "idle": Look("○", GREY),
    "finished": Look("✓", GREEN),
}
FOUND = Look("!", AMBER)  # the run is over, with a problem
TROUBLED = ("early", "failed", "died", "stopped", "not responding", "waiting")
#: Title of the messages of ranks that failed with the same error but different text.
OTHERS = "same error, different message"
