"""Reading bash line by line, as far as to know what a line belongs to: code, a quote, a heredoc.

Pure. It follows quotes, comments, substitutions, arithmetic and heredocs; it checks no syntax.
Used by `bash_block`, where a line of back-quotes ends a command only if it is code.
"""

import re
from dataclasses import dataclass, field

_HEREDOC = re.compile(
    r"<<(?P<dash>-?)[ \t]*(?P<word>(?:\\.|'[^']*'|\"[^\"]*\"|[^\s;&|<>()'\"\\])+)"
)
_QUOTES = ("'", '"', "$'")
_ARITHMETIC = ("((", "$((")


@dataclass(frozen=True, slots=True)
class _Heredoc:
    delimiter: str
    strips_tabs: bool

    def ends_at(self, line: str) -> bool:
        return (line.lstrip("\t") if self.strips_tabs else line) == self.delimiter


@dataclass(slots=True)
class ShellLines:
    """Quotes and heredocs that the lines so far have opened."""

    _open: list[str] = field(default_factory=list)
    """Quotes and substitutions that are open, as they begin, the innermost last."""
    _heredocs: list[_Heredoc] = field(default_factory=list)
    """Whose bodies have begun or begin with the next line."""
    _body: bool = False

    @property
    def in_heredoc(self) -> bool:
        """Whether the next line is one of a heredoc's body, or its end."""
        return self._body

    @property
    def in_quote(self) -> bool:
        """Whether the next line begins inside quotes."""
        return any(mark in _QUOTES for mark in self._open)

    @property
    def num_heredocs(self) -> int:
        """Whose end is not reached."""
        return len(self._heredocs)

    @property
    def delimiter(self) -> str:
        """That the open heredoc ends with."""
        return self._heredocs[0].delimiter if self._heredocs else ""

    def add(self, line: str) -> None:
        if self._body:
            if self._heredocs[0].ends_at(line):
                del self._heredocs[0]
                self._body = bool(self._heredocs)
            return
        self._read(line)
        self._body = bool(self._heredocs) and (not self._open or self._open[-1] not in _QUOTES)

    def _read(self, line: str) -> None:
        at, end = 0, len(line)
        while at < end:
            inside = self._open[-1] if self._open else ""
            if inside == "'":
                quote = line.find("'", at)
                if quote < 0:
                    return
                self._open.pop()
                at = quote + 1
            elif line[at] == "\\":
                at += 2
            elif inside == "$'":
                if line[at] == "'":
                    self._open.pop()
                at += 1
            elif inside == '"':
                at = self._in_double_quotes(line, at)
            else:
                if line[at] == "#" and inside != "${" and self._begins_word(line, at):
                    return
                at = self._in_code(line, at, inside)

    def _in_double_quotes(self, line: str, at: int) -> int:
        if line[at] == '"':
            self._open.pop()
            return at + 1
        return self._substitution(line, at) or at + 1

    def _in_code(self, line: str, at: int, inside: str) -> int:
        if inside in _ARITHMETIC and line.startswith("))", at):
            self._open.pop()
            return at + 2
        if line.startswith("<<<", at):
            return at + 3
        if inside not in _ARITHMETIC and (match := _HEREDOC.match(line, at)):
            word = re.sub(r"\\(.)|['\"]", r"\1", match["word"])
            self._heredocs.append(_Heredoc(word, bool(match["dash"])))
            return match.end()
        if after := self._substitution(line, at):
            return after
        if line.startswith("$'", at):
            return self._push("$'", at)
        if line.startswith("((", at) and self._begins_word(line, at):
            return self._push("((", at)
        char = line[at]
        literal = inside == "${" and '"' in self._open  # a single quote there is text
        if char == '"' or (char == "'" and not literal) or (char == "(" and inside != "${"):
            return self._push(char, at)
        if (char == "}" and inside == "${") or (char == ")" and inside in ("(", "$(")):
            self._open.pop()
        return at + 1

    def _substitution(self, line: str, at: int) -> int:
        """Where it continues if one begins or a back-quoted one ends here, else 0."""
        for begin in ("$((", "$(", "${"):
            if line.startswith(begin, at):
                return self._push(begin, at)
        if line[at] != "`":
            return 0
        if self._open and self._open[-1] == "`":
            self._open.pop()
            return at + 1
        return self._push("`", at)

    def _push(self, begin: str, at: int) -> int:
        self._open.append(begin)
        return at + len(begin)

    def _begins_word(self, line: str, at: int) -> bool:
        return at == 0 or line[at - 1] in " \t;&|()"
