"""Training: GRPO steps on Ray actors that hold a Megatron-core model.

Sets what Ray reads from the environment when it is imported, hence here.
"""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# At SIGTERM a trainer drains and a rank is being stopped: Ray would print a stack trace of it.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
