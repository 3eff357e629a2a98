"""Settings that hold credentials, and overrides whose values are hidden."""

from __future__ import annotations

import pytest

from pipeline.configuration.credentials import hide_credentials, holds_credential


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("spark.ssl.keyPassword", True),
        ("spark.hadoop.fs.s3a.server-side-encryption.key", True),
        ("spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net", True),
        ("spark.hadoop.fs.azure.sas.box.mine.blob.core.windows.net", True),
        ("spark.hadoop.fs.gs.auth.client.id", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("spark.authenticate", False),
        ("spark.hadoop.hadoop.security.credential.provider.path", False),
        ("OMP_NUM_THREADS", False),
    ],
)
def test_credentials_are_known_by_their_names(name: str, is_secret: bool) -> None:
    assert holds_credential(name) == is_secret


@pytest.mark.parametrize(
    ("override", "hidden"),
    [
        ('spark.conf={"spark.x.password": "a,b c"}', "spark.conf=***"),
        ("sprak.conf.spark.my.password=a;b, c", "sprak.conf.spark.my.password=***"),
        ("train_by_network.hlf={launcher_args: [-x,MY_TOKEN=a b]}", "train_by_network.hlf=***"),
        ("mlflow.uri=https://me:a/b@mlflow", "mlflow.uri=https://***@mlflow"),
        (
            "samples=[{files: [https://store/a?token=x]}]",
            "samples=[{files: [https://store/a?token=***]}]",
        ),
        ("spark.conf={spark.executor.cores: 4}", "spark.conf={spark.executor.cores: 4}"),
        ("report.title=The password: a token study", "report.title=The password: a token study"),
        ("train_token.yaml", "train_token.yaml"),
    ],
)
def test_only_values_that_hold_credentials_are_hidden(override: str, hidden: str) -> None:
    assert hide_credentials(override) == hidden
    assert hide_credentials(hidden) == hidden
