"""A program for Airflow's interpreter: it loads the DAG file, and runs its tasks.

It answers each line of JSON with a line, so that Airflow is imported once.
"""

from __future__ import annotations

import ast
import datetime as dt
import importlib
import importlib.util
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

#: End of the interval of every run here.
END = dt.datetime(2025, 3, 2, tzinfo=dt.UTC)


def main() -> None:
    """Answer until there are no more questions; what Airflow logs goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    folder = Path(sys.argv[1]).parent
    # Airflow does so with its folder of DAGs.
    sys.path.append(str(folder))
    for path in folder.glob("*.py"):
        for name in imported(path):
            importlib.import_module(name)
    for line in sys.stdin:
        question = json.loads(line)
        os.environ.clear()
        os.environ.update(question["env"])
        print(json.dumps(answer(sys.argv[1], question["runs"])), file=answers, flush=True)


def answer(path: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The DAG, and the ends of its tasks.

    Args:
        path: The DAG file.
        runs: Each with `task`, and perhaps `run_type`, `params`, `waited` (seconds), and `events`
            (pairs of address and details), which the asset has already.
    """
    cpu_time_before = time.process_time()
    try:
        dag = load(path).dag
    except ValueError as error:
        return {"refused": str(error)}
    seconds = time.process_time() - cpu_time_before
    tasks = {task.task_id: task for task in dag.tasks}
    return {
        "seconds": seconds,
        "modules": sorted({name.split(".")[0] for name in sys.modules}),
        "tasks": {name: about(task) for name, task in tasks.items()},
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "schedule": str(getattr(dag.timetable, "expression", None)),
        "params": dag.params.dump(),
        "ends": [end_of(dag, **run) for run in runs],
    }


def about(task: Any) -> dict[str, Any]:
    """The settings of a task."""
    return {
        "after": sorted(task.upstream_task_ids),
        "retries": task.retries,
        "retry_seconds": task.retry_delay.total_seconds(),
        "timeout_hours": task.execution_timeout.total_seconds() / 3600,
        "reschedules": getattr(task, "reschedule", False),
        "rule": task.trigger_rule.value,
        "pool": task.pool,
        "together": task.max_active_tis_per_dag,
        "owner": task.owner,
        "doc": task.doc_md,
    }


def imported(path: Path) -> list[str]:
    """Modules that a file imports at its top."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            module = importlib.import_module(node.module)
            # Airflow imports these at their first use.
            for each in node.names:
                getattr(module, each.name, None)
    return names


def load(path: str) -> ModuleType:
    """A file as a module, which imports the one beside it anew."""
    sys.modules.pop("hep_pipeline_tasks", None)
    spec = importlib.util.spec_from_file_location("dag_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Events:
    """The events of an asset alias."""

    def __init__(self) -> None:
        self.added: list[tuple[str, dict[str, Any]]] = []

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        """Keep the address and the details."""
        self.added.append((asset.uri, extra))


def end_of(
    dag: Any,
    *,
    task: str,
    run_type: str = "scheduled",
    params: dict[str, Any] | None = None,
    waited: float = 0,
    events: Sequence[tuple[str, dict[str, Any]]] = (),
) -> dict[str, Any]:
    """Run a task here, without a scheduler: the name of what it raised, and what it announced."""
    operator = dag.get_task(task)
    earlier = [
        SimpleNamespace(asset=SimpleNamespace(uri=uri), extra=extra) for uri, extra in events
    ]
    announced: dict[Any, Events] = defaultdict(Events)
    begun = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=waited)
    context = {
        "params": {**dag.params.dump(), **(params or {})},
        "dag_run": SimpleNamespace(run_type=run_type, data_interval_end=END, run_after=END),
        "ti": SimpleNamespace(get_first_reschedule_date=lambda _: begun),
        "outlet_events": announced,
        "inlet_events": dict.fromkeys(operator.inlets, earlier),
    }
    operator.soft_fail = False
    try:
        type(operator).execute.__wrapped__(operator, context)
        message = "done"
    except Exception as error:  # noqa: BLE001 - its name is the answer
        message = f"{type(error).__name__}: {error}"
    added = {alias.name: events.added for alias, events in announced.items()}
    return {"end": message, "events": added}


if __name__ == "__main__":
    main()
