"""Which settings hold credentials, and how an override is hide_credentials."""

from __future__ import annotations

import pytest

from pipeline.configuration.credentials import hide_credentials, holds_credential


def test_names_of_credentials_and_of_other_properties() -> None:
    secret = [
        "spark.ssl.keyPassword",
        "spark.hadoop.fs.s3a.server-side-encryption.key",
        "spark.hadoop.fs.azure.account.key.mine.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.box.mine.blob.core.windows.net",
        "spark.hadoop.fs.gs.auth.client.id",
        "AWS_SECRET_ACCESS_KEY",
    ]
    remaining = [
        "spark.authenticate",
        "spark.hadoop.hadoop.security.credential.provider.path",
        "OMP_NUM_THREADS",
    ]
    assert list(filter(holds_credential, [*secret, *remaining])) == secret


@pytest.mark.parametrize(
    ("word", "seen"),
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
def test_only_values_that_hold_credentials_are_not_shown(word: str, seen: str) -> None:
    assert hide_credentials(word) == seen
    assert hide_credentials(seen) == seen
