"""Chat templates in the forms of known model families, over the tiny tokenizer."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from infra.policy.model.request_text import RequestText
from infra.policy.model.tokenizer import ChatTokenizer
from tests.infra.policy.tiny_model import CHATML, make_tokenizer

FOLDER = Path(__file__).parent / "templates"
NAMES = ("qwen_like", "coder_like", "llama_like", "plain_like", "chatml")
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens of their own that are not special, as Qwen's tokenizers have them."""


def template_of(name: str) -> str:
    return CHATML if name == "chatml" else (FOLDER / f"{name}.jinja").read_text()


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer(template_of(name))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|sep|>"]})
    tokenizer.add_tokens(list(TAGS))
    return tokenizer


def request_text(name: str, directory: Path) -> RequestText:
    tokenizer_of(name).save_pretrained(directory)
    return RequestText(ChatTokenizer(directory))
