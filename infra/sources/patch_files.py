"""Patches of data sets: whether each is a whole git patch, and what files it touches. Pure.

Stricter than what is done with an agent's patch (`tasks.patches`): a row's patch that is cut
short is a broken row. Imported by the modules beside this file that read rows.
"""

import re
from dataclasses import dataclass
from itertools import takewhile

from mainspring.tasks.patches import split

HUNK = re.compile(r"@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) @@")
_INDEX = re.compile(r"index ([0-9a-f]+)\.\.([0-9a-f]+)")
_BINARY = ("GIT binary patch", "Binary files ")
_SAYS_SOMETHING = (*_BINARY, "@@ ", "new file", "deleted file", "old mode", "rename from", "copy")


@dataclass(frozen=True, slots=True)
class PatchFiles:
    before: tuple[str, ...]
    """Paths that the patch changes, renames or deletes."""
    created: tuple[str, ...]
    """Paths that were not there, or had another name."""
    after: tuple[str, ...]
    """Paths that it leaves behind, in its own order."""


def read_patch(patch: str) -> PatchFiles:
    """Raises ValueError, which tells how `git diff` would have written it."""
    outside_hunks(patch.split("\n"))
    _, changes = split(patch.encode())
    if not changes:
        raise ValueError("no line begins with `diff --git`")
    before, created, after = [], [], []
    for change in changes:
        head, *lines = change.raw.decode().splitlines()
        if not head.startswith("diff --git "):
            raise ValueError(f"`diff --git` is missing before `{head}`")
        if not any(line.startswith(_SAYS_SOMETHING) for line in lines):
            raise ValueError(f"nothing follows `{head}`")
        heading = list(takewhile(lambda line: not line.startswith("@@ "), lines))
        is_new = any(line.startswith(("new file mode", "--- /dev/null")) for line in heading)
        is_gone = any(line.startswith(("deleted file mode", "+++ /dev/null")) for line in heading)
        if not is_new:
            before.append(change.old_path)
        if not is_gone:
            after.append(change.path)
        if is_new or change.path != change.old_path:
            created.append(change.path)
    return PatchFiles(tuple(before), tuple(created), tuple(after))


def reversed_patch(patch: str) -> str:
    """The patch that undoes `patch`, which changes, adds and deletes texts and nothing else. Raises
    ValueError."""
    read_patch(patch)
    lines = patch.split("\n")
    outside = set(outside_hunks(lines))
    for i, line in enumerate(lines):
        if i not in outside:
            lines[i] = {"+": "-", "-": "+"}.get(line[:1], line[:1]) + line[1:]
        elif line.startswith((*_BINARY, "old mode", "rename from", "copy from")):
            raise ValueError("it does more than change, add and delete texts")
        elif hunk := HUNK.match(line):
            lines[i] = f"@@ -{hunk[3]} +{hunk[1]} @@{line[hunk.end() :]}"
        elif line.startswith("--- "):
            old, new = line[4:], lines[i + 1][4:]
            lines[i : i + 2] = (
                f"--- {re.sub('^b/', 'a/', new)}",
                f"+++ {re.sub('^a/', 'b/', old)}",
            )
        elif line.startswith("new file mode "):
            lines[i] = line.replace("new", "deleted", 1)
        elif line.startswith("deleted file mode "):
            lines[i] = line.replace("deleted", "new", 1)
        elif ids := _INDEX.match(line):
            lines[i] = f"index {ids[2]}..{ids[1]}{line[ids.end() :]}"
    return "\n".join(lines)


def outside_hunks(lines: list[str]) -> list[int]:
    """Where the lines are that are not a hunk's text, which may look like anything."""
    indices = []
    old = new = 0
    for i, line in enumerate(lines):
        is_last = i == len(lines) - 1
        if old <= 0 and new <= 0:
            # A note on the hunk's last line belongs to it; nothing else begins so.
            if not line.startswith("\\"):
                indices.append(i)
            if hunk := HUNK.match(line):
                old, new = (int(size or 1) for size in hunk.group(2, 4))
        elif line.startswith(("+", "-")):
            old, new = (old, new - 1) if line[0] == "+" else (old - 1, new)
        elif line == "" and is_last:
            break
        elif line == "" or line[0] in " \r":
            old, new = old - 1, new - 1
        elif line[0] != "\\":
            raise ValueError(f"invalid line in a hunk: `{line[:60]}`")
    if old > 0 or new > 0:
        raise ValueError("its last hunk is cut short")
    return indices
