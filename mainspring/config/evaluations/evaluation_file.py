"""File that `mainspring eval run FILE` reads: a campaign file, and the section [run] beside it.

Invariant: the sections that only training uses are checked, so that a mistake in them is named, and
are no part of the evaluation. Imported by `reading`.
"""

from mainspring.config.evaluations.eval_schedule import EvalSchedule
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.run import RunConfig
from mainspring.config.task_slice import TaskSlice
from mainspring.config.trainer import TrainerConfig


class EvaluationFile(RunConfig):
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvalSchedule = EvalSchedule()
    run: TaskSlice = TaskSlice()

    def config(self) -> EvaluationConfig:
        shared = {name: getattr(self, name) for name in RunConfig.model_fields}
        given = {name: getattr(self.run, name) for name in TaskSlice.model_fields}
        return EvaluationConfig(**shared, **given, concurrency=self.evaluation.concurrency)
