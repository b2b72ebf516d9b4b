"""The parser of a campaign's replies: one of those beside, or a function of your own by its path.

Invariant: what a parser of your own raises or returns amiss is a ConfigError that names it.
"""

from collections.abc import Sequence
from typing import Any

from mainspring.config.registry import Registry
from mainspring.errors import ConfigError
from mainspring.programs.parsing import hermes, llama_json, no_calls, qwen_xml
from mainspring.programs.parsing.protocol import Parser
from mainspring.programs.reply import Reply
from mainspring.programs.request import ToolSpec

DEFAULT = "hermes"
PARSERS: Registry[Parser] = Registry(
    "reply parser",
    (
        ("hermes", hermes.parse),
        ("qwen_xml", qwen_xml.parse),
        ("llama_json", llama_json.parse),
        ("none", no_calls.parse),
    ),
    takes="text, tools, is_cut",
)


def parser_of(name: str) -> Parser:
    """Raises ConfigError when there is none of that name."""
    parser: Any = PARSERS.find(name)
    if name in PARSERS:
        return parser

    def parse(text: str, tools: Sequence[ToolSpec], is_cut: bool) -> Reply:
        try:
            reply = parser(text, tools, is_cut)
        except Exception as error:
            raise ConfigError(
                f"reply parser {name!r} failed: {type(error).__name__}: {error}",
                remedy="a call that cannot be read stays text: no reply may raise",
            ) from error
        if not isinstance(reply, Reply):
            raise ConfigError(
                f"reply parser {name!r} returned a {type(reply).__name__}, expected a Reply",
                remedy="write it as `def parse(text, tools, is_cut) -> Reply`: see "
                "mainspring/programs/parsing",
            )
        return reply

    return parse
