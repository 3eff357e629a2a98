"""A part of which no event is selected has nothing to send; cutting nothing into blobs raised an error."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from made_events import events_table, lepton, made_event, track

from features.kernel_pass import EventsFile, keys_of, read_unmixed, run_kernels
from features.mixing_pass import scatter
from features.settings import FeatureSettings, SplitSettings
from features.spark_job import plan_layout

SETTINGS = FeatureSettings(feed_workers=1, split=SplitSettings(train=0.4, val=0.3, test=0.3))


def test_a_part_without_selected_events_sends_nothing(tmp_path: Path) -> None:
    good = [made_event(entry=entry, label=entry % 2, electrons=[lepton(40, 0, 0)]) for entry in range(60)]
    bad = [made_event(entry=60, electrons=[lepton(40, 0, 0)], tracks=[track(40, 0.1, 0)])]
    keys = []
    for name, rows in (("good.parquet", good), ("bad.parquet", bad)):
        pq.write_table(events_table(rows), tmp_path / name)
        output = run_kernels(EventsFile(name, "made", "", str(tmp_path / name)), SETTINGS, tmp_path)
        keys.append(keys_of(tmp_path / output.name, SETTINGS))
    assert [len(each.label) for each in keys] == [60, 0]
    plan, _ = plan_layout(keys, SETTINGS, ["QCD", "ttbar"])
    assert list(scatter(read_unmixed(tmp_path / "bad.arrow"), keys[1], plan)) == []
    assert list(scatter(read_unmixed(tmp_path / "good.arrow"), keys[0], plan))
