"""The log of one process: one line an event on standard error, whichever library writes it.

structlog and the standard library, and with it Temporal's loggers for activities and workflows and
the core of its SDK, end in the same line: UTC time, level, event, then fields, among them campaign,
rollout and turn of the activity that runs (see `infra.temporal.log`). Text on a terminal, JSON
lines elsewhere. A command in the foreground tells people in sentences of its own: of its log they
see errors alone, as text. Called once, when a worker or a command that logs starts.
"""

import logging
import os
import sys

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from mainspring.config.settings import LogFormat
from mainspring.words.plain_text import plain

QUIET = (
    *("alembic", "asyncio", "docker", "filelock", "httpcore", "httpx", "mlflow", "ray", "urllib3"),
    "wandb",
)
"""Libraries whose progress reports are of no use to an operator: warnings only."""
_FIRST = ("timestamp", "level", "event")


def set_up(log_format: LogFormat = LogFormat.AUTO, *, for_a_person: bool = False) -> None:
    """Calling it again changes the format and nothing else. `for_a_person`: of a command in the
    foreground, unless JSON was asked for."""
    is_elsewhere = not for_a_person and not sys.stderr.isatty()
    as_json = log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and is_elsewhere)
    level = logging.ERROR if for_a_person and not as_json else logging.INFO
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_workflow],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(as_json),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    # It tells with a traceback that a connection was open when the command was interrupted.
    logging.getLogger("sqlalchemy.pool").setLevel(
        logging.CRITICAL if level is logging.ERROR else logging.NOTSET
    )


def _renderers(as_json: bool) -> list[Processor]:
    if as_json:
        return [
            structlog.processors.format_exc_info,
            _order,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
    in_colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    traceback = structlog.dev.plain_traceback
    return [
        _steers_nothing,
        structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=traceback),
    ]


def _steers_nothing(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Failures and names come from elsewhere. JSON escapes them."""
    return {key: plain(text) if isinstance(text, str) else text for key, text in event.items()}


def _name_workflow(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Workflow code runs on the SDK's threads, out of reach of context variables."""
    details = getattr(event.get("_record"), "temporal_workflow", None)
    if details:
        event["workflow"] = details["workflow_id"]
    return event


def _order(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**{key: event[key] for key in _FIRST if key in event}, **event}
