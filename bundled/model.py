"""The bundled model: a Qwen3 of under a million parameters and its tokenizer, made on the spot.

Invariants: a seed gives the same files on every machine with the same torch; the tokenizer depends
on the agent alone, whose fixed strings it has as tokens; the directory appears whole or not at all,
and is refused when it was made of another seed or a file is missing or cut. What is written is an
ordinary Hugging Face directory: tokenizer, chat template, config and random weights; and a file
that tells the seed.
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bundled.base_check import check_base
from bundled.fixed_texts import context_texts, long_texts
from bundled.forms import BUNDLED_AGENT, speech_of, taught_agent
from bundled.generator import Split, draw_instance
from bundled.shape import MAX_POSITIONS, SIZES
from bundled.trajectories import Writer
from mainspring.artifacts.layout import BASE_IDENTITY
from mainspring.config.agents.agent import AgentConfig

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 600
"""Before the protocol's own strings are added; every word of the generated tasks is one token."""
_NUM_CORPUS_TASKS = 400

# ChatML; tools as Qwen's templates have them, in the first message.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}{% endif %}"
    "{% if tools and loop.first %}{{ '\n\n' }}# Tools\n\n"
    "You may call one of these functions:\n<tools>\n"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}</tools>\n\n"
    "Write a call as a JSON object with name and arguments within <tool_call></tool_call>."
    "{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Words and line breaks with their indentation may merge; operators, digits and brackets stay
# single, so that an edit is a choice between tokens and not between segmentations.
_PIECES = Regex(r" ?[A-Za-z]+|\n *| ?\d|_| ?[^\sA-Za-z_\d]|\s")

# Fixed strings of every agent's rollouts beside those of its form: one token each.
_PROTOCOL = (
    "<returncode>",
    "</returncode>\n<output>\n",
    "</output>",
    "sed -i 's/",
    ".py",
)


def make_bundled_model(directory: Path, seed: int, agent: AgentConfig = BUNDLED_AGENT) -> None:
    """Write the model that `agent` will be taught to `directory`; nothing happens when it is there
    already. Raises CheckpointUnusable when the model there is another seed's, or damaged, and
    ConfigError for an agent that cannot be taught."""
    if directory.exists():
        return check_base(directory, seed)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        tokenizer = make_tokenizer(agent)
        tokenizer.save_pretrained(staging)
        make_model(tokenizer, seed).save_pretrained(staging)
        sizes = {path.name: path.stat().st_size for path in staging.iterdir()}
        (staging / BASE_IDENTITY).write_text(
            json.dumps({"seed": seed, "sizes": sizes}, sort_keys=True)
        )
        os.rename(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def make_tokenizer(agent: AgentConfig = BUNDLED_AGENT) -> PreTrainedTokenizerFast:
    """Byte-level BPE over generated rollouts of the agent, with ChatML. Raises ConfigError."""
    taught = taught_agent(agent)
    strings = (*speech_of(taught).form.strings, *_PROTOCOL)
    long = long_texts(taught, _wrapped(Tokenizer(models.BPE())))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        _corpus(taught, (*long, *strings)),
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[END_OF_TEXT, IM_START, IM_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(text, normalized=False) for text in (*strings, *long)])
    return _wrapped(bpe)


def _wrapped(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> "Qwen3ForCausalLM":
    """Random weights; torch's global generator is left as it was."""
    # Seconds of CPU, which only the process pays that makes the model.
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        **SIZES,
        bos_token_id=None,
        eos_token_id=_token_id(tokenizer, IM_END),
        pad_token_id=_token_id(tokenizer, END_OF_TEXT),
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int)
    return token_id


def _corpus(agent: AgentConfig, strings: Sequence[str]) -> list[str]:
    """Rollouts drawn for this alone; no weight is trained on them. The words of the held-out
    templates are among them, so that those are whole tokens too."""
    rng = random.Random("tokenizer")
    writer = Writer(agent)
    splits: tuple[Split, ...] = ("train", "heldout_templates")
    texts: list[str] = []
    for split in splits:
        for _ in range(_NUM_CORPUS_TASKS):
            written = writer.draw(draw_instance(rng, split, "tokenizer"), rng)
            texts += written.texts
            texts += context_texts(agent.context)
    # The protocol's strings become tokens of their own and must not use up merges.
    for fixed in strings:
        texts = [text.replace(fixed, "") for text in texts]
    return texts
