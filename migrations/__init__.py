"""The database's schema over time, as Alembic migrations; applied by `migrations.upgrade`.

To add one: change `infra/db/tables/models.py`, then `alembic revision --autogenerate -m "what
changed"` against a database at the newest migration, and read what it wrote: it does not see CHECK
constraints. A test compares the result with the models, CHECK constraints included.
"""
