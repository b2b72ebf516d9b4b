"""The tokenizer of a model folder against its embedding: every id that it makes has a row.

Reads tokenizer.json without transformers. A folder without one is left to whatever loads it.
Imported by `folder`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mainspring.errors import ModelError
from mainspring.model_folder.config_file import CONFIG, read_json, where
from mainspring.model_folder.families import IDS, LARGEST, is_whole

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"


def check_vocabulary(directory: Path, vocab_size: int, *, is_trained: bool) -> None:
    """Raises ModelError naming the file with an id that has no row in the embedding. `is_trained`:
    an end that is never sampled would let every reply run to its limit."""
    for name, read in ((TOKENIZER, _ids), (TOKENIZER_CONFIG, _added_ids)):
        file = directory / name
        if not file.is_file():
            continue
        last = max(read(read_json(file)), default=-1)
        if last >= vocab_size:
            raise ModelError(
                f"{where(directory)}: {name} has the token id {last}, {CONFIG} has vocab_size = "
                f"{vocab_size}",
                remedy="save the model with an embedding for all tokens "
                "(model.resize_token_embeddings), or remove the tokens",
            )
    _check_generation(directory, vocab_size if is_trained else LARGEST)


def _check_generation(directory: Path, vocab_size: int) -> None:
    file = directory / GENERATION
    if not file.is_file():
        return
    ends = read_json(file).get("eos_token_id")
    if ends is None:
        return
    listed = ends if isinstance(ends, list) else [ends]
    if not IDS.takes(ends) or not all(0 <= end < vocab_size for end in listed):
        raise ModelError(
            f"{where(directory)}: {GENERATION} has eos_token_id = {ends!r}, expected token ids"
            + (f" below vocab_size = {vocab_size}" if vocab_size < LARGEST else ""),
            remedy=f"restore the {GENERATION} that belongs to the weights",
        )


def _ids(tokenizer: dict[str, Any]) -> Iterator[int]:
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from (number for number in vocabulary.values() if is_whole(number))
    elif isinstance(vocabulary, list):  # of unigrams, by their place
        yield len(vocabulary) - 1
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and is_whole(token.get("id")):
            yield token["id"]


def _added_ids(config: dict[str, Any]) -> Iterator[int]:
    added = config.get("added_tokens_decoder")
    yield from (
        (int(number) for number in added if number.isdigit()) if isinstance(added, dict) else ()
    )
