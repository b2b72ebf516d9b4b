"""Configuration of a run, field by field, and what differs from another run's.

Imported by `pages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.db.naming import campaign_named
from infra.db.runs.campaigns import CampaignRecord
from mainspring.status import CampaignKind
from view.page import Page
from view.page_request import PageRequest
from view.viewer import Viewer


@dataclass(frozen=True, slots=True)
class FieldLine:
    field: str
    value: Any
    other: Any = None
    differs: bool = False


@dataclass(frozen=True, slots=True)
class ConfigPage:
    campaign: str
    kind: CampaignKind
    compared_with: str | None
    fields: Sequence[FieldLine]
    """All, or those that differ."""
    changes: Sequence[str]


async def read(viewer: Viewer, asked: PageRequest) -> ConfigPage:
    other = asked.query.get("with") or None
    async with viewer.part("the configuration") as db:
        record = await campaign_named(db, asked.path["name"])
        compared = None if other is None else await campaign_named(db, other)
    return ConfigPage(
        campaign=record.id,
        kind=record.kind,
        compared_with=None if compared is None else compared.id,
        fields=[FieldLine(name, value) for name, value in flat(record).items()]
        if compared is None
        else differences(record, compared),
        changes=[
            f"{change.line}, by {change.changed_by}, {change.changed_at:%Y-%m-%d %H:%M} UTC"
            for change in record.changes
        ],
    )


def flat(record: CampaignRecord) -> dict[str, Any]:
    """Each field by its whole name, as in a campaign file."""
    return dict(_fields("", record.config.model_dump(mode="json")))


def differences(a: CampaignRecord, b: CampaignRecord) -> list[FieldLine]:
    of_a, of_b = flat(a), flat(b)
    return [
        FieldLine(name, of_a.get(name), of_b.get(name), differs=True)
        for name in sorted(of_a.keys() | of_b.keys())
        if of_a.get(name) != of_b.get(name) and name not in ("name", "kind")
    ]


def _fields(start: str, section: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in section.items():
        if isinstance(value, dict) and value:
            found += _fields(f"{start}{name}.", value)
        else:
            found.append((f"{start}{name}", value))
    return found


PAGES = (Page("/c/{name}/config", "config.html.j2", read),)
