"""The plain step engine, which asks the campaign's policy engine what memory it holds whenever a
rank computes, and writes the answer down: one line of WATCHED for each pass."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from mainspring.config.campaign import CampaignConfig
from mainspring.trajectories.sequences import MaskedSequence
from trainer.engines.plain import PlainEngine
from trainer.engines.protocol import MicroBatchLoss
from trainer.model.processes import Processes

WATCHED = "MAINSPRING_TESTS_WATCHED"


class WatchingEngine(PlainEngine):
    def __init__(self, config: CampaignConfig, model_dir: Path, processes: Processes) -> None:
        self._url = config.policy.engines[0]
        self._look("built")
        super().__init__(config, model_dir, processes)

    def logprobs(self, sequences: Sequence[MaskedSequence]) -> dict[int, NDArray[np.float32]]:
        self._look("log-probs")
        return super().logprobs(sequences)

    def forward_backward(self, sequences: Sequence[MaskedSequence], loss: MicroBatchLoss) -> None:
        self._look("gradients")
        super().forward_backward(sequences, loss)

    def _look(self, what: str) -> None:
        try:
            answer = httpx.get(self._url + "/server_info", timeout=30)
            memory = answer.json()["memory"]
        except httpx.TransportError:
            memory = None  # it is being started, or was killed
        line = json.dumps({"at": time.time(), "what": what, "memory": memory})
        with open(os.environ[WATCHED], "a") as file:
            file.write(line + "\n")
