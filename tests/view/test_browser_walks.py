"""The viewer in a real browser: walks by mouse and keyboard, without scripts, small, dark, and over
the death of its server.

They need the package playwright and Debian's Chromium, and are skipped where one is missing; the
check of accessibility also needs axe.min.js of the npm package axe-core, in MAINSPRING_TEST_AXE.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from served import viewing
from store_records import add_group, begin_campaign
from temporalio.service import RPCError
from viewed import Told, add_evaluation, home_of, play

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.database import Database
from infra.db.rollouts import search_pieces
from infra.db.runs import campaigns, removal
from infra.temporal.connection import connect
from mainspring.config.settings import load_settings
from mainspring.ids import CampaignId, campaign_workflow
from mainspring.status import CampaignStatus, Verdict

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

RUN = CampaignId("walked")
"""An evaluation that has ended: what is retried starts it again."""
LONG = "a-path/of-many-letters/" * 12
PAGES = (
    "/",
    "/c/walked",
    "/c/walked/rollouts?verdict=not_resolved",
    "/c/walked/tasks",
    "/c/walked/config",
    "/c/walked/figures",
    "/r/walked/r000000/001",
    "/r/walked/r000000/001?tab=tokens",
    "/r/walked/r000000/001?tab=patch",
    "/r/walked/r000000/001?tab=tests",
    "/r/walked/r000000/001?tab=times",
    "/r/walked/r000000/001?tab=raw",
    "/c/walked/groups/walked/r000000",
    "/compare?r=walked/r000000/001&r=walked/r000000/002",
    "/search?q=ModuleNotFoundError",
    "/events",
    "/nodes",
    "/engines",
    "/do/label?of=walked/r000000/001",
    "/do/retry?of=walked/r000000/001",
    "/do/cancel?of=none",
)


@pytest.fixture
async def home(stack: StackInfo) -> AsyncIterator[Path]:
    """A home with services, and one run that has ended."""
    async with Database.open(stack.database_url) as db:
        ids = await add_evaluation(db, RUN, [f"walk-{n}" for n in range(3)])
        for number, rollout in enumerate(ids):
            said = Told(
                command=f"pytest {LONG}" if number else "ls",
                output=b"E   ModuleNotFoundError: No module named 'attrs'\n" * 30,
                patch=f"--- a/{LONG}\n+++ b/{LONG}\n+{LONG}".encode(),
            )
            verdict = Verdict.NOT_RESOLVED if number else Verdict.RESOLVED
            await play(db, rollout, said, num_turns=6, verdict=verdict)
        while await search_pieces.fill_next(db):
            pass
        await campaigns.set_status(db, RUN, CampaignStatus.FINISHED)
        yield stack.home
        client = await connect(load_settings(stack.home), db)
        with suppress(RPCError):  # where nothing was retried there is no workflow
            await client.get_workflow_handle(campaign_workflow(RUN)).terminate()
        await campaigns.set_status(db, RUN, CampaignStatus.CANCELLED)
        await removal.remove(db, RUN, await removal.mark(db, RUN))


@asynccontextmanager
async def browsing(url: str, **options: Any) -> AsyncIterator[tuple[Any, list[str]]]:
    """A page of a browser, and what its console told as errors."""
    wrong: list[str] = []
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = await browser.new_context(base_url=url, **options)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda told: told.type == "error" and wrong.append(told.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield page, wrong
        await browser.close()


def address(printed: list[str]) -> str:
    return printed[-1].removeprefix("viewer ")


async def test_from_home_to_a_failed_rollout_and_its_retry(home: Path) -> None:
    with viewing(home, "--port", "0", "--actions") as (_, printed):
        async with browsing(address(printed)) as (page, wrong):
            await page.goto("/")
            await page.click("text=walked")
            await page.click("nav >> text=rollouts")
            await page.click(".facets >> text=not resolved")
            await page.click("text=r000000/001")
            await page.wait_for_url("**/r/walked/r000000/001")
            await page.keyboard.press("p")
            await page.wait_for_url("**tab=patch")
            assert "a-path/of-many-letters" in await page.inner_text("pre.diff")
            await page.click(".tabs >> text=tests")
            assert "test_a.py::test_x" in await page.inner_text("main")
            await page.click(".tabs >> text=turns")
            await page.wait_for_url("**/r/walked/r000000/001")
            await page.wait_for_load_state()
            places = []
            for _key in range(2):
                await page.keyboard.press("n")
                await page.wait_for_timeout(500)
                places.append(await page.evaluate("scrollY"))
            assert 0 < places[0] < places[1]
            await page.keyboard.press("]")
            await page.wait_for_url("**/r/walked/r000000/002*")
            await page.goto("/compare?r=walked/r000000/001&r=walked/r000000/002")
            assert "002" in await page.inner_text("main")
            await page.keyboard.press("/")
            await page.wait_for_url("**/search")
            await page.keyboard.press("/")
            await page.keyboard.type("ModuleNotFoundError part:output")
            await page.keyboard.press("Enter")
            await page.click(".hits a >> nth=0")
            await page.wait_for_url("**/r/walked/**")
            await page.click(".acts >> text=retry")
            assert "mainspring rollout retry walked/" in await page.inner_text("pre.copy")
            await page.click("button.main")
            await page.wait_for_url("**/done/*")
            told = await page.inner_text("main")
            assert "1 rollout retried; run walked is started again" in told
            # The page of what was done is an ordinary one: to load it again does nothing.
            await page.reload()
            assert "1 rollout retried" in await page.inner_text("main")
            await page.click("text=Back to the page")
            await page.wait_for_url("**/r/walked/**")
        assert wrong == []


async def test_everything_works_without_scripts(home: Path) -> None:
    with viewing(home, "--port", "0", "--actions") as (_, printed):
        async with browsing(address(printed), java_script_enabled=False) as (page, wrong):
            await page.goto("/c/walked/rollouts")
            await page.click("text=r000000/001")
            await page.click("text=label or note")
            await page.fill("[name=add]", "bad")
            await page.fill("[name=note]", "edits the test")
            await page.click("button.main")
            assert "bad added, note 'edits the test'" in await page.inner_text("main")
            await page.click("text=Back to the page")
            assert "edits the test" in await page.inner_text("main")
            await page.goto("/c/walked/rollouts")
            await page.click(".facets >> text=bad")
            assert "label: bad" in await page.inner_text(".chosen")
            assert await page.locator("tbody tr").count() == 1
        assert wrong == []


@pytest.mark.parametrize("width", [320, 400, 1280])
async def test_no_page_scrolls_sideways(home: Path, width: int) -> None:
    with viewing(home, "--port", "0", "--actions") as (_, printed):
        size = {"width": width, "height": 700}
        async with browsing(address(printed), viewport=size) as (page, _):
            wide = []
            for path in PAGES:
                await page.goto(path)
                over = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if over > 0:
                    wide.append((path, over))
            assert wide == []


@pytest.mark.skipif("MAINSPRING_TEST_AXE" not in os.environ, reason="no MAINSPRING_TEST_AXE=FILE")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
async def test_axe_finds_nothing(home: Path, scheme: str, width: int) -> None:
    axe = Path(os.environ["MAINSPRING_TEST_AXE"]).read_text()
    size = {"width": width, "height": 700}
    options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
    with viewing(home, "--port", "0", "--actions") as (_, printed):
        # The page's own policy refuses the script that looks at it.
        async with browsing(address(printed), bypass_csp=True, **options) as (page, _):
            found = []
            for path in PAGES:
                await page.goto(path)
                await page.add_script_tag(content=axe)
                told = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
                found += [
                    (path, each["id"], each["nodes"][0]["target"]) for each in told["violations"]
                ]
            assert found == []


async def test_dark_and_light(home: Path) -> None:
    with viewing(home, "--port", "0") as (_, printed):
        async with browsing(address(printed), color_scheme="dark") as (page, wrong):
            await page.goto("/c/walked")
            assert await brightness(page) < 60
            await page.click("#theme")
            assert await brightness(page) > 200
            await page.reload()  # it is remembered
            assert await brightness(page) > 200
        assert wrong == []


async def brightness(page: Any) -> float:
    color = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) / 3


async def test_a_page_is_live_again_when_its_server_is(
    db: Database, store_url: str, tmp_path: Path
) -> None:
    await begin_campaign(db)
    await campaigns.set_status(db, CampaignId("first"), CampaignStatus.RUNNING)
    home = home_of(tmp_path / "home", store_url)
    with viewing(home, "--port", "0") as (process, printed):
        url = address(printed)
        async with browsing(url) as (page, _):
            await page.goto("/c/first")
            await page.wait_for_timeout(3000)  # the stream has told its first word
            process.kill()
            process.wait()
            _, ids = await add_group(db, size=2)
            for rollout in ids:
                await play(db, rollout, Told())
            with viewing(home, "--port", url.rpartition(":")[2]) as (_, again):
                assert address(again) == url
                # Sooner than it asks by itself: the stream has told it.
                await page.wait_for_selector("text=2 resolved", timeout=30_000)
