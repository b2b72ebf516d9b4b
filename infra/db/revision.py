"""The migration that this program needs. A test compares it with Alembic's newest.

A constant: Alembic takes a quarter of a second to load and is needed to migrate only.
"""

NEEDED = "0023"
