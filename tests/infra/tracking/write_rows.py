"""`python write_rows.py FOLDER FIRST LAST [kill]`: steps for an offline run of Weights & Biases."""

import os
import signal
import sys
from pathlib import Path

from infra.tracking.wandb_tracker import WandbTracker
from tests.infra.tracking.tracked import given, step

folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
tracker = WandbTracker(given(folder, wandb={"mode": "offline"}))
has = tracker.open()
points = [step(number) for number in range(first, last + 1)]
tracker.send([point for point in points if point.id not in has])
if "kill" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
tracker.end(None)
print(len(has))
