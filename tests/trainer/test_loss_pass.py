"""A pass of the loss over several ranks."""

from dataclasses import replace

import numpy as np
import pytest

from trainer.driver import TrainerDriver
from trainer.rank import TrainerRank


async def test_a_rank_without_a_micro_batch_does_not_hold_up_the_others(
    driver: TrainerDriver, make_model, make_config, batch
) -> None:
    _, directory = make_model("qwen3")
    driver.start(make_config(data_parallel=2), directory)
    found = driver.train_step([batch[0]], step=0, current_version=0)
    alone = TrainerRank(make_config(), directory).train_step([batch[0]], step=0, current_version=0)
    assert found.values.keys() == {"clip_fraction"}
    assert found.values["clip_fraction"] == alone.values["clip_fraction"]
    assert found.loss == pytest.approx(alone.loss, abs=1e-6)
    flat = driver.train_step(
        [replace(batch[0], advantages=np.zeros_like(batch[0].advantages))],
        step=1,
        current_version=0,
    )
    assert (flat.loss, flat.kl, flat.values) == (None, None, {})
