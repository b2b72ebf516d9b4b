"""The tables: how rows lie in Postgres, and conditions on them that several rooms use.

Imported by the rooms of `infra.db` and by migrations; rows leave `infra.db` as records.
"""
