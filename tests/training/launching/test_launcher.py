"""How mpirun is started."""

from __future__ import annotations

import pytest

from training.launching.launcher import _ssh_options


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRTE_MCA_plm_ssh_args", "OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"):
        monkeypatch.delenv(name, raising=False)


def test_a_host_without_power_stalled_mpirun_forever() -> None:
    for options in _ssh_options(["--hostfile", "hosts.txt"]).values():
        assert "ServerAliveInterval=" in options
        assert "ServerAliveCountMax=" in options


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRTE_MCA_plm_ssh_args", "-p 2222")
    assert set(_ssh_options([])) == {"OMPI_MCA_plm_rsh_args"}


def test_another_agent_than_ssh_gets_no_options_of_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ssh_options(["--prtemca", "plm_ssh_agent", "/path/agent"]) == {}
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "rsh")
    assert _ssh_options([]) == {}
