"""Plans of the engine fsdp: weights that ranks share, and families that are not known here."""

import json
from dataclasses import replace

import pytest

from mainspring.errors import ModelError
from mainspring.model_folder.any_model import estimated_sizes
from mainspring.model_folder.refusals import FolderUse
from mainspring.planning.activations import BatchTokens
from mainspring.planning.assumptions import Given
from mainspring.planning.host_memory import host_memory
from mainspring.planning.memory import MemoryPart, Moment, MomentName, memory_of_ranks
from mainspring.planning.model_shape import read_shape
from mainspring.planning.plan import plan_of
from mainspring.planning.rank_kinds import check_divides
from tests.mainspring.planning.campaigns import campaign, model

FSDP = {"device": "cuda", "engine": "fsdp", "dtype": "bfloat16"}
TOKENS = BatchTokens(num=8192, longest=8192, num_actions=2048)


def moment(trainer: dict, name: MomentName) -> Moment:
    [rank] = memory_of_ranks(campaign(FSDP | trainer), model("qwen3-8b"), TOKENS, 4)
    return next(each for each in rank.moments if each.name is name)


def test_ranks_share_weights_gradients_and_optimizer_in_float32() -> None:
    parameters = model("qwen3-8b").num_parameters
    found = moment({"data_parallel": 8}, MomentName.LOGITS).bytes_of
    share = -(-parameters // 8)
    assert found[MemoryPart.WEIGHTS] == found[MemoryPart.GRADIENTS] == 4 * share
    assert found[MemoryPart.OPTIMIZER] == pytest.approx(8 * share, rel=1e-6)
    # Embedding and output layer and two layers are whole in bfloat16, with gradients of one unit.
    layer, root = 192_946_432, 2 * 151_936 * 4_096 + 4_096
    whole = 2 * (root + 2 * layer) + 2 * (root + layer) + 4 * root
    assert found[MemoryPart.COMMUNICATION] == pytest.approx(whole, rel=1e-6)


def test_offloaded_ranks_keep_no_weights_between_passes() -> None:
    found = moment({"optimizer_offload": True}, MomentName.UPDATE).bytes_of
    assert found[MemoryPart.WEIGHTS] == found[MemoryPart.GRADIENTS] == 0


CRITIC = {"advantage": "gae", "filter": "none", "critic": {}}


def test_ranks_share_a_critic_in_float32() -> None:
    """Its layers and embedding, no output layer, and one number for each token."""
    shape = model("qwen3-8b")
    share = -(-(shape.num_parameters - 151_936 * 4_096 + 4_096 + 1) // 8)
    fields = CRITIC | {"data_parallel": 8}
    for name in MomentName:
        found, without = moment(fields, name), moment({"data_parallel": 8}, name)
        expected = (4 if name is MomentName.IMPORT else 12) * share
        assert found.bytes_of[MemoryPart.CRITIC] == pytest.approx(expected, rel=1e-6)
        more = found.num_bytes - without.num_bytes
        assert more == found.bytes_of[MemoryPart.CRITIC]
    adapted = moment(fields | {"lora": {"rank": 8}}, MomentName.BACKWARD).bytes_of
    whole = moment(fields, MomentName.BACKWARD).bytes_of
    for part in (MemoryPart.CRITIC, MemoryPart.GRADIENTS, MemoryPart.COMMUNICATION):
        assert adapted[part] == whole[part], "a critic has no adapters"


def test_an_offloaded_critic_is_in_the_hosts_memory() -> None:
    shape, fields = model("qwen3-8b"), CRITIC | {"optimizer_offload": True, "data_parallel": 8}
    assert moment(fields, MomentName.UPDATE).bytes_of[MemoryPart.CRITIC] == 0
    assert moment(fields, MomentName.IMPORT).bytes_of[MemoryPart.CRITIC] == 0
    hosts = []
    for each in (fields, {"optimizer_offload": True, "data_parallel": 8}):
        config = campaign(FSDP | each)
        ranks = memory_of_ranks(config, shape, TOKENS, 4)
        hosts.append(host_memory(shape, config.trainer, ranks))
    critic = 12 * (shape.num_parameters - 151_936 * 4_096)
    assert hosts[0].step_bytes - hosts[1].step_bytes == pytest.approx(critic, rel=1e-4)


def test_a_checkpoint_has_each_weight_in_float32_and_two_moments() -> None:
    """Of the critic as well."""
    shape = model("qwen3-8b")
    sizes = []
    for fields in ({}, CRITIC):
        demand = plan_of(campaign(FSDP | fields), shape, Given()).demand
        sizes.append(demand.checkpoint_bytes - demand.export_bytes)
    assert sizes[0] == pytest.approx(12 * shape.num_parameters, rel=1e-4)
    assert sizes[1] - sizes[0] == 12 * (shape.num_parameters - shape.embedding_parameters)


def test_a_weight_is_not_cut_into_more_parts_than_it_has_rows() -> None:
    shape = replace(model("qwen3-8b"), hidden_size=64)
    check_divides(shape, campaign(FSDP | {"data_parallel": 64}).trainer)
    with pytest.raises(ModelError, match=r"data_parallel = 65 is more than .* hidden_size = 64"):
        check_divides(shape, campaign(FSDP | {"data_parallel": 65}).trainer)


def test_sizes_of_an_unknown_family_are_estimated(tmp_path) -> None:
    text = {
        "model_type": "new_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    config = {"model_type": "new", "architectures": ["NewForCausalLM"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(tmp_path, FolderUse.ANY_MODEL)
    assert (shape.num_experts, shape.experts_per_token, shape.head_dim) == (8, 2, 16)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 2 * 64 + 64 * 8 + 8 * 3 * 64 * 32
    assert shape.num_parameters == 2 * layer + 2 * 100 * 64 + 64
    with pytest.raises(ModelError, match="model_type 'new'"):
        read_shape(tmp_path)
    with pytest.raises(ModelError, match="hidden_size = None, expected a whole number"):
        estimated_sizes({"model_type": "new"}, "model directory /m")
