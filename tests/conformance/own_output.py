"""Copies of a model with an output layer of its own, which vLLM can load anew on a CPU."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def save_own_output(model: Path, folder: Path, *, seed: int) -> Path:
    """A copy in float32; another `seed` than 0 gives other weights near to the model's."""
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, tie_word_embeddings=False
    )
    loaded.config.tie_word_embeddings = False
    torch.manual_seed(seed)
    with torch.no_grad():
        embeddings = loaded.state_dict()["model.embed_tokens.weight"].clone()
        loaded.lm_head.weight = torch.nn.Parameter(embeddings)
        for parameter in loaded.parameters() if seed else ():
            parameter.mul_(1.0 + 0.02 * torch.randn_like(parameter))
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder
