"""A rollout worker whose replies come from a server of the tests; all else is as in every worker.

python -m tests.gateway.scripted_worker HOME MODEL URL
"""

import sys
from pathlib import Path

import httpx

from infra.db.database import Database
from infra.db.runs import campaigns
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import (
    ANY,
    Completion,
    Keep,
    NoEngineAnswered,
    SamplingParams,
    Versions,
)
from infra.policy.serving import CampaignPolicy, in_tokens
from mainspring.ids import CampaignId
from mainspring.trajectories.turns import PartialCall
from workers import rollout

sys.path.append(str(Path(__file__).parents[1] / "workflows"))

from program_cluster import ScriptedEngine


class Elsewhere(ScriptedEngine):
    def __init__(self, tokenizer: ChatTokenizer, url: str) -> None:
        super().__init__(tokenizer)
        self._text = tokenizer
        self._client = httpx.AsyncClient(base_url=url, timeout=None)

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        prompt = self._text.decode(input_ids)
        asked = {"rollout": sticky, "prompt": prompt, "input_ids": input_ids}
        try:
            answer = await self._client.post("/", json=asked)
        except httpx.HTTPError as error:
            raise NoEngineAnswered("the engine died", num_closed) from error
        return self.completion(answer.json(), params, versions)


def main(home: Path, model: Path, url: str) -> None:
    tokenizer = ChatTokenizer(model)

    async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
        config = (await campaigns.get(db, campaign)).config
        return in_tokens(db, campaign, config, Elsewhere(tokenizer, url), tokenizer)

    rollout.main(home, serve)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
