"""`sampling_params` of a request, as SGLang and the CPU engine take them. Pure; used by `client`.

Invariant: a field that is not set has the value by which the whole distribution is sampled, or is
left out: requests without [policy.sampling] are the same byte for byte, and a model's
generation_config.json changes nothing.
"""

from typing import Any

from infra.policy.protocol import SamplingParams


def sampling_params(params: SamplingParams, num_tokens: int) -> dict[str, Any]:
    """Parameters of a request that continues the `num_tokens` first tokens of a reply."""
    sampling = params.sampling
    body: dict[str, Any] = {
        "max_new_tokens": params.max_new_tokens - num_tokens,
        "temperature": params.temperature,
        # The whole distribution, whatever the model's generation_config.json prefers: log-probs are
        # recomputed without cuts.
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "top_k": -1 if sampling.top_k is None else sampling.top_k,
        "min_p": 0.0 if sampling.min_p is None else sampling.min_p,
        "stop_token_ids": list(params.stop_token_ids),
    }
    if params.seed is not None:
        body["sampling_seed"] = params.seed
    body |= sampling.penalties
    if sampling.stops:
        body["stop"] = list(sampling.stops)
    return body
