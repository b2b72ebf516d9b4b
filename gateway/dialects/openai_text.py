"""Text as OpenAI's two APIs send it: a string, or a list of parts. Imported by both dialects."""

from collections.abc import Collection

from gateway.dialects.conversation import Text
from gateway.dialects.json_value import JsonValue


def text_of(
    content: JsonValue, shown: Collection[str], hidden: Collection[str], separator: str = "\n"
) -> Text:
    """`shown`, `hidden`: types of parts with text, and of those that the model cannot see. Raises
    BadRequest for any other."""
    text = Text(separator)
    if content.is_text:
        text.add(content.text())
        return text
    if not content.is_list:
        content.refuse("text or a list of parts")
    for part in content.items():
        kind = part.member("type").text()
        if kind in shown:
            text.add(part.member("text").text())
        elif kind == "refusal":
            text.add(part.member("refusal").text())
        elif kind in hidden:
            text.hide()
        else:
            part.member("type").refuse(" or ".join(shown))
    return text
