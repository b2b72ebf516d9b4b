"""`mainspring model convert`: what is checked before the model is read."""

import os
from pathlib import Path

from mainspring.errors import UsageError
from mainspring.training.training_faults import DeviceMissing


def convert_model(
    source: Path, destination: Path, *, is_to_torch_dist: bool, like: Path | None
) -> Path:
    """The folder that was made. Raises UsageError, ModelError and ServiceError."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if not is_to_torch_dist and like is None:
        raise UsageError(
            "a checkpoint of Megatron has neither config.json nor tokenizer",
            remedy="give the Hugging Face folder of the same architecture with --like",
        )
    from trainer.model import model_conversion

    if not is_to_torch_dist:
        assert like is not None
        model_conversion.to_hugging_face(source, like, destination)
        return destination
    import torch

    if not torch.cuda.is_available():
        raise DeviceMissing(
            f"torch {torch.__version__} sees no GPU, without which Megatron-core 0.16.1 writes no "
            "checkpoint",
            remedy="run the command on a machine with a GPU (the extra `cuda`)",
        )
    model_conversion.to_torch_dist(source, destination)
    return destination
