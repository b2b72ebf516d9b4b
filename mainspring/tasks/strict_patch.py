"""Patches that agents outside hand in: taken only as git itself writes them.

Grading drops changes of tests by the files that a patch names (`patches`), and tries several
programs that apply it. Text between the files' parts, names that contradict each other, or a hunk
of another length than it claims could mean another file to one of them: such a patch is refused,
with the line. Pure. Imported by the gateway.
"""

import io
import re

from mainspring.errors import UsageError
from mainspring.tasks.patches import GIT, HUNK, header_paths, name_in

_HEADER = re.compile(
    rb"(?:index [0-9a-f]+\.\.[0-9a-f]+(?: [0-7]{6})?"
    rb"|(?:old|new|new file|deleted file) mode [0-7]{6}"
    rb"|(?:dis)?similarity index \d+%)\n"
)
_OLD = (b"--- ", b"rename from ", b"copy from ")
_NEW = (b"+++ ", b"rename to ", b"copy to ")
_BINARY = b"GIT binary patch\n"
_BLOCK = re.compile(rb"(?:literal|delta) \d+\n")
_DATA = re.compile(rb"[A-Za-z][!-~]+\n")


class UnusualPatch(UsageError):
    """Not as git writes it."""


def checked(patch: bytes) -> bytes:
    """The patch, whose last line ends. Raises UnusualPatch."""
    if not patch.strip(b"\n"):
        return b""
    if not patch.endswith(b"\n"):
        patch += b"\n\n"  # a binary part ends with an empty line
    lines = io.BytesIO(patch).readlines()
    at = 0
    end = len(lines)
    while lines[end - 1] == b"\n":
        end -= 1
    while at < end:
        at = _file(lines, at)
    return patch


def _file(lines: list[bytes], at: int) -> int:
    """The line after this file's part."""
    if not lines[at].startswith(GIT):
        raise _unusual(lines, at, "expected `diff --git a/FILE b/FILE`")
    new, old = header_paths(lines[at])
    for name in (new, old):
        if set(name.split("/")) & {"", ".", "..", ".git"} or "\0" in name:
            raise _unusual(lines, at, "this is no path inside the repository")
    at += 1
    while at < len(lines):
        if not _HEADER.fullmatch(lines[at]) and not _names(lines, at, old, new):
            break
        at += 1
    if at < len(lines) and lines[at] == _BINARY:
        return _binary(lines, at + 1)
    while at < len(lines) and (hunk := HUNK.match(lines[at])):
        at = _hunk(lines, at, *(int(1 if size is None else size) for size in hunk.groups()))
    return at


def _names(lines: list[bytes], at: int, old: str, new: str) -> bool:
    for prefixes, expected in ((_OLD, old), (_NEW, new)):
        for prefix in prefixes:
            if lines[at].startswith(prefix):
                raw = lines[at][len(prefix) :]
                if name_in(raw, prefix in (b"--- ", b"+++ "), expected) != expected:
                    raise _unusual(lines, at, f"another file than {expected!r} of `diff --git`")
                return True
    return False


def _hunk(lines: list[bytes], at: int, old: int, new: int) -> int:
    begin = at
    at += 1
    while old > 0 or new > 0:
        kind = lines[at][:1] if at < len(lines) else b""
        if kind not in (b" ", b"\n", b"-", b"+", b"\\") or not kind:
            raise _unusual(lines, begin, "this hunk is shorter than it claims")
        old -= kind not in (b"+", b"\\")
        new -= kind not in (b"-", b"\\")
        at += 1
    if old < 0 or new < 0:
        raise _unusual(lines, begin, "this hunk is longer than it claims")
    while at < len(lines) and lines[at].startswith(b"\\ "):
        at += 1
    return at


def _binary(lines: list[bytes], at: int) -> int:
    while at < len(lines) and _BLOCK.fullmatch(lines[at]):
        at += 1
        while at < len(lines) and _DATA.fullmatch(lines[at]):
            at += 1
        if at < len(lines) and lines[at] == b"\n":
            at += 1
    return at


def _unusual(lines: list[bytes], at: int, why: str) -> UnusualPatch:
    excerpt = lines[at][:80].decode(errors="replace").rstrip()
    return UnusualPatch(
        f"line {at + 1} of the patch, {excerpt!r}: {why}",
        remedy="make it with `git diff --binary`, without options that change its form",
    )
