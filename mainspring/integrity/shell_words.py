"""Reading a bash script: the simple commands in it, each as its words. Pure.

Enough to recognise what somebody tried to run, and no shell: nothing is expanded, quotes and
heredocs are honoured, control flow is not. What another interpreter gets to read (`bash -c`,
`python - <<EOF`) is read too; what is only written or printed is not. Never raises; time is linear
in the script's length, for policies write what they like.
"""

import re
from collections.abc import Iterator
from itertools import pairwise

Words = tuple[str, ...]

MAX_CHARS = 20_000
"""Characters of one script; a reply is far below."""
MAX_DEPTH = 3
"""Scripts inside scripts."""

_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*['\"\\]?([A-Za-z_]\w*)['\"]?")
_TOKEN = re.compile(
    r"""
    (?P<space> [ \t\r]++ | \\\n | (?<!\S)\#[^\n]*+ | \d*+[<>]++&?+[-\d]*+ )
  | (?P<end> [\n;|&()`]++ )
  | (?P<word> (?: '[^']*+' | "(?:[^"\\]|\\.)*+" | \\. | [^\s;|&()`<>'"\\] )++ )
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*+)'|"((?:[^"\\]|\\.)*+)"|\\(.)""", re.DOTALL)
_SUBSTITUTION = re.compile(r"\$\(([^()]*+)\)|`([^`]*+)`")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_WRAPPER = re.compile(
    r"sudo|env|time|timeout|nice|nohup|xargs|command|exec|stdbuf|builtin|if|then|elif|else|do"
    r"|while|until|!|\{"
)
_WRAPPERS_ARGUMENT = re.compile(r"-\S*|\d+(?:\.\d+)?[smhd]?|\{\}|[A-Za-z_]\w*=.*", re.DOTALL)
_SHELL = re.compile(r"(?:ba|z|da|k)?sh|eval")
_INTERPRETER = re.compile(r"python[\d.]*|perl|ruby|node")
_BETWEEN_STRINGS = re.compile(r"[\[\],]")


def commands(script: str, depth: int = MAX_DEPTH) -> Iterator[Words]:
    """Every simple command, its program's bare name first, without wrappers and assignments."""
    text, bodies = _heredocs(script[:MAX_CHARS])
    parsed = list(_commands(text, depth))
    yield from parsed
    if depth and bodies:
        # Whether fed at once or written to a file: an interpreter that runs here may read it.
        heads = {words[0] for words in parsed}
        for body in bodies:
            if any(map(_SHELL.fullmatch, heads)):
                yield from commands(body, depth - 1)
            elif any(map(_INTERPRETER.fullmatch, heads)):
                yield from _strings(body, depth - 1)


def _heredocs(script: str) -> tuple[str, list[str]]:
    """The script without its heredocs, and their bodies."""
    lines = script.split("\n")
    last = {line.strip(): number for number, line in enumerate(lines)}
    text, bodies = [], []
    number = 0
    while number < len(lines):
        text.append(lines[number])
        number += 1
        for end in _HEREDOC.findall(text[-1]):
            if last.get(end, -1) < number:
                continue  # a shift, or C++
            begin = number
            while lines[number].strip() != end:
                number += 1
            bodies.append("\n".join(lines[begin:number]))
            number += 1
    return "\n".join(_HEREDOC.sub(" ", line) for line in text), bodies


def _strings(program: str, depth: int) -> Iterator[Words]:
    """Commands in a program of another language: calls with strings, and strings with spaces."""
    for words in _commands(_BETWEEN_STRINGS.sub(" ", program), 0):
        yield words
        if depth:
            for word in words:
                if " " in word:
                    yield from commands(word, depth - 1)


def _commands(text: str, depth: int) -> Iterator[Words]:
    words: list[str] = []
    for match in _TOKEN.finditer(text):
        if word := match["word"]:
            words.append(_QUOTED.sub(_unquoted, word))
            if depth and '"' in word:
                for substitution in _SUBSTITUTION.findall(word):
                    yield from commands("".join(substitution), depth - 1)
        elif match["end"]:
            yield from _simple(words, depth)
            words = []
    yield from _simple(words, depth)


def _simple(words: list[str], depth: int) -> Iterator[Words]:
    start = 0
    while start < len(words):
        if _WRAPPER.fullmatch(words[start]):
            start += 1
            while start < len(words) and _WRAPPERS_ARGUMENT.fullmatch(words[start]):
                start += 1
        elif _ASSIGNMENT.match(words[start]):
            start += 1
        else:
            break
    if start == len(words):
        return
    head = words[start].rpartition("/")[2]
    rest = words[start + 1 :]
    yield (head, *rest)
    if not depth:
        return
    if head == "eval":
        yield from commands(" ".join(rest), depth - 1)
    elif _SHELL.fullmatch(head):
        yield from commands(_given(rest, "c"), depth - 1)
    elif _INTERPRETER.fullmatch(head):
        yield from _strings(_given(rest, "ce"), depth - 1)


def _unquoted(part: re.Match[str]) -> str:
    return part[1] or part[2] or part[3] or ""


def _given(words: list[str], letters: str) -> str:
    """The script behind `-c`, or whatever letter the program wants."""
    for option, script in pairwise(words):
        if option.startswith("-") and not option.startswith("--") and option[-1] in letters:
            return script
    return ""
