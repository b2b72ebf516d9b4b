"""What a model directory must hold, checked before anything heavy is imported.

Used by the CPU engine and by the tokenizer, so that both complain in the same words.
"""

from pathlib import Path

from mainspring.errors import ModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
"""Either one: the second alone suffices for tokenizers with their own files (vocab, merges)."""
REMEDY = "expected a Hugging Face model directory (config.json, tokenizer.json, *.safetensors)"


def check_model_directory(directory: Path) -> None:
    """Raises ModelError unless there are a config, a tokenizer and weights."""
    check_tokenizer_files(directory)
    if not (directory / "config.json").is_file():
        raise ModelError(f"model directory {directory}: no config.json", remedy=REMEDY)
    if not any(directory.glob("*.safetensors")):
        raise ModelError(f"model directory {directory}: no *.safetensors", remedy=REMEDY)


def check_tokenizer_files(directory: Path) -> None:
    if not directory.is_dir():
        raise ModelError(f"model directory {directory}: no such directory", remedy=REMEDY)
    if not any((directory / name).is_file() for name in TOKENIZER_FILES):
        raise ModelError(
            f"model directory {directory}: no tokenizer ({' or '.join(TOKENIZER_FILES)})",
            remedy="save the tokenizer beside the weights: tokenizer.save_pretrained(directory)",
        )
