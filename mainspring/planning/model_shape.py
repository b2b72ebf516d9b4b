"""The shape of a model, read from a Hugging Face config.json without transformers.

Owns the counts of its parameters. Invariant: what the trainer cannot train is refused before it is
counted (`mainspring.model_folder`), so that it is known before a GPU is asked for.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.model_folder.any_model import estimated_sizes
from mainspring.model_folder.config_file import where
from mainspring.model_folder.folder import check_folder, export_dtype, known_sizes
from mainspring.model_folder.refusals import FolderUse, check_config
from mainspring.model_folder.sizes import Sizes, sizes_of

_HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape(Sizes):
    file_bytes_per_weight: int
    """Bytes of the dtype that config.json names, or the weights have; exports have it too."""

    @property
    def q_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys alone, or of the values alone."""
        return self.num_kv_heads * self.head_dim

    @property
    def attention_parameters(self) -> int:
        """Matrices and biases of one layer's attention: what tensor parallelism shares."""
        qkv_rows = self.q_width + 2 * self.kv_width
        biases = qkv_rows if self.has_qkv_bias else 0
        return self.hidden_size * (qkv_rows + self.q_width) + biases

    @property
    def norm_parameters(self) -> int:
        """Norms of one layer, and the router of its experts: what every rank has."""
        qk_norms = 2 * self.head_dim if self.has_qk_norm else 0
        return 2 * self.hidden_size + qk_norms + self.hidden_size * self.num_experts

    @property
    def mlp_parameters(self) -> int:
        """The dense MLP of one layer."""
        return 0 if self.num_experts else 3 * self.hidden_size * self.intermediate_size

    @property
    def expert_parameters(self) -> int:
        """One expert of one layer."""
        return 3 * self.hidden_size * self.expert_intermediate_size

    @property
    def layer_parameters(self) -> int:
        dense = self.attention_parameters + self.norm_parameters + self.mlp_parameters
        return dense + self.num_experts * self.expert_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding alone, or of the output layer alone."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        embeddings = self.embedding_parameters * (1 if self.is_tied else 2)
        return self.num_layers * self.layer_parameters + embeddings + self.hidden_size

    @property
    def num_active_parameters(self) -> int:
        """Those of the layers that one token is multiplied with."""
        unused = (self.num_experts - self.experts_per_token) * self.expert_parameters
        return self.num_layers * (self.layer_parameters - unused)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, in the dtype of the files."""
        return 2 * self.num_layers * self.kv_width * self.file_bytes_per_weight


def read_shape(directory: Path, use: FolderUse = FolderUse.TRAINED) -> ModelShape:
    """Raises ModelError without a config.json of a model that can be trained, or beside weights
    that it does not describe."""
    config = check_folder(directory, use, needs_weights=False)
    dtype = export_dtype(directory, config)
    if use is FolderUse.ANY_MODEL and is_estimate(config):
        sizes = estimated_sizes(config, where(directory))
        return ModelShape(**sizes, file_bytes_per_weight=2 if dtype in _HALF else 4)
    return _shape(config, dtype)


def is_estimate(config: dict[str, Any]) -> bool:
    """Whether the sizes of this model can be estimated only: its family is not known here."""
    return known_sizes(config) is None


def shape_of(config: dict[str, Any], named: str) -> ModelShape:
    """From the content of a config.json. Raises ModelError naming the field."""
    check_config(config, named, FolderUse.TRAINED)
    return _shape(config, config.get("dtype") or config.get("torch_dtype") or "float32")


def _shape(config: dict[str, Any], dtype: str) -> ModelShape:
    return ModelShape(**sizes_of(config), file_bytes_per_weight=2 if dtype in _HALF else 4)
