"""A row's patch as `git apply` will read it in a sandbox, known at import.

Invariant: what is accepted here is read there, with the same files in it. A newline that is missing
at the end is added: nothing else can be meant, and git does not read the patch without it. All else
is refused in one sentence. Runs git's own parser, which needs no repository; where git is not
installed the reading of `patch_files` decides alone. Imported by `fields`.
"""

import os
import subprocess
from functools import lru_cache
from itertools import takewhile

from infra.sources.patch_files import HUNK, PatchFiles, outside_hunks, read_patch

_HEAD = "diff --git "
_NOT_A_CHANGE = ("-- ", "--- ")
"""The end of a mail's patch, before the version of git that wrote it, and the names of a file."""


@lru_cache(maxsize=64)
def whole_patch(text: str) -> tuple[str, PatchFiles]:
    """The patch with its last newline, and its files. Raises ValueError, which tells how `git diff`
    would have written it."""
    patch = text if text.endswith("\n") else f"{text}\n"
    try:
        files = read_patch(patch)
    except UnicodeEncodeError:
        raise ValueError("it has half a surrogate pair, which is no text") from None
    _check_lines(patch.split("\n"))
    if (paths := _read_by_git(patch)) is not None:
        renamed = set(files.before) - set(files.after)
        named_paths = {*files.after, *files.before}
        if not paths <= named_paths or not (named_paths - renamed) <= paths:
            odd = sorted(paths ^ (named_paths - renamed))
            raise ValueError(f"git finds other files in it than its headers name: {odd[0][:80]!r}")
    return patch, files


def _check_lines(lines: list[str]) -> None:
    outside = outside_hunks(lines)
    heads = [i for i in outside if lines[i].startswith(_HEAD)]
    for i in heads:
        old, _, new = lines[i].removeprefix(_HEAD).rstrip("\r").partition(" ")
        if old == new:
            raise ValueError(
                f"the names in `{lines[i][:60]}` have no a/ and b/ before them, as `git diff "
                "--no-prefix` writes it"
            )
    inside = set(range(len(lines))) - set(outside)
    for i in (i for i in outside if heads and i > heads[0]):
        line = lines[i]
        if line.startswith("Binary files ") and line.rstrip("\r").endswith(" differ"):
            raise ValueError(f"`{line[:60]}` has no content, as `git diff --binary` writes it")
        if line.startswith("@@") and not HUNK.match(line):
            raise ValueError(f"`{line[:60]}` is no whole header of a hunk")
        is_change = line.startswith(("+", "-", " ")) and not line.startswith(_NOT_A_CHANGE)
        if is_change and i - 1 in inside:
            raise ValueError(f"`{line[:60]}` is beyond the lines that its hunk's header counts")


def _read_by_git(patch: str) -> set[str] | None:
    """The paths that git finds in it; None without git. Raises ValueError."""
    raw = patch.encode()
    command = ["git", "apply", "--numstat", "-z"]
    # As in a sandbox: without the person's own settings, and inside no repository of theirs.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {"LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    try:
        # At the root: inside a repository git leaves out what is not below the folder it is in.
        done = subprocess.run(
            command, input=raw, capture_output=True, cwd="/", env=own, check=False
        )
    except FileNotFoundError:
        return None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        complaints = [
            line for line in takewhile(lambda line: line, lines) if "warning:" not in line
        ]
        raise ValueError(
            f"git apply: {(complaints or ['failed'])[0].removeprefix('error: ')[:160]}"
        )
    entries = filter(None, done.stdout.split(b"\0"))
    return {entry.split(b"\t", 2)[2].decode(errors="surrogateescape") for entry in entries}
