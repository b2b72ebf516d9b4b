"""Which dialect the engines of a policy are spoken to in."""

from infra.policy.engines.dialects.protocol import EngineDialect
from infra.policy.engines.dialects.sglang import SGLangDialect
from infra.policy.engines.dialects.vllm import VllmDialect
from mainspring.status import PolicyApi


def dialect_of(api: PolicyApi, *, trained_at: float | None = None) -> EngineDialect:
    """`trained_at`: the temperature of replies that are trained on; None: none are."""
    assert api.gives_tokens, "an endpoint in text is no engine"
    return VllmDialect(trained_at=trained_at) if api is PolicyApi.VLLM else SGLangDialect()
