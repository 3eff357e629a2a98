"""The workload of a study: mistakes are said when its file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from example_study import write_study

from hep_studies.study_files import read_study
from hep_studies.workloads.images_settings import MnistSettings
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("hfl", "workload: there is no workload 'hfl', .*hlf.*mnist.* Did you mean 'hlf'"),
        ("minst", "workload: there is no workload 'minst', .* Did you mean 'mnist'"),
        ({"name": "minst"}, "workload: there is no workload 'minst', .* Did you mean 'mnist'"),
        ({"network": "lenet5"}, "'workload.name' is missing"),
        (
            {"name": "mnist", "netwrk": "lenet5"},
            "unknown key 'workload.netwrk'. Did you mean 'network'",
        ),
        (
            {"name": "mnist", "network": "lenet"},
            "'workload.network': .* 'lenet5' or 'perceptron' .* Did you mean 'lenet5'",
        ),
        (["hlf"], "workload: .* the name of a network, nor a section with `name`"),
    ],
    ids=str,
)
def test_a_mistake_in_the_workload_is_said_when_the_file_is_read(
    tmp_path: Path, workload: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_study(write_study(tmp_path, {"workload": workload}), "small")


def test_a_workload_of_images_may_be_given_by_its_name_alone(tmp_path: Path) -> None:
    path = write_study(tmp_path, {"workload": "mnist"})

    study = read_study(path, "small").settings

    assert study.workload == MnistSettings()
