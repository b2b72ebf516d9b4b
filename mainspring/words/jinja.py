"""Templates of other people's: Jinja2 in its sandbox, for the texts of agents and of judges.

Invariants: a template calls nothing that changes or reaches anything; an unknown name is an error;
text is left as it is. Pure.
"""

from functools import cache

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


@cache
def compiled(source: str) -> Template:
    """Raises jinja2.TemplateError."""
    return ENVIRONMENT.from_string(source)
