"""`python -m mainspring`: the same as the `mainspring` command."""

from mainspring.cli.main import main

main()
