"""Sanitizing terminal output: only visible characters and colors remain."""

import time
import unicodedata

import pytest

from xla_nb import ansi
from xla_nb.ansi import Style


def test_ordinary_text_is_unchanged() -> None:
    text = "épouvantable\t猫 🙂 a\nb"
    assert ansi.clean(text) is text


def test_colors_are_kept() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mmine\x1b[m \x1b[4:3mcurly"
    assert ansi.clean(text) == text


@pytest.mark.parametrize(
    "escape",
    [
        "\x1b[2J",
        "\x1b[10;20H",
        "\x1b[?25l",
        "\x1b[>4;2m",  # ends like a color but is not one
        "\x1b[ q",
        "\x1b]0;title\x07",
        "\x1b]8;;http://example.com\x1b\\",
        "\x1bPq#0;2;0;0;0\x1b\\",
        "\x1b_payload\x1b\\",
        "\x1b(B",
        "\x1b7",
        "\x1bc",
    ],
)
def test_other_escape_sequences_are_removed(escape: str) -> None:
    assert ansi.clean(f"a{escape}é") == "aé"


@pytest.mark.parametrize("introducer", ["\x1b]", "\x1bP", "\x1b_"])
def test_an_unterminated_string_sequence_does_not_remove_text(introducer: str) -> None:
    assert ansi.clean(f"before{introducer}after\nnext") == "beforeafter\nnext"


@pytest.mark.parametrize("cut", ["\x1b", "\x1b[", "\x1b[31", "\x1b[38;2;"])
def test_an_incomplete_sequence_at_the_end_is_removed(cut: str) -> None:
    assert ansi.clean(f"text{cut}") == "text"


def test_removing_a_sequence_never_creates_another() -> None:
    assert ansi.clean("\x1b\x1b[2J[2Jx") == "[2Jx"


@pytest.mark.parametrize(
    ("control", "shown"),
    [
        ("\0", "␀"),
        ("\a", "␇"),
        ("\b", "␈"),
        ("\r", "␍"),
        ("\v", "␋"),
        ("\x7f", "␡"),
        ("\x85", "\ufffd"),
        ("\x9b", "\ufffd"),
        ("\ud800", "\ufffd"),
        ("\u202e", "⟨U+202E⟩"),
        ("\u2066", "⟨U+2066⟩"),
        ("\u200f", "⟨U+200F⟩"),
        ("\u061c", "⟨U+061C⟩"),
        ("\u2028", "⟨U+2028⟩"),
    ],
)
def test_controls_are_made_visible(control: str, shown: str) -> None:
    assert ansi.clean(f"a{control}b") == f"a{shown}b"


def test_no_control_characters_remain() -> None:
    every = "".join(f"{chr(code)} " for code in range(0x110000) if code != 0x1B)
    left = set(ansi.clean(every)) - {"\t", "\n"}
    assert not [c for c in left if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    marks = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    assert not [c for c in left if unicodedata.bidirectional(c) in marks]


def test_cleaning_twice_changes_nothing() -> None:
    dirty = "\x1b[31m\x1b]8;;x\x1b\\a\0\x1b[K\u202e\x9b31m\x1b"
    assert ansi.clean(ansi.clean(dirty)) == ansi.clean(dirty)


def test_plain_text_has_no_colors() -> None:
    assert ansi.plain("\x1b[1;31mred\x1b[0m\x1b[K and\0") == "red and␀"


def test_text_is_split_at_style_changes() -> None:
    assert ansi.spans("a\x1b[31mb\x1b[1mc\x1b[0md") == [
        (Style(), "a"),
        (Style(fg=1), "b"),
        (Style(fg=1, bold=True), "c"),
        (Style(), "d"),
    ]


def test_adjacent_spans_with_the_same_style_are_merged() -> None:
    assert ansi.spans("\x1b[0ma\x1b[31m\x1b[39mb\x1b[m") == [(Style(), "ab")]


@pytest.mark.parametrize(
    ("parameters", "style"),
    [
        ("1;2;3;4;7;9", Style(None, None, True, True, True, True, True, True)),
        ("97;44", Style(fg=15, bg=4)),
        ("38;5;208", Style(fg=(255, 135, 0))),
        ("38;5;9;48;5;244", Style(fg=9, bg=(128, 128, 128))),
        ("48;2;1;2;300", Style(bg=(1, 2, 255))),
        ("58;5;1;4", Style(underline=True)),
        ("31;;1", Style(bold=True)),
    ],
)
def test_styles_are_parsed_as_by_terminals(parameters: str, style: Style) -> None:
    assert ansi.spans(f"\x1b[{parameters}mx") == [(style, "x")]


def test_switching_all_attributes_off_resets_the_style() -> None:
    on, off = "1;2;3;4;7;9;31;41", "22;23;24;27;29;39;49"
    assert ansi.spans(f"\x1b[{on}m\x1b[{off}mx") == [(Style(), "x")]


@pytest.mark.parametrize("parameters", ["38", "38;5", "38;2;1", "38;5;999", "999", "38;9;1", "::"])
def test_invalid_style_parameters_are_ignored(parameters: str) -> None:
    assert [text for _, text in ansi.spans(f"\x1b[{parameters}mx")] == ["x"]


@pytest.mark.parametrize(
    "unit",
    ["\x1b", "\x1b]", "\x1b[1", "\x1bPaaa", "\x1b[31mx\x1b[0m", "\x1b]x\x1b", "\0", "a\x1b[0m"],
)
def test_time_is_linear_in_the_length(unit: str) -> None:
    def seconds(length: int) -> float:
        started = time.process_time()
        ansi.spans(ansi.clean(unit * (length // len(unit))))
        return time.process_time() - started

    # Quadratic would be 400 times as long; the floor keeps noise out.
    assert seconds(2_000_000) < 80 * max(seconds(100_000), 0.01)
