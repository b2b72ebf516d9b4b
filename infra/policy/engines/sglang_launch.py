"""SGLang's server with its API key from the environment: the process list shows no secret.

`python -m infra.policy.engines.sglang_launch ARGUMENTS` is `python -m sglang.launch_server
ARGUMENTS` with `--api-key` added inside the process. Started by `mainspring serve --engine sglang`,
on hosts that have SGLang and no torch of the trainer: imports nothing else of the project.
"""

import os
import runpy
import sys

KEY_VARIABLE = "MAINSPRING_POLICY_API_KEY"


def main() -> None:
    # Taken out, so that the processes that SGLang starts do not inherit it.
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        sys.argv += ["--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
