"""Which programs a schema accepts: the mark that an upgrade leaves in the table `store`.

Invariant: a schema accepts the programs of every migration since the newest one that breaks them.
Such a migration has `breaks_older = True` at its top. A test compares the catalog before and after
each migration, and tells which of them must have it. Imported by `env` and `upgrade`.
"""

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

FIRST_ACCEPTED = "0038"
"""Changed a primary key that older programs name in their statements."""
FIRST_MARKED = "0039"
"""Has the column for the mark."""


def oldest_accepted(scripts: ScriptDirectory, revision: str) -> str:
    """Migration of the oldest program that works on the schema of `revision`."""
    breaking = [
        script.revision
        for script in scripts.iterate_revisions(revision, "base")
        if getattr(script.module, "breaks_older", False)
    ]
    return max([FIRST_ACCEPTED, *breaking])


def write_mark(connection: Connection, scripts: ScriptDirectory, revision: str | None) -> None:
    """Leave the mark of the schema that `connection` has just been brought to."""
    if revision is None or revision < FIRST_MARKED:
        return
    mark = {"oldest": oldest_accepted(scripts, revision)}
    connection.execute(text("UPDATE store SET oldest_accepted = :oldest"), mark)
