"""For Airflow's interpreter: what the DAG file is once loaded, and how its tasks end. Prints JSON in its last line."""

from __future__ import annotations

import ast
import datetime as dt
import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def main() -> None:
    """Load the file with its imports already done, and say what there is."""
    path, *executed = sys.argv[1:]
    states = json.loads(executed.pop()) if "--states" in executed else {}
    executed = [word for word in executed if word != "--states"]
    for name in imported(Path(path)):
        importlib.import_module(name)
    before = time.perf_counter()
    module = load(path)
    seconds = time.perf_counter() - before
    dag = module.dag
    tasks = {task.task_id: task for task in dag.tasks}
    found = {
        "seconds": seconds,
        "modules": sorted({name.split(".")[0] for name in sys.modules}),
        "chain": {name: sorted(task.downstream_task_ids) for name, task in tasks.items()},
        "retries": {name: task.retries for name, task in tasks.items()},
        "retry_seconds": {name: task.retry_delay.total_seconds() for name, task in tasks.items()},
        "timeout_hours": {name: task.execution_timeout.total_seconds() / 3600 for name, task in tasks.items()},
        "together": {name: task.max_active_tis_per_dag for name, task in tasks.items()},
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "schedule": str(getattr(dag.timetable, "expression", None)),
        "under_way": module._under_way(
            SimpleNamespace(dag_id=dag.dag_id, run_id="mine", get_task_states=lambda **_: states)
        ),
        "ends": {name: end_of(tasks[name]) for name in executed},
    }
    print(json.dumps(found))  # noqa: T201 - its result


def imported(path: Path) -> list[str]:
    """Modules that a file imports at its top."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            module = importlib.import_module(node.module)
            # Airflow imports these when they are asked for.
            for each in node.names:
                getattr(module, each.name, None)
    return names


def load(path: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location("dag_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def end_of(task: Any) -> str:
    """Run a task here, without a scheduler; the name of what it raised."""
    context = {
        "data_interval_end": dt.datetime(2025, 3, 2, tzinfo=dt.UTC),
        "ti": SimpleNamespace(dag_id="hep_pipeline", run_id="this", get_task_states=lambda **_: {}),
    }
    try:
        type(task).execute.__wrapped__(task, context)
    except Exception as error:  # noqa: BLE001 - what it is, is asked for
        return f"{type(error).__name__}: {error}"
    return "done"


if __name__ == "__main__":
    main()
