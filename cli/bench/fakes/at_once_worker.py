"""A rollout worker as users have it, whose engine answers at once: `python -m
cli.bench.fakes.at_once_worker HOME MODEL`. Started by the bench of the gateway.

Invariant: only the engine is another one. Prompts are rendered and encoded by the tokenizer of
MODEL, and replies are tokens of it.
"""

import sys
from functools import partial
from pathlib import Path

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import Completion, SamplingParams
from infra.policy.serving import CampaignPolicy, in_tokens
from infra.policy.weight_label import WeightLabel
from mainspring.ids import CampaignId
from mainspring.trajectories.turns import VersionSpan
from workers import rollout

REPLY = "The suite fails in one place. I read the function again and change its operator." * 2
LOGPROB = -0.25


class AtOnce:
    """Implements `Engines`."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._ids = tuple(tokenizer.reply_ids(REPLY))

    async def generate(
        self, input_ids: list[int], params: SamplingParams, **_: object
    ) -> Completion:
        ids = self._ids
        span = VersionSpan(0, 0, len(ids))
        return Completion(ids, (LOGPROB,) * len(ids), (span,), "stop", 0.0)

    async def publish(self, engine: str, weights: Path, label: WeightLabel) -> None:
        return None

    async def reconcile(self, engine: str, weights: Path, label: WeightLabel) -> bool:
        return False

    async def aclose(self) -> None:
        return None


async def serve_at_once(db: Database, campaign: CampaignId, model: Path) -> CampaignPolicy:
    """Implements `Serve`."""
    config = (await campaigns.get(db, campaign)).config
    tokenizer = ChatTokenizer(model)
    return in_tokens(db, campaign, config, AtOnce(tokenizer), tokenizer)


def main(home: str, model: str) -> None:
    rollout.main(Path(home), serve=partial(serve_at_once, model=Path(model)))


if __name__ == "__main__":
    main(*sys.argv[1:])
