"""The texts of agents as templates: filled, and checked with examples.

Invariant: values are never read as templates. Only mainspring.agents imports it.
"""

from jinja2 import TemplateError, meta

from mainspring.agents.bash_block import SUBMIT_SENTINEL
from mainspring.errors import ConfigError
from mainspring.words.jinja import ENVIRONMENT, compiled


def render(source: str, **names: object) -> str:
    """Fill a template; `sentinel` is always there. Values are never read as templates."""
    return compiled(source).render(sentinel=SUBMIT_SENTINEL, **names)


def check_template(what: str, source: str, **examples: object) -> None:
    """Fill it with examples. Raises ConfigError naming `what` for a syntax error, a name that it
    does not have, and whatever else it fails with."""
    remedy = f"its names are {', '.join((*examples, 'sentinel'))}: see docs/built-in-agents.md"
    try:
        used = meta.find_undeclared_variables(ENVIRONMENT.parse(source))
        if unknown := used - {*examples, "sentinel"}:
            raise ConfigError(f"{what} uses {min(unknown)!r}, which it lacks", remedy=remedy)
        render(source, **examples)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        place = "" if line is None else f", line {line}"
        raise ConfigError(f"{what}{place}: {error}", remedy=remedy) from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {error}", remedy=remedy) from None
