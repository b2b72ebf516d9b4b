"""The store: everything that must outlive a process, in Postgres.

Plain async functions over a `Database`, one module per noun. Each function is one transaction and
may be called again with the same arguments, after a crash or at the same time as itself.
`reading` has the figures that reports and screens show. Imported by activities, the trainer, the
command line and reports; never by workflows.
"""
