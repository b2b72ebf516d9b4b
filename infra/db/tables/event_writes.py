"""Writing an event: one statement, in the transaction of the work that it tells of where there is
one.

Invariants: no work waits for an event, so a row that another transaction writes is not waited for,
and no other table is locked; the same id is one event, and its second writing none; the same kind
and subject within COUNTED_WITHIN_S is counted in one row, where the kind may come in floods. A row
is bounded in size. Imported by every room that notices something.
"""

import getpass
import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.db.tables.columns import plain
from mainspring.status.event import COUNTED, EventKind

COUNTED_WITHIN_S = 60.0
MAX_CHARS = 500
"""Length of its text: messages of foreign libraries may be pages."""
MAX_SUBJECT_CHARS = 200

_INSERT = (
    "INSERT INTO events (id, at, last_at, campaign_id, kind, subject, text, by, data) "
    "SELECT :id, now() - make_interval(secs => :ago_s), now() - make_interval(secs => :ago_s), "
    "cast(:campaign AS text), :kind, :subject, :text, :by, cast(:data AS jsonb)"
)
_END = " ON CONFLICT (id) DO NOTHING"
_COUNTED = (
    "WITH counted AS (UPDATE events SET count = count + 1, last_at = now(), text = :text, "
    "by = :by, data = cast(:data AS jsonb) WHERE id = (SELECT id FROM events "
    "WHERE {of_campaign} AND kind = :kind AND subject = :subject "
    f"AND last_at > now() - make_interval(secs => {COUNTED_WITHIN_S}) "
    "ORDER BY last_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id) "
    f"{_INSERT} WHERE NOT EXISTS (SELECT FROM counted){_END}"
)
_PLAIN = text(_INSERT + _END)
_OF_CAMPAIGN = text(_COUNTED.replace("{of_campaign}", "campaign_id = cast(:campaign AS text)"))
# As `IS NOT DISTINCT FROM` it would use no index.
_OF_NONE = text(_COUNTED.replace("{of_campaign}", "campaign_id IS NULL"))


def this_process() -> str:
    """Host and process id, for people."""
    return f"{socket.gethostname()} pid {os.getpid()}"


def person() -> str:
    """User and host of who gives a command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    subject: str
    text: str
    campaign: str | None = None
    by: str = ""
    """Empty: this process."""
    data: Mapping[str, float | str | None] = field(default_factory=dict)
    key: str = ""
    """Its id, where what happened has a name of its own."""


async def write(connection: AsyncConnection, event: Event, *, ago_s: float = 0.0) -> None:
    """Write an event that happened `ago_s` ago. As the last statement of its transaction: what it
    counts in stays locked until that ends."""
    counted = event.kind in COUNTED and not event.key
    parameters: dict[str, object] = {
        "id": plain(event.key or uuid.uuid4().hex),
        "campaign": event.campaign,
        "kind": event.kind.value,
        "subject": plain(event.subject)[:MAX_SUBJECT_CHARS],
        "text": plain(" ".join(event.text.split()))[:MAX_CHARS],
        "by": plain(event.by or this_process()),
        "data": json.dumps({key: _storable(value) for key, value in event.data.items()}),
        "ago_s": ago_s,
    }
    of_campaign = _OF_NONE if event.campaign is None else _OF_CAMPAIGN
    await connection.execute(of_campaign if counted else _PLAIN, parameters)


def _storable(value: float | str | None) -> float | str | None:
    return plain(value)[:MAX_SUBJECT_CHARS] if isinstance(value, str) else value
