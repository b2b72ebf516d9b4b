"""Tools for files: view one or a folder, change a text in one, make one, search in all.

Invariants: the commands need bash, coreutils and grep alone, so they run in every image; a change
is made where the old text stands exactly once, or not at all. Pure.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from mainspring.agents.tools.protocol import Misused
from mainspring.artifacts.program_files import program
from mainspring.programs.request import ToolSpec

MAX_MATCHES = 100
_PATH = {"type": "string", "minLength": 1, "description": "Path of the file."}
_EDIT = program(__file__, "edit.sh")
_CREATE = """\
[[ ! -e $1 ]] || { echo "$1 exists."; exit 1; }
mkdir -p -- "$(dirname -- "$1")" && printf %s "$2" >"$1" && echo "Made $1."
"""


class ViewTool:
    spec = ToolSpec(
        name="view",
        description="Show a file with the numbers of its lines, or what a folder holds.",
        parameters={
            "type": "object",
            "properties": {
                "path": {**_PATH, "description": "Path of the file or folder."},
                "first": {"type": "integer", "minimum": 1, "description": "First line to show."},
                "last": {"type": "integer", "minimum": 1, "description": "Last line to show."},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        path = _quoted(arguments["path"])
        first, last = arguments.get("first", 1), arguments.get("last")
        if last is not None and last < first:
            raise Misused(f"view: the last line ({last}) is before the first ({first})")
        lines = f"{first},{'$' if last is None else last}p"
        return (
            f"if [ -d {path} ]; then ls -la {path}; "
            f"else nl -ba {path} | sed -n '{lines}'; exit ${{PIPESTATUS[0]}}; fi"
        )


class EditTool:
    spec = ToolSpec(
        name="edit",
        description="Replace a text in a file. The old text must stand there exactly once; with an "
        "empty old text a new file is made.",
        parameters={
            "type": "object",
            "properties": {
                "path": _PATH,
                "old": {"type": "string", "description": "Text to replace, with its white space."},
                "new": {"type": "string", "description": "Text that takes its place."},
            },
            "required": ["path", "old", "new"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        path, old, new = _quoted(arguments["path"]), arguments["old"], arguments["new"]
        if "\0" in old + new:
            raise Misused("edit: a text with NUL is in no file of text")
        if not old:
            return f"set -- {path} {shlex.quote(new)}\n{_CREATE}"
        return f"set -- {path} {shlex.quote(old)} {shlex.quote(new)}\n{_EDIT}"


class SearchTool:
    spec = ToolSpec(
        name="search",
        description=f"Find lines in the files below a path; the first {MAX_MATCHES} are shown.",
        parameters={
            "type": "object",
            "properties": {
                "pattern": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Extended regular expression, as grep -E takes it.",
                },
                "path": {**_PATH, "description": "File or folder; the working directory if unset."},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    )

    def command(self, arguments: Mapping[str, Any]) -> str:
        pattern, path = arguments["pattern"], _quoted(arguments.get("path", "."))
        if "\0" in pattern:
            raise Misused("search: a pattern with NUL is in no line")
        find = f"grep -rnIE --exclude-dir=.git -e {shlex.quote(pattern)} {path}"
        return f"{find} | head -n {MAX_MATCHES}; exit ${{PIPESTATUS[0]}}"


def _quoted(path: str) -> str:
    if "\0" in path:
        raise Misused("a path holds no NUL")
    return shlex.quote(f"./{path}" if path.startswith("-") else path)
