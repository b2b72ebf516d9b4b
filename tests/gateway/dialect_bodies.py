"""Valid request bodies of each dialect, to be altered by tests."""

from typing import Any

USER = {"role": "user", "content": "Fix it."}
PARTS = {"role": "user", "parts": [{"text": "Fix it."}]}
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
GEMINI = "/v1beta/models/m:generateContent"
IMAGES = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    RESPONSES: {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    MESSAGES: {"type": "image", "source": {"type": "base64", "data": "AA=="}},
    GEMINI: {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
}


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [USER], **fields}


def responses(**fields: Any) -> tuple[str, dict[str, Any]]:
    return RESPONSES, {"input": "Fix it.", **fields}


def messages(**fields: Any) -> tuple[str, dict[str, Any]]:
    return MESSAGES, {"messages": [USER], "max_tokens": 9, **fields}


def gemini(**fields: Any) -> tuple[str, dict[str, Any]]:
    return GEMINI, {"contents": [PARTS], **fields}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "run", **fields}}


def declared(*functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"functionDeclarations": list(functions)}]


TOOL = {"name": "run", "input_schema": {}}
RUN = {"type": "function", "name": "run"}
