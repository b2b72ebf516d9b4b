# ruff: noqa: E501 (the services' own words are not broken into lines)
"""Which refusals are a full context, in the words of the services, and which are not."""

import json

import pytest

from infra.policy.replies.chat_refusal import EndpointRefusalKind, RefusedRequest, judge, words_of
from infra.policy.replies.refusal_counts import token_counts

MAX_CONTEXT = 131_072
LATER = RefusedRequest(num_taken=3, max_context=MAX_CONTEXT)
FIRST = RefusedRequest(num_taken=0, max_context=MAX_CONTEXT)

FULL: list[tuple[int, object]] = [
    # OpenAI, Azure.
    (400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion)."),
    (400, "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens."),
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
    (400, {"message": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.", "code": "context_length_exceeded"}),
    (400, {"message": "Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576, but got a string with length 1540820 instead.", "code": "string_above_max_length"}),
    (400, {"message": "Please reduce the length of the messages.", "code": "context_length_exceeded"}),
    (400, {"message": "Invalid 'messages': array too long. Expected an array with maximum length 2048, but got an array with length 2050 instead.", "code": "array_above_max_length"}),
    # Anthropic, also through others.
    (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    (400, "input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000, decrease input length or `max_tokens` and try again"),
    (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
    (413, "Request too large"),
    # xAI, Moonshot, DashScope, Zhipu, MiniMax, Volcengine, DeepSeek.
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (400, "Invalid request: Your request exceeded model token limit: 8192"),
    (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"),
    (400, {"code": "1261", "message": "Prompt exceeds max length"}),
    (400, "invalid params, context window exceeds limit (2013)"),
    (400, "Input length 40000 exceeds the maximum length 32768"),
    (400, "Total tokens of image and text exceed max message tokens"),
    (400, "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (66000 in the messages, 4000 in the completion). Please reduce the length of the messages or completion."),
    # Cohere, Databricks, Mistral, Groq, Cerebras, SambaNova, Fireworks, Together.
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter prompt"),
    (400, "too many tokens: size limit exceeded by 123 tokens. Try using shorter or fewer inputs. The limit for this model is 4096 tokens."),
    (400, "Input tokens exceed the configured limit"),
    (400, "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length"),
    (400, "Please reduce the length of the messages or completion."),
    (413, "Request too large for model `x` in organization `y` on tokens per minute (TPM): Limit 6000, Requested 7012, please reduce your message size and try again."),
    (400, "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"),
    (400, "Requested generation length 1 is not possible! The provided prompt is 9000 tokens long, so generating 1 tokens requires a sequence length of 9001, but the maximum supported sequence length is just 8192!"),
    (400, "The prompt is too long: 140000, model maximum context length: 131071"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`"),
    (422, "Input validation error: `inputs` must have less than 3072 tokens. Given: 4000"),
    # vLLM.
    (400, "This model's maximum context length is 8192 tokens. However, you requested 100 output tokens and your prompt contains at least 8093 input tokens, for a total of at least 8193 tokens."),
    (400, "The decoder prompt (length 9001) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens."),
    (400, "max_tokens must be at least 1, got -512."),
    (400, "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 tokens and your request has 5000 input tokens (4096 > 8192 - 5000)."),
    (400, "Input length (9000) exceeds model's maximum context length (8192)."),
    (500, "The prompt (total length 9001) is too long to fit into the model (context length 8192)."),
    # SGLang.
    (400, "Input length (40000 tokens) exceeds the maximum allowed length (32762 tokens). Use a shorter input or enable --allow-auto-truncate."),
    (400, "The input (40000 tokens) is longer than the model's context length (32768 tokens)."),
    (400, "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 41000 tokens: 40000 tokens from the input messages and 1000 tokens for the completion."),
    # TensorRT-LLM, llama.cpp, Ollama, LM Studio.
    (400, "prompt length (9000) exceeds maximum input length (8192)"),
    (400, "The sum of prompt length (9000.0), query length (1) should not exceed max_num_tokens (8192)"),
    (400, {"message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 8192}),
    (500, "input is too large to process. increase the physical batch size"),
    (400, "the input length exceeds the context length"),
    (400, "prompt too long; exceeded max context length by 4 tokens"),
    (400, "Trying to keep the first 9000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens"),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."),
    # Gemini, Vertex, Bedrock.
    (400, {"code": 400, "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", "status": "INVALID_ARGUMENT"}),
    (400, "Request payload size exceeds the limit: 20971520 bytes."),
    (400, "Input is too long for requested model."),
    (400, "Too many input tokens. Max input tokens: 8192, request input token count: 9000"),
    (400, "Malformed input request: expected maxLength: 2048, actual: 5000, please reformat your input and try again."),
    # OpenRouter and GitHub, and an error in an error.
    (400, "This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens (138000 of text input, 2000 in the output). Please reduce the length of either one, or use the \"middle-out\" transform to compress your prompt automatically."),
    (400, {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps({"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}})}}),
    (400, {"message": "prompt token count of 130000 exceeds the limit of 128000", "code": "model_max_prompt_tokens_exceeded"}),
    (413, {"code": "tokens_limit_reached", "message": "Request body too large for gpt-4o model. Max size: 8000 tokens."}),
    # A proxy that counts bytes, and words that no list has.
    (413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    (413, ""),
    (400, "prompt of 150000 is beyond what we serve (131072)"),
    (400, "The chat has grown beyond the permitted size: tokens left: 0"),
    (422, "sequence exceeds what fits"),
    # What cannot heal by waiting.
    (429, {"message": "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 40000. The input or output tokens must be reduced in order to run successfully.", "code": "rate_limit_exceeded"}),
    (429, "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 30,000, Used 2,000, Requested 40,000."),
]  # fmt: skip

OTHER: list[tuple[int, object, EndpointRefusalKind]] = [
    # Rates and credits.
    (429, "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.", EndpointRefusalKind.BUSY),
    (429, "This request would exceed your organization's rate limit of 30,000 input tokens per minute", EndpointRefusalKind.BUSY),
    (429, "Too many tokens per minute", EndpointRefusalKind.BUSY),
    (429, "You have exceeded your token rate limit of the current pricing tier. Please retry after 5 seconds.", EndpointRefusalKind.BUSY),
    (400, "Rate limit exceeded: too many tokens per minute", EndpointRefusalKind.STRAY),
    (400, "ThrottlingException: Too many requests, please wait before trying again.", EndpointRefusalKind.STRAY),
    (429, {"message": "You exceeded your current quota, please check your plan", "code": "insufficient_quota"}, EndpointRefusalKind.CLOSED),
    (429, "Quota exceeded for metric: free_tier_input_token_count, limit: 0", EndpointRefusalKind.CLOSED),
    (402, "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 1234.", EndpointRefusalKind.CLOSED),
    (402, "Insufficient Balance", EndpointRefusalKind.CLOSED),
    (400, "Your credit balance is too low to access the API. Please go to Plans & Billing to upgrade or purchase credits.", EndpointRefusalKind.CLOSED),
    # Keys, addresses, models.
    (401, "Incorrect API key provided", EndpointRefusalKind.CLOSED),
    (403, "<html>403 Forbidden</html>", EndpointRefusalKind.CLOSED),
    (404, "The model `m1` does not exist or you do not have access to it.", EndpointRefusalKind.CLOSED),
    (400, "Invalid access token: the token has expired", EndpointRefusalKind.STRAY),
    (400, "The model `m1` has been decommissioned and is no longer supported.", EndpointRefusalKind.STRAY),
    (307, "", EndpointRefusalKind.CLOSED),
    (302, "<a href=/login>Found</a>", EndpointRefusalKind.CLOSED),
    # Parameters.
    (400, "Unsupported parameter: 'temperature' is not supported with this model.", EndpointRefusalKind.STRAY),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.", EndpointRefusalKind.STRAY),
    (400, "`max_tokens` must be less than or equal to `32768`, the maximum value for `max_tokens` is less than the `context_window` for this model", EndpointRefusalKind.STRAY),
    (400, "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for this model", EndpointRefusalKind.STRAY),
    (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", EndpointRefusalKind.STRAY),
    (400, "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower than 4096.", EndpointRefusalKind.STRAY),
    (400, "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 70 instead.", EndpointRefusalKind.STRAY),
    (400, "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.", EndpointRefusalKind.STRAY),
    (400, "Invalid 'user': string too long. Expected a string with maximum length 64.", EndpointRefusalKind.STRAY),
    (400, "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 130 instead.", EndpointRefusalKind.STRAY),
    (400, "top_logprobs must be less than or equal to 20: limit exceeded", EndpointRefusalKind.STRAY),
    (400, "Unexpected token < in JSON at position 0", EndpointRefusalKind.STRAY),
    (422, {"detail": [{"loc": ["body", "messages", 3], "msg": "Field required", "input": {"content": "the context length of the prompt is too long"}}]}, EndpointRefusalKind.STRAY),
    # Pictures.
    (400, "Invalid image: image size exceeds the limit of 20971520 bytes", EndpointRefusalKind.STRAY),
    (400, "messages.3.content.0.image.source.base64: image exceeds 5 MB maximum: 5400000 bytes > 5242880 bytes", EndpointRefusalKind.STRAY),
    # Filters.
    (400, {"message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.", "code": "content_filter"}, EndpointRefusalKind.FILTERED),
    (400, "Content Exists Risk", EndpointRefusalKind.FILTERED),
    (400, {"code": "data_inspection_failed", "message": "Input data may contain inappropriate content."}, EndpointRefusalKind.FILTERED),
    (400, "Your request was flagged as potentially violating our usage policy", EndpointRefusalKind.FILTERED),
    (400, "Request blocked by guardrail", EndpointRefusalKind.FILTERED),
    # What passes.
    (400, "Provider returned error", EndpointRefusalKind.STRAY),
    (400, "upstream connection timed out after 300000 ms", EndpointRefusalKind.STRAY),
    (400, "Bad Request", EndpointRefusalKind.STRAY),
    (400, "", EndpointRefusalKind.STRAY),
    (424, "Failed dependency", EndpointRefusalKind.STRAY),
    (451, "Unavailable for legal reasons", EndpointRefusalKind.STRAY),
    (499, "Client closed request", EndpointRefusalKind.STRAY),
    (425, "Too early", EndpointRefusalKind.BUSY),
    (408, "Request timeout", EndpointRefusalKind.BUSY),
    (503, "The model is overloaded: token capacity exceeded", EndpointRefusalKind.BUSY),
    (502, "Bad gateway", EndpointRefusalKind.BUSY),
    (529, "Overloaded", EndpointRefusalKind.BUSY),
    (500, "CUDA error", EndpointRefusalKind.FAILING),
]  # fmt: skip


def body_of(said: object) -> str:
    return said if isinstance(said, str) else json.dumps({"error": said})


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize(("status", "said"), FULL)
def test_a_full_context_in_the_words_of_each_service(
    status: int, said: object, wrapped: bool
) -> None:
    body = json.dumps({"error": {"message": said}}) if wrapped and isinstance(said, str) else said
    assert judge(status, body_of(body), LATER) is EndpointRefusalKind.FULL


@pytest.mark.parametrize(("status", "said", "kind"), OTHER)
def test_what_is_no_full_context(status: int, said: object, kind: EndpointRefusalKind) -> None:
    assert judge(status, body_of(said), LATER) is kind
    assert judge(status, body_of(said), FIRST) is not EndpointRefusalKind.FULL


def test_the_tables_are_long_enough() -> None:
    assert len(FULL) >= 34 and len(OTHER) >= 30


@pytest.mark.parametrize(
    ("said", "prompt", "limit"),
    [
        ("input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000", 197202, 200000),
        ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
        ("prompt is too long: 210,000 tokens > 200,000 maximum", 210000, 200000),
        ("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8500 in the messages, 500 in the completion).", 9000, 8192),
        ("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", 9000, 8192),
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 537812, 131072),
        ("Input length (40000 tokens) exceeds the maximum allowed length (32762 tokens).", 40000, 32762),
        ("The input (40000 tokens) is longer than the model's context length (32768 tokens).", 40000, 32768),
        ("The decoder prompt (length 9001) is longer than the maximum model length of 8192.", 9001, 8192),
        ("Range of input length should be [1, 98304]", None, 98304),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`", 4000, 4096),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1200000, 1048576),
        ("prompt length (9000) exceeds maximum input length (8192)", 9000, 8192),
        ("prompt token count of 130000 exceeds the limit of 128000", 130000, 128000),
        ("Please reduce the length. Current length is 9000 while limit is 8192", 9000, 8192),
        ("This model's maximum context length is 8192 tokens.", None, 8192),
        ("Prompt exceeds max length (error 1261, request 20260101)", None, None),
        ("max_tokens must be at least 1, got -512", None, None),
        ("99999999999999999999 tokens > 99999999999999999998 maximum", None, None),
    ],
)  # fmt: skip
def test_numbers_are_read_where_words_label_them(
    said: str, prompt: int | None, limit: int | None
) -> None:
    assert token_counts(said) == (prompt, limit)


def test_the_words_of_an_error_however_it_is_wrapped() -> None:
    for body in ('{"error": {"message": "no"}}', '{"message": "no"}', '{"detail": "no"}', "no"):
        assert words_of(body) == "no"
    assert words_of("[" * 100_000).startswith("[[")


def test_a_prompt_that_the_error_repeats_tells_nothing() -> None:
    """A validation error holds the whole request."""
    asked = {"messages": [{"content": "the prompt is too long: context length exceeded"}]}
    body = {"detail": [{"msg": "Field required", "loc": ["body", "x"], "input": asked}]}
    assert judge(422, json.dumps(body), FIRST) is EndpointRefusalKind.REQUEST
