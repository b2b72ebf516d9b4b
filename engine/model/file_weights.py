"""The weights of a served model by the names that its files have, in and out.

transformers stacks the matrices of experts in memory and renames what older files call otherwise,
so names of parameters are not always names of files. Invariants: what a load would take, an update
takes; weights that do not fit change nothing; the digest counts a weight as its file has it. Used
by `served_model` alone.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from infra.policy.model.weight_files import add_to_digest, as_float32
from mainspring.errors import ModelError
from mainspring.model_folder.weights import Weight, read_weights

OTHER_ARCHITECTURE = "publish weights of the architecture the engine was started with"


def read_files(directory: Path) -> dict[str, Tensor]:
    """In the dtype they are stored in."""
    tensors: dict[str, Tensor] = {}
    weights = read_weights(directory)
    for file in sorted({weight.file for weight in weights.values()}):
        with safe_open(file, framework="pt") as opened:
            in_file = [name for name, weight in weights.items() if weight.file == file]
            tensors.update({name: opened.get_tensor(name) for name in in_file})
    return tensors


@torch.no_grad()
def replace(model: Any, loaded: dict[str, Tensor], source: str) -> None:
    """Put `loaded` into `model`. `source`: begins a message. Raises ModelError, and then nothing
    has changed."""
    served = model.state_dict()
    updates = loaded if loaded.keys() <= served.keys() else _converted(model, loaded, source)
    # Tied weights have two names in a state and one in most files.
    places = {served[name].data_ptr() for name in served.keys() & updates.keys()}
    for name, weight in served.items():
        if name not in updates:
            if weight.data_ptr() not in places:
                raise ModelError(f"{source}: weight {name} is missing")
            continue
        if updates[name].shape != weight.shape:
            raise ModelError(
                f"{source}: weight {name} is {list(updates[name].shape)}, the served model's is "
                f"{list(weight.shape)}",
                remedy=OTHER_ARCHITECTURE,
            )
    for name, weight in served.items():
        if name in updates:
            weight.copy_(updates[name])


def drop(model: Any) -> dict[str, torch.Size]:
    """Free the memory of the weights; their shapes by name, for `make_room`."""
    shapes: dict[str, torch.Size] = {}
    for name, weight in model.named_parameters():  # tied ones are one, and come once
        shapes[name] = weight.shape
        weight.data = weight.data.new_empty(0)
    return shapes


def make_room(model: Any, shapes: dict[str, torch.Size]) -> None:
    """Take memory for weights, which are zero until they are replaced."""
    for name, weight in model.named_parameters():
        weight.data = weight.data.new_zeros(shapes[name])


def num_bytes(model: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def others(model: Any, directory: Path) -> dict[str, Weight]:
    """Weights of the files there that the model does not take, as those of a vision part."""
    weights = read_weights(directory)
    state: dict[str, Tensor] = model.state_dict()
    if state.keys() >= weights.keys():
        return {}
    own = state.keys() | _in_files(model).keys()
    return {name: weight for name, weight in weights.items() if name not in own}


def digest(model: Any, names: Iterable[str], others: Mapping[str, Weight]) -> str | None:
    """Digest of the weights in memory, as `weights_digest` of infra.policy.model.weight_files is of
    files with weights of these `names`, of which `others` never change; None when a name is no
    weight, or its file is gone."""
    ordered = sorted(names)
    state: dict[str, Tensor] = model.state_dict()
    if not state.keys() >= set(ordered) - others.keys():
        state = state | _in_files(model)
    sha256 = hashlib.sha256()
    for name in ordered:
        if name in state:
            values = state[name].detach().float().cpu().numpy()
        elif name in others and others[name].file.exists():
            values = as_float32(others[name])
        else:
            values = None
        if values is None:
            return None
        add_to_digest(sha256, name, values)
    return sha256.hexdigest()


def _in_files(model: Any) -> dict[str, Tensor]:
    """By the names that a save gives them."""
    return revert_weight_conversion(model, dict(model.state_dict()))


def _check_names(expected: dict[str, Tensor], loaded: dict[str, Tensor], source: str) -> None:
    """The library's load tells a wrong part of a stack as a fault of its own."""
    for name in sorted(expected.keys() & loaded.keys()):
        if expected[name].shape != loaded[name].shape:
            raise ModelError(
                f"{source}: weight {name} is {list(loaded[name].shape)}, the served model's is "
                f"{list(expected[name].shape)}",
                remedy=OTHER_ARCHITECTURE,
            )
    if loaded.keys() - expected.keys():
        return  # older names, or foreign ones: the load knows
    places = {expected[name].data_ptr() for name in loaded}
    for name in sorted(expected.keys() - loaded.keys()):
        if expected[name].data_ptr() not in places:  # else it is tied to one that has come
            raise ModelError(
                f"{source}: weight {name} is missing",
                remedy=OTHER_ARCHITECTURE,
            )


def _converted(model: Any, loaded: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """By the names in memory, through the library's own load: a second model for a moment."""
    _check_names(_in_files(model), loaded, source)
    try:
        converted, report = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=dict(loaded),
            dtype=torch.float32,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # they are reported
            output_loading_info=True,
        )
    except Exception as error:  # of many classes: what the library finds first
        raise ModelError(
            f"{source}: weights do not fit {type(model).__name__}: {first_line(error)}",
            remedy=OTHER_ARCHITECTURE,
        ) from error
    if wrong := unfit(report):
        raise ModelError(f"{source}: {wrong}", remedy=OTHER_ARCHITECTURE)
    if more := report["unexpected_keys"]:
        raise ModelError(f"{source}: weight {min(more)} is not the served model's")
    return converted.state_dict()


def unfit(report: dict[str, Any]) -> str | None:
    """First fault in the `report` of a load by transformers; None: it lacked nothing."""
    if missing := sorted(report["missing_keys"]):
        return f"weights are missing: {', '.join(missing[:3])}"
    for name, shape, expected in sorted(report["mismatched_keys"]):
        return f"weight {name} is {list(shape)}, expected {list(expected)}"
    return None


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
