"""How Alembic connects: over the connection `upgrade` hands it, or, for `alembic revision`
on a developer's machine, to the database of this project's settings."""

import asyncio
from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from infra.db.database import Database
from infra.db.tables.models import Base
from mainspring.config.settings import load_settings
from migrations.accepted import write_mark


def run(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_item=render_plain_type
    )
    with context.begin_transaction():
        context.run_migrations()
        write_mark(connection, context.script, context.get_context().get_current_revision())


def render_plain_type(kind: str, item: Any, autogenerate: AutogenContext) -> str | Literal[False]:
    """Migrations spell out what lies in the database: code they import would change under them."""
    if kind != "type" or not isinstance(item, TypeDecorator):
        return False
    if isinstance(item.impl, JSONB):
        autogenerate.imports.add("from sqlalchemy.dialects import postgresql")
        return "postgresql.JSONB()"
    return f"sa.{item.impl!r}"


async def connect_and_run() -> None:
    async with (
        Database.open(load_settings().session_url, pool_size=1) as database,
        database.transaction() as connection,
    ):
        await connection.run_sync(run)


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(connect_and_run())
