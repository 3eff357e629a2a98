"""`doctor` names the tokens of a run, and warns of those that end before it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from rich.console import Console
from token_files import json_web_token, ticket_file

from hep_core.tokens import Token
from pipeline.commands.doctor import doctor
from pipeline.config import load_config
from pipeline.machine.tokens import check_tokens, tokens_by_address
from pipeline.run_folder import RunFolder

NOW = datetime(2025, 3, 1, 22, 0, tzinfo=UTC)
SHORT = Token("the Kerberos ticket", NOW + timedelta(hours=2), "renew it by kinit")
LONG = Token("the proxy certificate", NOW + timedelta(hours=9), "renew it by voms-proxy-init")
SILENT = Token("the bearer token", None, "get another one")


def test_a_token_that_ends_before_the_run_is_a_warning() -> None:
    tokens = {"root://server//*.root": [SHORT], "/eos/run": [SHORT]}

    (finding,) = check_tokens(tokens, run_seconds=4 * 3600, now=NOW)

    assert finding.severity == "warning"
    assert finding.problem == (
        "For root://server//*.root: the Kerberos ticket ends at 2025-03-02 00:00 UTC, and the last "
        "run took 4.0 h."
    )
    assert finding.fix == "Before the run, renew it by kinit."


def test_a_token_that_has_ended_is_a_warning_before_the_first_run() -> None:
    later = NOW + timedelta(hours=3)

    (finding,) = check_tokens({"s3://bucket": [SHORT]}, run_seconds=0, now=later)

    assert finding.problem == "For s3://bucket: the Kerberos ticket ended at 2025-03-02 00:00 UTC."


@pytest.mark.parametrize("tokens", [[LONG], [SHORT, LONG], [SHORT, SILENT]])
def test_one_token_that_may_last_suffices(tokens: list[Token]) -> None:
    assert list(check_tokens({"root://server": tokens}, run_seconds=4 * 3600, now=NOW)) == []


def test_doctor_prints_the_end_of_each_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "examine", lambda *_: [])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/cache")
    (tmp_path / "cache").write_bytes(ticket_file(datetime(2025, 3, 2, tzinfo=UTC)))
    monkeypatch.setenv("BEARER_TOKEN", json_web_token(exp=1_740_873_600))
    config = load_config(
        str(small_config(tmp_path, SAMPLES)),
        ["train.workers=1", "evaluate.data=[root://server//data/*.root]"],
    )
    reports: list[str] = []

    diagnosis = doctor(RunFolder(config, Console(quiet=True)), reports.append)

    assert list(tokens_by_address(config)) == ["root://server//data/*.root"]
    (finding,) = diagnosis.findings
    assert "the bearer token in BEARER_TOKEN ended at 2025-03-02 00:00 UTC" in finding.problem
    ticket = f"the Kerberos ticket of ada@CERN.CH in {tmp_path}/cache"
    assert f"{ticket} ended at 2025-03-02 00:00 UTC" in diagnosis.notes
    assert set(diagnosis.notes) <= set(reports)
