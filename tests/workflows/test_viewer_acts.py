"""Actions of the viewer on real campaigns: each does what its command does, and tells so."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from cluster import Cluster
from scripted import SUBMIT, bash
from scripted_trainer import Hold, trainer_of, until_reached
from test_campaign_control import begin, ended
from test_group_reset import start_group
from test_retry_command import finished_run

from cli.operations.acts.offered import all_actions
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.runs import campaign_launch as launch
from infra.db.rollouts import groups, rollouts
from infra.db.runs import campaigns, events
from infra.db.training import policies, steps
from mainspring.artifacts import layout
from mainspring.ids import CampaignId, GroupId
from mainspring.status import CampaignStatus, GroupStatus, Verdict
from tests.view.asking import ask, do, outcome, send, told
from tests.view.viewed import viewer_of
from tests.waiting import until

FIX = bash("echo 'def add(a, b): return a + b' > calc.py")


@pytest.fixture
async def client(cluster: Cluster, stack: StackInfo) -> AsyncIterator[httpx.AsyncClient]:
    async with viewer_of(stack.home, actions=all_actions(stack.home)) as viewer:
        yield viewer


async def offers(client: httpx.AsyncClient, page: str) -> set[str]:
    """Names of the actions that a page offers."""
    text = (await client.get(page)).text
    return {part.partition("?")[0] for part in text.split('href="/do/')[1:]}


async def commands(cluster: Cluster, campaign: CampaignId) -> list[str]:
    found = await events.newest(cluster.db, campaign)
    told = [each for each in found if each.kind == "command" and each.campaign == campaign]
    assert all(each.by.startswith("viewer of ") for each in told)
    return [each.text for each in told]


async def test_a_campaign_is_paused_resumed_changed_and_cancelled(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    hold = Hold("train 1")
    campaign, _ = await begin(cluster, hold)
    page, of = f"/c/{campaign}", f"?of={campaign}"
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        assert await offers(client, page) == {"set", "pause", "cancel"}
        forms = await ask(client, f"/do/pause{of}"), await ask(client, f"/do/pause{of}")
        answers = await asyncio.gather(*(send(client, form) for form in forms))
        words = sorted([await outcome(client, answer) for answer in answers], key=len)
        # Two pressed the button at once: it is paused once, and the other is told.
        assert f"campaign {campaign} is paused" in words[0]
        assert "has changed since you were asked" in words[1]
        assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.PAUSED
        assert await offers(client, page) == {"set", "resume", "cancel"}
        assert "is resumed" in await do(client, f"/do/resume{of}")

        asking = await ask(client, f"/do/set{of}")
        assert asking.method == "get" and asking.visible == ["fields", "from_step"]
        lr = "trainer.optimizer.lr"
        looked = await client.get("/do/set", params={"of": campaign, "fields": f"{lr}=5e-7"})
        words = told(looked.text)
        assert f"{lr} 1e-06 -> 5e-07, from step 2" in words and f"set {campaign} {lr}=5e-7" in words
        address = str(looked.url.raw_path, "ascii")
        assert "1 change; it runs with them" in await do(client, address)
        bad = await client.get("/do/set", params={"of": campaign, "fields": "trainer.seed=1"})
        assert bad.status_code == 400
        again = await client.get(address)
        assert "has these values already" in told(again.text)

        form = await ask(client, f"/do/cancel{of}")
        assert form.visible == ["typed"]
        wrong = await send(client, form, typed="another")
        assert wrong.status_code == 409 and "You typed" in wrong.text
        assert (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.RUNNING
        done = await outcome(client, await send(client, form, typed=campaign))
        assert f"campaign {campaign} is being cancelled" in done
        assert (await ended(cluster, campaign)).status is CampaignStatus.CANCELLED
        hold.released.set()
        late = await client.get(f"/do/cancel{of}")
        assert late.status_code == 400 and "has already been cancelled" in late.text
        # The same form again tells what it did.
        again = await outcome(client, await send(client, form, typed=campaign))
        assert f"campaign {campaign} is being cancelled" in again
    told_events = await commands(cluster, campaign)
    assert [text.partition(":")[0] for text in told_events] == [
        "campaign pause",
        "campaign resume",
        "campaign set",
        "campaign cancel",
    ]


async def test_what_ended_or_went_while_the_page_was_open_is_refused(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    hold = Hold("train 1")
    campaign, _ = await begin(cluster, hold)
    async with trainer_of(cluster, campaign, hold):
        await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        pausing = await ask(client, f"/do/pause?of={campaign}")
        dropping = await ask(client, f"/do/drop-batch?of={campaign}")
        hold.released.set()
        await ended(cluster, campaign)
        answer = await send(client, pausing)
        assert answer.status_code == 409 and "has already finished: nothing to pause" in answer.text
        assert "http-equiv" not in answer.text
        answer = await send(client, dropping, typed=campaign)
        assert answer.status_code == 409 and "has no planned batch" in answer.text
    assert await commands(cluster, campaign) == []


async def test_a_batch_is_dropped_and_a_version_rolled_back(
    cluster: Cluster, client: httpx.AsyncClient, stack: StackInfo
) -> None:
    hold = Hold("train 2")
    campaign, _ = await begin(cluster, hold)
    layout.policy(stack.home, campaign, 1).mkdir(parents=True)
    of = f"?of={campaign}"
    async with trainer_of(cluster, campaign, hold):
        handle = await launch.start(cluster.client, cluster.db, campaign)
        await until_reached(hold)
        assert await offers(client, f"/c/{campaign}/steps/2") == {"drop-batch"}
        assert await offers(client, f"/c/{campaign}/steps/1") == set()
        running = await client.get(f"/do/rollback{of}")
        assert running.status_code == 400 and "its versions are in use" in running.text
        taken = await steps.step_groups(cluster.db, campaign, 2)
        page = await client.get(f"/do/drop-batch{of}")
        assert "The batch of step 2 is dropped: its groups (1) are masked" in told(page.text)
        done = await do(client, f"/do/drop-batch{of}", typed=campaign)
        assert "step 2 is not planned any more" in done
        assert (await groups.get(cluster.db, taken[0])).status is GroupStatus.MASKED
        await handle.cancel()
        await ended(cluster, campaign)
        hold.released.set()
        assert await offers(client, f"/c/{campaign}/steps/1") == {"rollback"}
        page = await client.get(f"/do/rollback{of}")
        assert "Policy version 1 and step 1 are discarded: version 0" in told(page.text)
        wrong = await send(client, await ask(client, f"/do/rollback{of}"), typed="")
        assert wrong.status_code == 409
        done = await do(client, f"/do/rollback{of}", typed=campaign)
        assert "policy version 1 is discarded, version 0 is the newest" in done
    assert [each.version for each in await policies.list_policies(cluster.db, campaign)] == [0]
    assert not layout.policy(stack.home, campaign, 1).exists()
    nothing = await client.get(f"/do/rollback{of}")
    assert nothing.status_code == 400 and "no version before version 0" in nothing.text


async def test_a_rollout_under_way_is_retried(cluster: Cluster, client: httpx.AsyncClient) -> None:
    hold = Hold("/001")
    handle, name = await start_group(cluster, hold)
    group = GroupId(name)
    await until_reached(hold)
    [_, held] = await rollouts.list_rollouts(cluster.db, group=group)
    assert "retry" in await offers(client, f"/r/{held.id}")
    form = await ask(client, f"/do/retry?of={held.id}")
    assert "1 rollout retried" in await outcome(client, await send(client, form))

    async def begun() -> bool:
        return (await rollouts.get(cluster.db, held.id)).attempts == 2

    await until(begun)
    # The button again, from a page that was loaded before: not a third attempt.
    assert "1 rollout retried" in await outcome(client, await send(client, form))
    hold.released.set()
    assert (await handle.result()).status is GroupStatus.READY
    played = await rollouts.list_rollouts(cluster.db, group=group)
    assert [each.attempts for each in played] == [1, 2]
    final = await client.get(f"/do/retry?of={held.id}")
    assert final.status_code == 400 and "1 of 1 rollouts are final" in final.text
    all_final = await client.get(f"/do/retry-all?of={held.campaign}&split=train")
    assert all_final.status_code == 400 and "2 of 2 rollouts are final" in all_final.text


async def test_all_that_a_list_shows_are_retried(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    campaign = await finished_run(cluster, "one", "two", "three")
    cluster.policy.say = lambda rollout, turn: (FIX, SUBMIT)[turn]
    chosen = "verdict=no_patch&state=failed"
    assert await offers(client, f"/c/{campaign}/rollouts") == set()
    assert await offers(client, f"/c/{campaign}/rollouts?agent=bash") == set()
    assert await offers(client, f"/c/{campaign}/rollouts?{chosen}") == {"retry-all"}
    page = await client.get(f"/do/retry-all?of={campaign}&{chosen}")
    words = told(page.text)
    assert "Retries 3 rollouts" in words and "is started again for 3 rollouts" in words
    assert f"retry --campaign {campaign} --failed --where" in words
    done = await do(client, f"/do/retry-all?of={campaign}&{chosen}")
    assert f"3 rollouts retried; run {campaign} is started again" in done

    async def finished() -> bool:
        return (await campaigns.get(cluster.db, campaign)).status is CampaignStatus.FINISHED

    await until(finished)
    played = await rollouts.list_rollouts(cluster.db, campaign=campaign)
    assert {(each.verdict, each.attempts) for each in played} == {(Verdict.RESOLVED, 2)}
    nothing = await client.get(f"/do/retry-all?of={campaign}&{chosen}")
    assert nothing.status_code == 400 and "no rollout matches" in nothing.text
    assert (await commands(cluster, campaign))[0] == "rollout retry: 3 rollouts"
