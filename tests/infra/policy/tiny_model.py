"""A real but tiny policy for tests: Qwen3 with random weights, byte-level BPE, ChatML template."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = (
    "def add(a, b):\n    return a + b\n",
    "sed -i '/def add/,/^$/s/a - b/a + b/' calc.py",
    "<returncode>0</returncode>\n<output>\n</output>",
    "THOUGHT: I will look at the file first.\n\n```bash\ncat calc.py\n```",
)


def make_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    )


def save_tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    max_length: int = 2048,
    vocab_size: int | None = None,
    tied: bool = True,
    **sizes: int,
) -> Path:
    """Weights large enough that the tokens of two seeds differ and logits are not flat. `sizes`:
    fields of the model's configuration."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    shape: dict[str, int] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | sizes
    config = Qwen3Config(
        **shape,
        vocab_size=vocab_size or len(tokenizer),
        max_position_embeddings=max_length,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
