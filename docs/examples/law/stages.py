"""The stages of the pipeline as tasks of law 0.1.

    law index --modules stages
    law run stages.Report --night nightly.yaml
    law run stages.Report --night nightly.yaml --settings train.epochs=5,train.workers=1
    law run stages.Report --night nightly.yaml --print-status -1

Whether a task is complete is decided by the pipeline, by the content of files, config and code: so
new ROOT files are noticed although the targets of the last night exist.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache

import law

#: Python of the environment of the pipeline; law may live in another one.
PYTHON = os.environ.get("HEP_PIPELINE_PYTHON", ".venv/bin/python")


def planned_stages(options: tuple[str, ...]) -> dict[str, dict]:
    """Return the stages that a config asks for, in their order, as `plan` describes them now."""
    command = [PYTHON, "-m", "pipeline", "plan", "--json", *options]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return {stage["stage"]: stage for stage in json.loads(output)}


@cache
def stage_targets(options: tuple[str, ...]) -> dict[str, str]:
    """Return the targets of the stages by name, in their order; the config alone decides them."""
    return {name: stage["target"] for name, stage in planned_stages(options).items()}


class Stage(law.Task):
    """A stage of the pipeline; its target is the file that it replaces when it publishes."""

    task_namespace = "stages"
    night = law.Parameter(description="config of the pipeline")
    settings = law.CSVParameter(default=(), description="values for `--set`: key=value,key=value")
    stage = "report"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of the command line that choose config and values."""
        options = ["--config", self.night]
        for setting in self.settings:
            options += ["--set", setting]
        return tuple(options)

    def requires(self) -> list[Stage]:
        """Return the task of the stage before; none for the first one."""
        names = list(stage_targets(self.options))
        position = names.index(self.stage)
        if position == 0:
            return []
        previous_task = TASKS[names[position - 1]]
        return [previous_task.req(self)]

    def output(self) -> law.LocalFileTarget:
        """Return the file that the stage replaces."""
        return law.LocalFileTarget(stage_targets(self.options)[self.stage])

    def complete(self) -> bool:
        """Tell whether the stage has nothing to do, as the pipeline sees it.

        No answer is remembered: with several workers, stages run in processes of their own, and
        what these remember is lost.
        """
        stage = planned_stages(self.options)[self.stage]
        return stage["state"] == "up to date"

    def run(self) -> None:
        """Run the stage; another exit code than 0 fails the task."""
        subprocess.run([PYTHON, "-m", "pipeline", self.stage, *self.options], check=True)


#: The task of each stage.
TASKS: dict[str, type[Stage]] = {}
for name in (
    "simulate",
    "ingest",
    "features",
    "gridsearch",
    "train",
    "evaluate",
    "export",
    "report",
):
    TASKS[name] = type(name.capitalize(), (Stage,), {"stage": name, "__module__": __name__})
globals().update({task.__name__: task for task in TASKS.values()})
