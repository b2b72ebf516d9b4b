"""The embedded stack: Postgres and Temporal's dev server on this machine, for one home folder.

Imports `mainspring` and, for migrations, `migrations.upgrade`. Used by the CLI, the quickstart and
the tests; a cluster brings its own services and needs none of this.
"""
