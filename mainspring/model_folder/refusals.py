"""Contents that a config.json must not have, in one list for plan, checklist, engines and trainer.

A use includes those before it, up to TRAINED: what is trained is served by the CPU engine too, and
what that serves, transformers reads. So a rule names the first use that refuses it. The step engine
`fsdp` takes any model, by the rules of `any_model`. Invariant: a config that
passes for TRAINED gives the same log-probs in trainer, CPU engine and transformers. Rules look at a
value's kind before they use it. Pure functions on a dict.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mainspring.errors import ModelError
from mainspring.model_folder import any_model, rope
from mainspring.model_folder.config_file import CONFIG, facts_of
from mainspring.model_folder.families import ARCHITECTURES, EXPERTS, FAMILIES, wrong_fields
from mainspring.model_folder.sizes import num_experts, sizes_of

RESTORE = f"restore the {CONFIG} that belongs to the weights"
WITHOUT = f"use a model of {', '.join(FAMILIES)} without it"
SGLANG = "serve it with SGLang: mainspring serve --engine sglang"
FULL_ATTENTION = ("full_attention", "attention")


class FolderUse(IntEnum):
    READ = 0
    """By an engine that judges for itself, as SGLang does."""
    SERVED = 1
    """By the CPU engine, whose own probe judges the layers."""
    TRAINED = 2
    """By the step engines `plain` and `mcore`, and served by the CPU engine."""
    ANY_MODEL = 3
    """Trained by the step engine `fsdp`, which takes more families and refuses other things."""


@dataclass(frozen=True, slots=True)
class FolderRefusal:
    first: FolderUse
    """This use refuses it, and those after it."""
    message: str
    remedy: str


def check_config(config: dict[str, Any], named: str, use: FolderUse) -> None:
    """`named`: begins the message, such as "model directory /m". Raises ModelError."""
    facts_of(config, named)
    if use is FolderUse.ANY_MODEL:
        any_model.check(config, named)
        return
    for refusal in refusals(config):
        if use >= refusal.first:
            raise ModelError(f"{named}: {refusal.message}", remedy=refusal.remedy)


def check_served(config: dict[str, Any], named: str) -> None:
    """Refuse what the CPU engine does not compute, in a config with all that transformers fills in.
    Raises ModelError."""
    for what, _ in _unserved(config):
        raise ModelError(f"{named}: {what} cannot be served by the CPU engine", remedy=SGLANG)


def refusals(config: dict[str, Any]) -> Iterator[FolderRefusal]:
    """In the order in which they are told: the family first, then what cannot be read."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        named = ", ".join(config.get("architectures") or ())
        message = f"model_type {kind!r}{f' ({named})' if named else ''} cannot be trained"
        yield FolderRefusal(FolderUse.TRAINED, message, f"use a model of {', '.join(FAMILIES)}")
        for what, _ in _unserved(config):
            message = f"{named or kind}: {what} cannot be served by the CPU engine"
            yield FolderRefusal(FolderUse.SERVED, message, SGLANG)
        return
    for field in wrong_fields(config):
        message = f"{CONFIG} has {field.name} = {field.value!r}, expected {field.expected}"
        yield FolderRefusal(FolderUse.READ, message, RESTORE)
    yield from _broken(config)
    for what, remedy in _unserved(config):
        yield FolderRefusal(
            FolderUse.SERVED, f"{what} cannot be trained or served by the CPU engine", remedy
        )
    for what, remedy in _untrained(config):
        yield FolderRefusal(FolderUse.TRAINED, f"{what} cannot be trained", remedy)


def _broken(config: dict[str, Any]) -> Iterator[FolderRefusal]:
    """Refusals of a family, whose fields have the right kinds."""

    def broken(message: str) -> FolderRefusal:
        return FolderRefusal(FolderUse.READ, f"{CONFIG}: {message}", RESTORE)

    if config["model_type"] in EXPERTS:
        names = [name for name in ("num_experts", "num_local_experts") if name in config]
        if not names:
            yield broken("num_experts = None, expected a whole number above 0")
        if len({config[name] for name in names}) > 1:
            yield broken("num_experts and num_local_experts that differ")
        if config["num_experts_per_tok"] > (num_experts(config) or 0):
            yield broken(
                f"num_experts_per_tok = {config['num_experts_per_tok']}, more than its "
                f"{num_experts(config)} experts"
            )
    sizes = sizes_of(config)
    heads, kv_heads, width = sizes["num_heads"], sizes["num_kv_heads"], sizes["head_dim"]
    if heads % kv_heads:
        yield broken(
            f"num_attention_heads = {heads}, which num_key_value_heads = {kv_heads} does not divide"
        )
    if config["model_type"] == "llama" and config["hidden_size"] % heads:
        yield broken(
            f"hidden_size = {config['hidden_size']}, which num_attention_heads = {heads} does not "
            "divide"
        )
    if width < 2 or width % 2:
        yield broken(f"heads of {width} values, expected an even number")
    layers = config.get("layer_types")
    if layers is not None and len(layers) != config["num_hidden_layers"]:
        yield broken(
            f"{len(layers)} layer_types, expected num_hidden_layers = {config['num_hidden_layers']}"
        )
    yield from map(broken, rope.broken(config))


def _unserved(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Things in any model that cannot be served, each with its remedy."""
    kind = config.get("model_type")
    yield from any_model.unreadable(config)
    text = any_model.text_of(config)
    for problem in rope.unserved(text):
        yield problem, rope.REMEDY
    if kind in FAMILIES:
        architectures = config.get("architectures")
        if architectures and architectures != [ARCHITECTURES[kind]]:
            what = f"architectures = {architectures} with model_type {kind!r}"
            yield what, f"restore the {CONFIG} of the weights: {ARCHITECTURES[kind]} has this type"
        if config.get("text_config") is not None:
            yield "text_config (a model of several parts)", WITHOUT
        share = rope.partial(config)
        if share is not None:
            yield f"partial_rotary_factor = {share!r}", WITHOUT
        yield from _special_tokens(config)


def _special_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    size = config["vocab_size"]
    ends = config.get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and not 0 <= end < size:
            yield f"eos_token_id = {end} with vocab_size = {size}", RESTORE
    padding = config.get("pad_token_id")
    if padding is not None and not -size <= padding < size:
        yield f"pad_token_id = {padding} with vocab_size = {size}", RESTORE


def _untrained(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Things in a family that transformers and the CPU engine compute and the trainer does not."""
    kind = config["model_type"]
    layers = config.get("layer_types")
    for layer in layers if isinstance(layers, list) else ():
        if layer not in FULL_ATTENTION:
            yield f"layer_types with {layer!r}", WITHOUT
    if config.get("use_sliding_window"):
        yield f"use_sliding_window = {config['use_sliding_window']!r}", WITHOUT
    if config.get("attention_chunk_size"):
        yield f"attention_chunk_size = {config['attention_chunk_size']!r}", WITHOUT
    if rope.has_sections(config):
        yield "mrope_section", rope.REMEDY
    for rope_kind in rope.kinds(config):
        if rope_kind not in rope.TRAINED:
            yield f"rope_type {rope_kind!r}", rope.REMEDY
    for field, fits in (
        ("attention_bias", kind == "qwen2" or not config.get("attention_bias")),
        ("mlp_bias", not config.get("mlp_bias")),
        ("hidden_act", config.get("hidden_act", "silu") == "silu"),
        ("mlp_only_layers", kind not in EXPERTS or not config.get("mlp_only_layers")),
        ("decoder_sparse_step", kind not in EXPERTS or config.get("decoder_sparse_step", 1) == 1),
    ):
        if not fits:
            yield f"{field} = {config[field]!r}", WITHOUT
