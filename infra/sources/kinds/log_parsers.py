"""Whether the official library has a log parser, where that library is installed.

Imported by `rows`; grading is where parsers are used.
"""

import re
from functools import cache

from infra.sources.protocol import RowError, RowProblem

_NAME = re.compile(r"parse_log_\w+", re.ASCII)


def check_parser(name: str) -> None:
    """Raises RowError. Without the library only the name's shape is looked at."""
    registered = _registered()
    if name in registered if registered is not None else _NAME.fullmatch(name):
        return
    raise RowError(
        RowProblem.UNKNOWN_PARSER,
        f"swebench has no log parser {name!r}",
        remedy="its parsers are the keys of swebench.PARSER_REGISTRY",
    )


@cache
def _registered() -> frozenset[str] | None:
    try:
        from swebench.harness.log_parsers import PARSER_REGISTRY
    except ImportError:
        return None
    return frozenset(PARSER_REGISTRY)
