"""What ranks send to engines: together the weights of an export, each once, in small buckets."""

import numpy as np
import pytest

from tests.trainer import rank_jobs
from tests.trainer.ranks import run
from trainer.model.hf_directory import load_weights

DENSE = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2}
EXPERTS = {"expert_parallel": 2, "data_parallel": 2}


@pytest.mark.parametrize(
    ("family", "layout", "num_senders"),
    [("qwen3", {}, 1), ("qwen3", DENSE, 2), ("qwen3_moe", EXPERTS, 2)],
)
def test_every_weight_is_sent_once(family, layout, num_senders, make_model, make_config, tmp_path):
    _, directory = make_model(family, tied=family == "qwen3")
    config = make_config(engine="mcore", **layout)
    ranks = run(config.trainer.world_size, rank_jobs.gathered, config, directory, tmp_path / "out")
    senders = [buckets for buckets in ranks if buckets]
    assert len(senders) == num_senders
    assert all(len(buckets) > 3 for buckets in senders)
    sent = [item for buckets in senders for bucket in buckets for item in bucket.items()]
    expected = load_weights(tmp_path / "out")
    assert sorted(name for name, _ in sent) == sorted(expected)
    assert all(np.array_equal(value, expected[name].numpy()) for name, value in sent)
