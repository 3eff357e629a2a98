"""A part of which no event is selected has no rows; cutting nothing into pieces raised an error."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from made_events import events_table, lepton, made_event, track

from features.kernel_pass import EventsFile, keys_of, run_kernels
from features.mixing import plan_mixing
from features.mixing_pass import KernelFile, write_groups
from features.settings import FeatureSettings, SplitSettings

SETTINGS = FeatureSettings(feed_workers=1, split=SplitSettings(train=0.4, val=0.3, test=0.3))


def test_a_part_without_selected_events_is_left_out(tmp_path: Path) -> None:
    good = [made_event(entry=entry, label=entry % 2, electrons=[lepton(40, 0, 0)]) for entry in range(60)]
    bad = [made_event(entry=60, electrons=[lepton(40, 0, 0)], tracks=[track(40, 0.1, 0)])]
    keys, files = [], []
    for name, rows in (("bad.parquet", bad), ("good.parquet", good), ("bad2.parquet", bad)):
        pq.write_table(events_table(rows), tmp_path / name)
        output = run_kernels(EventsFile(name, "made", "", str(tmp_path / name)), SETTINGS, tmp_path)
        path = output.path(tmp_path.parent)
        files.append(KernelFile(str(path), sum(len(each.label) for each in keys), 1.0))
        keys.append(keys_of(path, SETTINGS))
    assert [len(each.label) for each in keys] == [0, 60, 0]
    plan = plan_mixing(keys, SETTINGS, ["QCD", "ttbar"])
    for split in ("train", "val", "test"):
        (tmp_path / split).mkdir()
    written, _ = write_groups(plan.groups, files, ["QCD", "ttbar"], tmp_path)
    assert sum(each.group.rows for each in written) == 60
