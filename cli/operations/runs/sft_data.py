"""Data of a supervised run: its sources, checked and put together sample by sample.

Invariants: everything that is wrong with a source is found before the run is visible; a sample has
ids of the model's own vocabulary and at most as many tokens as it may have; what is left out is
counted. One sample at a time is in memory.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cli.operations.runs.sft_files import read_file
from infra.db.database import Database
from infra.db.naming import campaign_named
from infra.db.runs.campaigns import CampaignRecord
from infra.db.training import policies, sft_sources
from infra.db.training.sft import StoredSftData
from infra.db.training.sft_sources import Chosen
from infra.policy.model.model_files import read_facts
from infra.policy.model.tokenizer import ChatTokenizer
from mainspring.config.section import BUNDLED
from mainspring.config.sft import OverlongSample, SftConfig, SftSource
from mainspring.errors import ModelError, UsageError
from mainspring.ids import CampaignId
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.imported import ImportedChat, ImportedTokens
from mainspring.trajectories.samples import Sample


def check_files(config: SftConfig) -> None:
    """Raises UsageError for the first source that is no file."""
    for source in config.data.sources:
        if source.file is not None and not Path(source.file).is_file():
            raise UsageError(
                f"run {config.name}: no file {source.file}",
                remedy="give its path in [[data.sources]], absolute or relative to the run's file",
            )


class SftSamples:
    """All samples of a run, in the order of its sources."""

    def __init__(self, db: Database, config: SftConfig, model: Path) -> None:
        """`model`: directory of the model that is trained. Raises ModelError."""
        self._db = db
        self._config = config
        self._tokenizer = ChatTokenizer(model)
        facts = read_facts(model)
        self._vocab_size = facts.vocab_size or len(self._tokenizer.vocabulary)
        self._max_tokens = config.trainer.max_tokens or facts.max_context
        self._num_too_long = self._longest = self._num_empty = 0
        self._first_empty = ""
        self.outcomes: list[str] = []
        """Outcome of each source, in words."""

    async def check_campaigns(self) -> None:
        """Raises UsageError for one whose rollouts this model cannot be trained on, and
        UnknownId."""
        for source in self._config.data.sources:
            if source.campaign is not None:
                await self._check_campaign(await campaign_named(self._db, source.campaign))

    async def read(self) -> AsyncIterator[Sample]:
        """Raises UsageError for the first sample that cannot be trained on."""
        for source in self._config.data.sources:
            num_samples = 0
            chosen = Chosen()
            async for sample in self._of(source, chosen):
                self._check_id(int(sample.token_ids.max()), sample.rollout)
                if self._max_tokens is not None and len(sample.token_ids) > self._max_tokens:
                    self._num_too_long += 1
                    self._longest = max(self._longest, len(sample.token_ids))
                    continue
                num_samples += 1
                yield sample
            of = f"{chosen}, " if source.campaign is not None else ""
            self.outcomes.append(f"{source.named}: {of}{num_samples} samples")
        if self._num_empty:
            self.outcomes.append(
                f"{self._num_empty} empty replies are not trained, the first in {self._first_empty}"
            )

    def complete(self, data: StoredSftData) -> StoredSftData:
        """With what was skipped. Raises UsageError when the run cannot be made of it."""
        name, trainer = self._config.name, self._config.trainer
        text = "; ".join(self.outcomes)
        if self._num_too_long and self._config.data.overlong is OverlongSample.REFUSE:
            total = data.num_samples + self._num_too_long
            raise UsageError(
                f"run {name}: {self._num_too_long} of {total} samples are longer than "
                f"{self._max_tokens} tokens (the longest has {self._longest})",
                remedy='raise trainer.max_tokens, or set overlong = "skip" in [data]',
            )
        if not data.num_samples:
            raise UsageError(
                f"run {name}: there is no sample to train on: {text}"
                + (f"; {self._num_too_long} too long" if self._num_too_long else ""),
                remedy="choose other rollouts (min_reward, max_per_task, min_version and "
                "max_version of [[data.sources]]), or another source",
            )
        if trainer.batch_size > data.num_samples:
            raise UsageError(
                f"run {name}: trainer.batch_size = {trainer.batch_size} is more than its "
                f"{data.num_samples} samples ({text})",
                remedy="lower trainer.batch_size, or add sources",
            )
        return replace(data, num_skipped=self._num_too_long)

    async def _of(self, source: SftSource, chosen: Chosen) -> AsyncIterator[Sample]:
        if source.campaign is not None:
            campaign = CampaignId(source.campaign)
            async for sample in sft_sources.samples(self._db, campaign, source, chosen):
                yield sample
        else:
            assert source.file is not None, "a source has one place"
            for sample in self._of_file(Path(source.file)):
                yield sample

    def _of_file(self, path: Path) -> Iterator[Sample]:
        for where, line in read_file(path):
            yield self._of_line(line, where)

    def _of_line(self, line: ImportedChat | ImportedTokens, where: str) -> Sample:
        if isinstance(line, ImportedChat):
            try:
                return self._of_chat(line, where)
            except ModelError as error:  # such as a template without a system message
                raise UsageError(f"{where}: {error.message}", remedy=error.remedy) from None
        self._check_id(max(line.token_ids), where)
        return to_imitate(
            where, 0, np.array(line.token_ids, np.int32), np.array(line.action_mask, np.bool_)
        )

    def _of_chat(self, chat: ImportedChat, where: str) -> Sample:
        """As a rollout of the model would have it: what is said to it is appended, never rendered
        again."""
        ids: list[int] = []
        mask: list[bool] = []

        def append(new: list[int], is_own: bool) -> None:
            ids.extend(new)
            mask.extend([is_own] * len(new))

        for number, (prompt, replied) in enumerate(chat.exchanges):
            if number:
                append(self._tokenizer.next_prompt_ids(prompt, closed=True), False)
            else:
                append(self._tokenizer.prompt_ids(chat.system, prompt), False)
            # An empty reply would train the token that ends it, right after the prompt.
            is_empty = not replied.strip()
            append(self._tokenizer.reply_ids(replied), not is_empty)
            if is_empty:
                self._num_empty += 1
                self._first_empty = self._first_empty or where
        return to_imitate(where, 0, np.array(ids, np.int32), np.array(mask, np.bool_))

    def _check_id(self, highest: int, where: str) -> None:
        if highest >= self._vocab_size:
            raise UsageError(
                f"{where}: token id {highest} is beyond the vocabulary of "
                f"{self._vocab_size} tokens of model {self._config.policy.model}",
                remedy="train the model whose tokenizer made these ids, or give chats as text",
            )

    async def _check_campaign(self, record: CampaignRecord) -> None:
        policy = record.config.policy
        remedy = (
            f"write its text with `mainspring rollout export {record.id} --format sft`, and give "
            "that file as a source"
        )
        if not policy.api.gives_tokens:
            raise UsageError(
                f"campaign {record.id}: its replies came as text (policy.api = {policy.api}), "
                "without the tokens that were sampled",
                remedy=remedy,
            )
        directory = await self._model_of(record)
        if directory is None or not directory.is_dir():
            raise UsageError(
                f"campaign {record.id}: its model {directory or policy.model} is not here, so that "
                "its tokenizer cannot be compared with that of the run's model",
                remedy=f"put it back, or {remedy}",
            )
        try:
            other = ChatTokenizer(directory).vocabulary
        except ModelError as error:
            raise UsageError(f"campaign {record.id}: {error.message}", remedy=remedy) from None
        if other != self._tokenizer.vocabulary:
            raise UsageError(
                f"campaign {record.id}: its tokenizer ({directory}, {len(other)} tokens) is not "
                f"that of model {self._config.policy.model} "
                f"({len(self._tokenizer.vocabulary)} tokens)",
                remedy=remedy,
            )

    async def _model_of(self, record: CampaignRecord) -> Path | None:
        """None where nothing tells it."""
        first = [
            policy
            for policy in await policies.list_policies(self._db, record.id)
            if policy.version == 0
        ]
        if first:
            return Path(first[0].path)
        model = record.config.policy.model
        return None if model == BUNDLED else Path(model)
