"""A worker process as users have it, but for a policy and a sandbox that do nothing.

`python -m cli.bench.fakes.scale_worker rollout HOME REPLY_S TURN_TOKENS COMMAND` or `... sandbox
HOME REPLY_S TURN_TOKENS COMMAND CAPACITY`: the code is that of `mainspring worker ...`, with the
no-op parts handed over. A COMMAND that is not empty runs in real sandboxes. Started by the bench of
scale.
"""

import sys
from functools import partial
from pathlib import Path

from cli.bench.fakes.no_op import NoBackend, serve_nothing
from infra.sandbox.backends import Backends
from mainspring.tasks.sandbox_choice import BWRAP
from workers import rollout, sandbox


def main(
    role: str, home: str, reply_s: str, turn_tokens: str, command: str, capacity: str = "1"
) -> None:
    serve = partial(
        serve_nothing,
        reply_s=float(reply_s),
        turn_tokens=int(turn_tokens),
        command=command or "true",
    )
    if role == "rollout":
        rollout.main(Path(home), serve=serve)
    else:
        sandbox.main(
            Path(home),
            int(capacity),
            num_warm=0,
            leave_sandboxes=not command,  # nothing is in them, and their stack is removed
            backends=None if command else Backends({BWRAP: NoBackend()}),
            serve=serve,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
