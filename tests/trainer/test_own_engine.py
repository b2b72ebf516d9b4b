"""An engine named by its path takes the rank's steps."""

import numpy as np

from mainspring.algorithms.choice import ENGINES, LOSSES, check_algorithms, find_engine, find_loss
from mainspring.config.trainer import TrainerConfig
from trainer.engines.plain import PlainEngine
from trainer.process.rank import TrainerRank


class FrozenHead(PlainEngine):
    """Without the gradient of the output layer."""

    def forward_backward(self, sequences, loss) -> None:
        super().forward_backward(sequences, loss)
        self._model.embedding.word_embeddings.weight.grad = None


def test_an_engine_of_ones_own_takes_a_step(make_model, make_config, batch) -> None:
    _, directory = make_model("qwen3")
    config = make_config(engine=f"{__name__}:FrozenHead")
    check_algorithms(config.trainer)
    rank = TrainerRank(config, directory)
    embedding = "embedding.word_embeddings.weight"
    before = {name: weight.clone() for name, weight in rank._weights.named().items()}
    rank.train_step(batch, step=0, current_version=0)
    moved = {
        name for name, weight in rank._weights.named().items() if (weight != before[name]).any()
    }
    assert moved == before.keys() - {embedding}
    usual = TrainerRank(make_config(), directory)
    usual.train_step(batch, step=0, current_version=0)
    found, expected = rank.logprobs(batch), usual.logprobs(batch)
    assert not all(np.array_equal(found[n], expected[n]) for n in expected)


def test_every_name_leads_to_its_implementation() -> None:
    for name in LOSSES:
        assert callable(find_loss(TrainerConfig(loss=name)))
    for name in ENGINES:
        assert isinstance(find_engine(TrainerConfig(engine=name)), type)
