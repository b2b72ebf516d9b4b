"""All that measures: `mainspring bench ...`, and programs for maintainers beside it.

Imports the operations; nothing else of the command line imports it but `cli.main`.
"""
