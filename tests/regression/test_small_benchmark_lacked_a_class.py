"""The benchmark from ROOT to features with a first size below three files ended with an error of an empty sample."""

from __future__ import annotations

import pytest
from root_to_features import CLASSES_OF, first, taking_turns

from ingestion.files import FileInfo


def files(*names: str) -> list[FileInfo]:
    """Files of 100 events each."""
    return [FileInfo(*CLASSES_OF[name.split("_")[0]], f"{name}.root", name, 100, 1, "", (), (0, 100)) for name in names]


def test_every_size_has_all_classes() -> None:
    infos = taking_turns(files("qcd_1", "qcd_2", "qcd_3", "ttbar_7", "wjets_8", "wjets_9"))
    assert [info.uuid for info in infos] == ["qcd_1", "ttbar_7", "wjets_8", "qcd_2", "wjets_9", "qcd_3"]
    assert [len(first(infos, size)) for size in (1, 150, 300, 301, 600)] == [3, 3, 3, 4, 6]


def test_a_class_without_files_is_named() -> None:
    with pytest.raises(SystemExit, match="every class needs a file: names begin with qcd_, ttbar_, wjets_"):
        taking_turns(files("qcd_1", "wjets_1"))
