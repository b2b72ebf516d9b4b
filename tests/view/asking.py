"""Actions as a person uses them: the form of a page, filled in and sent."""

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

import httpx


@dataclass
class Form(HTMLParser):
    """The first form under the main part of a page, with what it would send."""

    page: str
    method: str = ""
    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    visible: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._area = ""
        self.feed(self.page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        have = dict(attrs)
        if tag == "form":
            self.method, self.action = have.get("method") or "", have.get("action") or ""
        if tag in ("input", "textarea") and (name := have.get("name")):
            self.fields[name] = have.get("value") or ""
            if have.get("type") != "hidden":
                self.visible.append(name)
            self._area = name if tag == "textarea" else ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.fields[self._area] = self.fields[self._area].removeprefix("\n")
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area] += data


def told(page: str) -> str:
    """The words of a page's main part."""
    main = page.partition('<main id="main">')[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", main)).split())


async def ask(client: httpx.AsyncClient, address: str) -> Form:
    """The form of an action's page."""
    answer = await client.get(address)
    assert answer.status_code == 200, told(answer.text)
    return Form(answer.text)


async def send(client: httpx.AsyncClient, form: Form, **fields: str) -> httpx.Response:
    """As a browser sends it; what it leads to is not followed."""
    headers = {"origin": str(client.base_url).rstrip("/")}
    return await client.post(form.action, data=form.fields | fields, headers=headers)


async def do(client: httpx.AsyncClient, address: str, **fields: str) -> str:
    """Send the form of an action's page; what the page tells that it leads to."""
    return await outcome(client, await send(client, await ask(client, address), **fields))


async def outcome(client: httpx.AsyncClient, answer: httpx.Response) -> str:
    if answer.status_code != 303:
        return told(answer.text)
    done = await client.get(answer.headers["location"])
    assert done.status_code == 200
    return told(done.text)
