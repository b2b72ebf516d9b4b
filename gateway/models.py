"""The list of models, in OpenAI's and in Anthropic's form: one model, under any name. Pure."""

from typing import Any

from mainspring.programs.profile import MODEL_NAME

_BEGAN = "1970-01-01T00:00:00Z"


def in_openai_form(name: str, max_context: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "mainspring",
        "context_length": max_context,
        "max_model_len": max_context,
    }


def in_anthropic_form(name: str, max_context: int) -> dict[str, Any]:
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": _BEGAN,
        "max_input_tokens": max_context,
    }


def in_gemini_form(name: str, max_context: int) -> dict[str, Any]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "inputTokenLimit": max_context,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def openai_list(max_context: int) -> dict[str, Any]:
    return {"object": "list", "data": [in_openai_form(MODEL_NAME, max_context)]}


def anthropic_list(max_context: int) -> dict[str, Any]:
    return {
        "data": [in_anthropic_form(MODEL_NAME, max_context)],
        "has_more": False,
        "first_id": MODEL_NAME,
        "last_id": MODEL_NAME,
    }


def gemini_list(max_context: int) -> dict[str, Any]:
    return {"models": [in_gemini_form(MODEL_NAME, max_context)]}
