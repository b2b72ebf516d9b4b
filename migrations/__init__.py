"""The database's schema over time, as Alembic migrations; applied by `infra.db.migrate`.

To add one: change `infra/db/models.py`, then `alembic revision --autogenerate -m "what changed"`
against a database at the newest migration, and read what it wrote.
"""
