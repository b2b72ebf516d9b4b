"""A model's chat template as token arithmetic: what to append, never what to re-tokenise.

A rollout's tokens are prompt_ids + completion + next_prompt_ids + completion + ...; earlier tokens
are never rendered again, whatever the template would do to old messages (strip reasoning, trim).
The words of a task or a command are text: a special token named in it never becomes that token.
A template that asks for the date gets the same one each time, in UTC and English: a rollout that is
resumed on another day or host continues the same tokens.
Imports transformers when made; used by the rollout activities.
"""

import copy
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra.policy.model.model_files import check_tokenizer_files, read_tokenizer_class
from infra.policy.model.template_date import directives, with_fixed_date
from mainspring.errors import ModelError
from mainspring.words.causes import shortened

REPLY = "reply-0f8c1d"
"""Stands for the assistant's reply when the template is rendered; occurs in no real prompt."""
GENERIC_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names in tokenizer_config.json where tokenizer.json describes all: of transformers 5 and 4."""
UNTRUSTED = "untrusted-0f8c1d"
"""Stands for text that names special tokens while the template around it is rendered."""
BASE: tuple[dict[str, str], ...] = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": REPLY},
)


def _tokenizer_class(directory: Path) -> Any:
    """The one that AutoTokenizer finds. Its import takes 2 s of CPU and 190 MB, for torch, which a
    tokenizer that is described by its files alone does not need."""
    if read_tokenizer_class(directory) in GENERIC_CLASSES:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


class ChatTokenizer:
    def __init__(
        self,
        directory: Path,
        *,
        at: datetime | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`at`: what a template takes for now; of a campaign, when it was stored (default: when
        this object is made). `variables`: those that the template is given each time. Raises
        ModelError when there is no tokenizer or no usable chat template, or one that does not use
        these variables."""
        check_tokenizer_files(directory)
        self.directory = directory
        self._date = directives(at or datetime.now(UTC))
        # Whether special tokens are split is a setting of the tokenizer, not of one call: two
        # threads at once could let a text's special token through.
        self._encoding = threading.Lock()
        try:
            load = _tokenizer_class(directory).from_pretrained
            self._tokenizer: Any = load(directory, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = shortened(" ".join(str(error).split()), 200)
            raise ModelError(
                f"model directory {directory}: the tokenizer cannot be loaded: {reason}",
                remedy="put tokenizer.json beside the weights: "
                "tokenizer.save_pretrained(directory)",
            ) from error
        if not self._tokenizer.chat_template:
            raise ModelError(
                f"model directory {directory}: the tokenizer has no chat template",
                remedy="use an instruction-tuned model, or set chat_template in "
                "tokenizer_config.json",
            )
        self._tokenizer.chat_template = with_fixed_date(self._tokenizer.chat_template)
        self._special_ids = frozenset(self._tokenizer.all_special_ids) | frozenset(
            index for index, token in self._tokenizer.added_tokens_decoder.items() if token.special
        )
        self._special_texts = tuple(
            self._tokenizer.convert_ids_to_tokens(index) for index in self._special_ids
        )
        self._use(variables)

    def under(self, variables: Mapping[str, Any]) -> "ChatTokenizer":
        """The same tokenizer with these variables. Raises ModelError."""
        other = copy.copy(self)
        other.__dict__.pop("closing_ids", None)
        other._use(variables)
        return other

    def _use(self, variables: Mapping[str, Any]) -> None:
        template = self._tokenizer.chat_template
        texts = template.values() if isinstance(template, dict) else [template]
        for name in variables:
            # A name that stands nowhere in it is certainly not used: most likely it is misspelled.
            if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts):
                raise ModelError(
                    f"model directory {self.directory}: the chat template does not use {name!r}",
                    remedy="correct the name in [policy.sampling] chat_template_kwargs, or leave "
                    "it out",
                )
        self.variables = dict(variables)
        _ = self.closing_ids  # derived now, so that an unusable template shows at the start

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Every special token as it is written."""
        return self._special_texts

    @cached_property
    def closing_ids(self) -> tuple[int, ...]:
        """Tokens that follow a reply in the template up to and including its end token."""
        ids = self._after_reply("next")
        for position, token in enumerate(ids):
            if token in self._special_ids:
                return tuple(ids[: position + 1])
        raise ModelError(
            f"model directory {self.directory}: the chat template ends a reply without a special "
            "token",
            remedy="the token that ends a reply must be in the tokenizer's special tokens",
        )

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The template's end token, then the tokenizer's own if it is another one."""
        end, eos = self.closing_ids[-1], self._tokenizer.eos_token_id
        return (end,) if eos in (None, end) else (end, int(eos))

    def prompt_ids(self, system: str, user: str) -> list[int]:
        """The first prompt, up to where the reply begins; an empty `system` is left out."""
        messages = [{"role": "system", "content": system}] if system else []
        return self._encode_around(
            user, lambda text: self.render([*messages, {"role": "user", "content": text}])
        )

    def next_prompt_ids(self, user_text: str, *, closed: bool) -> list[int]:
        """Only the tokens to append after a reply: the user's message and the next reply's
        beginning. `closed`: the reply ended with its end token; else that comes first."""
        ids = self._after_reply(user_text)
        return ids[len(self.closing_ids) :] if closed else ids

    def reply_ids(self, text: str) -> list[int]:
        """Tokens of a reply that another model wrote, its end token included. Special tokens that
        it names are text."""
        return [*self.encode_plain(text), *self.closing_ids]

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id: equal in tokenizers that give the same ids the same meaning."""
        return self._tokenizer.get_vocab()

    def decode(self, ids: list[int] | tuple[int, ...]) -> str:
        """Text for people and for the action parser, without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def written(self, ids: Sequence[int]) -> str:
        """Text with special tokens, as engines look for stop strings in it."""
        return self._tokenizer.decode(list(ids))

    def _after_reply(self, user_text: str) -> list[int]:
        def render(user: str) -> str:
            text = self.render([*BASE, {"role": "user", "content": user}])
            _, mark, after = text.partition(REPLY)
            if not mark:
                raise ModelError(
                    f"model directory {self.directory}: the chat template drops earlier replies"
                )
            return after

        return self._encode_around(user_text, render)

    def _encode_around(self, content: str, render: Callable[[str], str]) -> list[int]:
        """Tokens of `render(content)`, where the content has no special tokens."""
        if not any(special in content for special in self._special_texts):
            return self.encode(render(content))
        before, mark, after = render(UNTRUSTED).partition(UNTRUSTED)
        if not mark:
            raise ModelError(
                f"model directory {self.directory}: the chat template drops the user's message"
            )
        return [*self.encode(before), *self.encode_plain(content), *self.encode(after)]

    def render(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> str:
        """Messages and tools as the template's author expects them, up to where the next reply
        begins. Raises ModelError when the template refuses them."""
        from jinja2 import TemplateError

        try:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                template_date=self._date,
                **self.variables,
            )
        # A template that takes messages for others than they are breaks in Python's own words.
        except (TemplateError, TypeError, ValueError, LookupError, RecursionError) as error:
            roles = [message["role"] for message in messages]
            raise ModelError(
                f"model directory {self.directory}: the chat template refuses {roles}: {error}"
            ) from error

    def encode(self, text: str) -> list[int]:
        """A template's text: special tokens in it are those."""
        # The template writes its own special tokens, a second beginning-of-text would be wrong.
        return self._encode(text, split=False)

    def encode_plain(self, text: str) -> list[int]:
        """Encode what others wrote: special tokens in it are text."""
        return self._encode(text, split=True)

    def _encode(self, text: str, split: bool) -> list[int]:
        with self._encoding:
            return self._tokenizer.encode(
                text, add_special_tokens=False, split_special_tokens=split
            )
