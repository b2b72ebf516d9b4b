"""Text that models, tools and tests wrote, as markup that shows every character and obeys none.

Invariants: colours are the only escape sequences that are followed; every other control character,
and every mark that is invisible or turns the reading direction, is drawn as a box with its name;
what is left out of long text is counted. Pure. Imported by `rendering`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

LINES_AT_ENDS = 40
"""Lines of a long output that are shown at its beginning, and at its end."""
MAX_LINE_CHARS = 2_000
MAX_CHARS = 60_000
"""Characters of one text on one page: each character may be a box."""
_NAMES = {
    **{0: "NUL", 7: "BEL", 8: "BS", 0x0B: "VT", 0x0C: "FF", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"},
    **{0x200B: "ZWSP", 0x200C: "ZWNJ", 0x200D: "ZWJ", 0x200E: "LRM", 0x200F: "RLM"},
    **{0x202A: "LRE", 0x202B: "RLE", 0x202C: "PDF", 0x202D: "LRO", 0x202E: "RLO"},
    **{0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0xFEFF: "BOM", 0xAD: "SHY"},
}
_COLOUR = r"\x1b\[[0-9;]*m"
_BOXED = (
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    r"\U000e0000-\U000e0fff]"
)
_SPECIAL = re.compile(rf"({_COLOUR})|(({_BOXED})\3*)")
_FOREGROUNDS = {**{code: f"fg{code - 30}" for code in range(30, 38)}}
_FOREGROUNDS |= {code: f"fg{code - 90}" for code in range(90, 98)}


def drawn(text: str) -> Markup:
    """`text` as markup; colours of a terminal become classes."""
    return Markup("").join(_pieces(text.replace("\r\n", "\n")))


def _pieces(text: str) -> Iterator[Markup]:
    end, style = 0, ""
    for found in _SPECIAL.finditer(text):
        yield _styled(text[end : found.start()], style)
        end = found.end()
        if found[1]:
            style = _style(found[1], style)
        else:
            yield _box(found[3], len(found[2]))
    yield _styled(text[end:], style)


def _styled(text: str, style: str) -> Markup:
    if not text:
        return Markup("")
    return Markup('<span class="{}">{}</span>').format(style, text) if style else escape(text)


def _style(sequence: str, before: str) -> str:
    classes = set(before.split())
    for code in (int(part or 0) for part in sequence[2:-1].split(";") if len(part) < 4):
        if code in (0, 39):
            classes = {each for each in classes if each == "bold" and code == 39}
        elif code in (1, 22):
            classes = classes | {"bold"} if code == 1 else classes - {"bold"}
        elif code in _FOREGROUNDS:
            classes = {each for each in classes if not each.startswith("fg")}
            classes.add(_FOREGROUNDS[code])
        else:
            # 38 and 48 are followed by numbers that mean another thing there.
            break
    return " ".join(sorted(classes))


def _box(character: str, times: int) -> Markup:
    code = ord(character)
    name = _NAMES.get(code, f"{code:04X}") + (f" x{times:,}" if times > 1 else "")
    return Markup('<span class="box" title="U+{:04X}">{}</span>').format(code, name)


def visible(text: str) -> str:
    """`text` for an attribute or a title, which draw no boxes: a mark stands for what is not
    seen."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)


def exact(text: str) -> Markup:
    """`text` for a value of a form, which comes back as it was: what is not seen as its number."""
    return Markup("").join(
        escape(each) if each.isprintable() else Markup("&#{};").format(ord(each)) for each in text
    )


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text's beginning and end."""

    head: str
    num_lines_left_out: int
    tail: str
    num_chars: int
    """Length of the whole text."""

    @property
    def is_whole(self) -> bool:
        return not self.num_lines_left_out and not self.tail


def excerpt(text: str, lines: int = LINES_AT_ENDS) -> Excerpt:
    """The first and the last `lines`, and of each line its ends."""
    all_lines = text.splitlines() if len(text) < MAX_CHARS else text.split("\n")
    left_out = max(0, len(all_lines) - 2 * lines)
    if not left_out:
        return Excerpt(_bounded("\n".join(map(_line, all_lines))), 0, "", len(text))
    head, tail = all_lines[:lines], all_lines[-lines:]
    return Excerpt(
        _bounded("\n".join(map(_line, head))),
        left_out,
        _bounded("\n".join(map(_line, tail))),
        len(text),
    )


def bounded(text: str) -> str:
    """The whole text where it is of a usual size, else its ends with a sentence between."""
    return _bounded("\n".join(map(_line, text.split("\n"))))


def _line(line: str) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    kept = MAX_LINE_CHARS // 2
    return f"{line[:kept]} [... {len(line) - 2 * kept:,} characters left out ...] {line[-kept:]}"


def _bounded(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    kept = MAX_CHARS // 2
    return f"{text[:kept]}\n[... {len(text) - 2 * kept:,} characters left out ...]\n{text[-kept:]}"
