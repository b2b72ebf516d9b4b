"""`python -m mainspring`: the same as the `mainspring` command.

The program's door, which nothing imports: the one file here that may import `cli`. It stands here
so that operators find every process under this name.
"""

from cli.main import main

main()
