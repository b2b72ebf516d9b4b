"""Memory of ranks against numbers computed by hand, and against counts of what autograd saves."""

from dataclasses import replace
from typing import Any

import pytest

from mainspring.errors import ModelError
from mainspring.planning.activations import BatchTokens, layer_bytes
from mainspring.planning.memory import CPU_REST_BYTES, MemoryPart, MomentName, memory_of_ranks
from mainspring.planning.model_shape import ModelShape
from mainspring.planning.rank_kinds import rank_kinds
from tests.mainspring.planning.campaigns import MCORE, PLAIN, campaign, model

TOKENS = BatchTokens(num=16384, longest=16384, num_actions=4096)
COUNTED = ModelShape(
    model_type="qwen3",
    hidden_size=256,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=768,
    vocab_size=97,
    is_tied=True,
    file_bytes_per_weight=4,
)


def test_qwen3_8b_in_bfloat16_over_4_tensor_and_2_data_parallel_ranks() -> None:
    config = campaign(MCORE | {"tensor_parallel": 4, "data_parallel": 2})
    [rank] = memory_of_ranks(config, model("qwen3-8b"), TOKENS, 4)
    # Of each layer a quarter of 41,943,040 + 150,994,944, and 8,448 of norms; of 36 layers. A
    # quarter of embedding and of output layer, 155,582,464 each; and the last norm.
    parameters = 36 * (48_234_496 + 8_448) + 2 * 155_582_464 + 4_096
    assert rank.kind.num_ranks == 8
    assert rank.kind.num_parameters == parameters == 2_047_915_008
    assert rank.peak.bytes_of[MemoryPart.WEIGHTS] == 2 * parameters
    assert rank.peak.bytes_of[MemoryPart.GRADIENTS] == 4 * parameters
    assert rank.peak.bytes_of[MemoryPart.OPTIMIZER] == 12 * parameters // 2


def test_the_plain_engine_replicates_its_optimizer_and_copies_gradients_to_add_them_up() -> None:
    shape = COUNTED
    parameters = shape.num_parameters
    tokens = BatchTokens(64, 64, 16)
    [alone] = memory_of_ranks(campaign(PLAIN), shape, tokens, 2)
    [copy] = memory_of_ranks(campaign(PLAIN | {"data_parallel": 2}), shape, tokens, 2)
    one, two = (_moment(rank, MomentName.UPDATE) for rank in (alone, copy))
    assert one[MemoryPart.WEIGHTS] == two[MemoryPart.WEIGHTS] == 4 * parameters
    # Two moments, and what computing with the largest weight takes (gate and up: 2 x 768 x 256).
    assert two[MemoryPart.OPTIMIZER] == 8 * parameters + 8 * 2 * 768 * 256
    assert one[MemoryPart.COMMUNICATION] == 0
    assert two[MemoryPart.COMMUNICATION] == 4 * parameters
    assert two[MemoryPart.REST] == CPU_REST_BYTES


def test_with_adapters_the_frozen_weights_have_no_gradient_and_no_state() -> None:
    """Of q, k, v, o, gate, up and down: rank x (rows + columns), of four layers."""
    shape, tokens, lora = COUNTED, BatchTokens(64, 64, 16), {"lora": {"rank": 8}}
    pairs = [(256, 256), (256, 64), (256, 64), (256, 256), (256, 768), (256, 768), (768, 256)]
    adapters = 4 * 8 * sum(map(sum, pairs))
    frozen = shape.num_parameters
    fields = {"engine": "fsdp", "device": "cpu", "data_parallel": 2}
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        config = campaign(fields | {"dtype": dtype} | lora)
        [rank] = memory_of_ranks(config, shape, tokens, 2)
        assert rank.kind.adapter_parameters == adapters
        moment = _moment(rank, MomentName.BACKWARD)
        assert moment[MemoryPart.WEIGHTS] == (width * frozen + 4 * adapters) // 2
        assert moment[MemoryPart.GRADIENTS] == 4 * adapters // 2
        assert moment[MemoryPart.OPTIMIZER] == 8 * adapters // 2
    # One A for q, k and v, and one for gate and up; a sum of each matrix for the backward pass.
    [fused] = memory_of_ranks(campaign(PLAIN | lora), shape, tokens, 2)
    [whole] = memory_of_ranks(campaign(PLAIN), shape, tokens, 2)
    fewer = adapters - 4 * 8 * 3 * 256
    assert fused.kind.adapter_parameters == fewer
    one, all_of_them = (_moment(rank, MomentName.BACKWARD) for rank in (fused, whole))
    assert one[MemoryPart.WEIGHTS] == 4 * (frozen + fewer)
    assert one[MemoryPart.OPTIMIZER] == 8 * fewer
    matrices = 4 * sum(rows * columns for rows, columns in pairs)
    more = one[MemoryPart.ACTIVATIONS] - all_of_them[MemoryPart.ACTIVATIONS]
    assert more == 4 * matrices


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_critic_stands_beside_the_policy_in_every_moment(is_tied: bool) -> None:
    shape, tokens = replace(COUNTED, is_tied=is_tied), BatchTokens(64, 64, 16)
    with_critic = PLAIN | {"advantage": "gae", "filter": "none", "critic": {}}
    [without] = memory_of_ranks(campaign(PLAIN), shape, tokens, 2)
    [found] = memory_of_ranks(campaign(with_critic), shape, tokens, 2)
    # The policy's layers and embedding, no output layer, and one number for each token.
    parameters = replace(shape, is_tied=True).num_parameters + 256 + 1
    for mine, theirs in zip(found.moments, without.moments, strict=True):
        more = 4 if mine.name is MomentName.IMPORT else 12
        assert mine.bytes_of[MemoryPart.CRITIC] == more * parameters
        assert mine.num_bytes - theirs.num_bytes == more * parameters


def test_a_critic_of_the_engine_mcore_has_gradients_of_its_own_and_shares_its_optimizer() -> None:
    fields = {"device": "cuda", "data_parallel": 4, "dtype": "bfloat16"}
    critic = {"advantage": "gae", "filter": "none", "critic": {}}
    [found, *_] = memory_of_ranks(campaign(fields | critic), COUNTED, BatchTokens(64, 64, 16), 2)
    parameters = replace(COUNTED, is_tied=True).num_parameters + 256 + 1
    expected = parameters * (2 + 4) + parameters * 12 / 4
    assert found.peak.bytes_of[MemoryPart.CRITIC] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "num_floats"),
    [
        (COUNTED, 6996),
        (replace(COUNTED, num_kv_heads=8), 7514),
        (replace(COUNTED, num_heads=16), 8292),
        (replace(COUNTED, intermediate_size=1536), 10836),
        (replace(COUNTED, model_type="llama"), 6410),
    ],
)
def test_what_a_layer_keeps_is_what_autograd_saves(shape: ModelShape, num_floats: int) -> None:
    """Counted with saved-tensor hooks in trainer.engines.plain, two rows of 256 tokens."""
    kept = layer_bytes(shape, campaign(PLAIN).trainer, BatchTokens(512, 256, 0)).kept
    assert kept / (4 * 512) == pytest.approx(num_floats, rel=0.015)


def test_recomputation_keeps_less_for_the_backward_pass() -> None:
    found = {}
    for kind in ("none", "mlp", "full"):
        config = campaign(MCORE | {"tensor_parallel": 4, "recompute": kind})
        [rank] = memory_of_ranks(config, model("qwen3-8b"), TOKENS, 4)
        step = _moment(rank, MomentName.LOGITS)
        found[kind] = step[MemoryPart.ACTIVATIONS] + step[MemoryPart.ATTENTION]
    # Inputs of 36 layers, 16,384 x 4,096 x 2 bytes each, and three of the last norm.
    assert found["full"] == (36 + 3) * 134_217_728
    assert found["none"] - found["mlp"] == 36 * 5 * 16384 * 12288 // 4 * 2


def test_sequence_and_context_parallelism_share_tokens() -> None:
    def kept(**trainer: Any) -> int:
        config = campaign(MCORE | {"tensor_parallel": 4, "recompute": "full"} | trainer)
        [rank] = memory_of_ranks(config, model("qwen3-8b"), TOKENS, 4)
        return _moment(rank, MomentName.LOGITS)[MemoryPart.ACTIVATIONS]

    assert kept(sequence_parallel=True) == kept() // 4
    assert kept(context_parallel=2) == kept() // 2


def test_stages_differ_by_embedding_output_and_micro_batches_that_wait() -> None:
    config = campaign(MCORE | {"tensor_parallel": 4, "pipeline_parallel": 4})
    first, middle, last = memory_of_ranks(config, model("qwen3-32b"), TOKENS, 8)
    assert [rank.kind.num_ranks for rank in (first, middle, last)] == [4, 8, 4]
    assert all(rank.kind.num_layers == 16 for rank in (first, middle, last))
    embedding = 151936 // 4 * 5120
    assert first.kind.num_parameters - middle.kind.num_parameters == embedding
    assert last.kind.num_parameters - middle.kind.num_parameters == embedding + 5120
    moments = [_moment(rank, MomentName.BACKWARD) for rank in (first, middle, last)]
    assert moments[0][MemoryPart.ATTENTION] == 4 * moments[2][MemoryPart.ATTENTION]
    assert moments[1][MemoryPart.ATTENTION] == 3 * moments[2][MemoryPart.ATTENTION]
    assert MomentName.LOGITS not in [moment.name for moment in middle.moments]


def test_a_tied_embedding_is_counted_on_both_ends_of_a_pipeline() -> None:
    shape = replace(COUNTED, vocab_size=1000)
    first, last = rank_kinds(shape, campaign(MCORE | {"pipeline_parallel": 2}).trainer)
    [both] = rank_kinds(shape, campaign(MCORE).trainer)
    assert first.num_parameters + last.num_parameters == both.num_parameters + 256_000


def test_experts_are_shared_by_expert_parallelism_and_their_optimizer_by_their_copies() -> None:
    trainer = {"tensor_parallel": 4, "sequence_parallel": True, "expert_parallel": 8}
    config = campaign(MCORE | trainer | {"data_parallel": 4})
    [rank] = memory_of_ranks(config, model("qwen3-30b-a3b"), TOKENS, 4)
    # 16 of 128 experts in each of 48 layers; 4 x 4 ranks hold 8 parts, so two hold the same.
    assert rank.kind.expert_parameters == 48 * 16 * 4_718_592
    shared = -(-rank.kind.dense_parameters // 4) + rank.kind.expert_parameters // 2
    assert _moment(rank, MomentName.BACKWARD)[MemoryPart.OPTIMIZER] == 12 * shared


@pytest.mark.parametrize(
    ("trainer", "name", "message"),
    [
        ({"tensor_parallel": 3}, "qwen3-8b", "tensor_parallel = 3 .* num_attention_heads = 32"),
        ({"tensor_parallel": 16}, "qwen3-8b", "= 16 .* num_key_value_heads = 8"),
        ({"pipeline_parallel": 5}, "qwen3-8b", "pipeline_parallel = 5 .* num_hidden_layers = 36"),
        (
            {"expert_parallel": 3, "data_parallel": 3},
            "qwen3-30b-a3b",
            "expert_parallel = 3 .* num_experts = 128",
        ),
        ({"expert_parallel": 2, "data_parallel": 2}, "qwen3-8b", "= 2 .* num_experts = 0"),
        (
            {"engine": "plain", "dtype": "float32"},
            "qwen3-30b-a3b",
            "'plain' cannot train the 128 experts",
        ),
    ],
)
def test_sizes_that_divide_nothing_are_refused_with_both_numbers(
    trainer: dict[str, Any], name: str, message: str
) -> None:
    config = campaign(MCORE | trainer)
    with pytest.raises(ModelError, match=message) as refused:
        rank_kinds(model(name), config.trainer)
    assert refused.value.remedy


def test_the_intermediate_size_must_divide_too() -> None:
    shape = replace(COUNTED, num_kv_heads=4, intermediate_size=770)
    with pytest.raises(ModelError, match="intermediate_size = 770"):
        rank_kinds(shape, campaign(PLAIN | {"tensor_parallel": 4}).trainer)


def _moment(rank: Any, name: MomentName) -> Any:
    [found] = [moment for moment in rank.moments if moment.name is name]
    return found.bytes_of
