"""Jinja as the agent's texts use it: an unknown name is an error, and text is left as it is.

Only mainspring.agents imports it.
"""

from functools import cache

from jinja2 import Environment, StrictUndefined, Template

from mainspring.agents.bash_block import SUBMIT_SENTINEL

_ENVIRONMENT = Environment(undefined=StrictUndefined, autoescape=False)


@cache
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def render(source: str, **names: object) -> str:
    """Fill a template; `sentinel` is always there. Values are never read as templates."""
    return _compiled(source).render(sentinel=SUBMIT_SENTINEL, **names)
