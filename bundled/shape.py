"""Sizes of the bundled model, for those that make it and those that plan with it.

Imports no torch. A test compares them with a model that was made.
"""

MODEL_TYPE = "qwen3"
MAX_POSITIONS = 1024
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": True,
}
"""By the names of config.json; the vocabulary is the tokenizer's."""
VOCAB_SIZE = 609
"""Size of the tokenizer for the agent "bundled": its merges, and the protocol's own strings."""


def config() -> dict[str, object]:
    """As the model's config.json has it, as far as sizes go."""
    return {"model_type": MODEL_TYPE, "vocab_size": VOCAB_SIZE, "dtype": "float32", **SIZES}
