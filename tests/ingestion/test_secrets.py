"""What is hidden of URLs and settings, and what is not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingestion.errors import UnreadableFileError
from ingestion.secrets import is_telling, redact, redact_all, redact_words

SECRET = "hush-7f3a"  # noqa: S105 - of nobody
#: What texts with secrets are made of.
PIECES = st.sampled_from(
    ["token", "password", "--secret", "Authorization", "Bearer ", "=", ": ", ":", "'", '"', "\\", "{", "}", "[", "]",
     ",", ", ", " ", "\n", "https://", "s3://", "me:", "@", "/", "?", "#", "8443", "a", "***", "Error", "&"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=14).map("".join)


@pytest.mark.parametrize(
    "text",
    [
        f"s3://AKIA:{SECRET}@store/bucket/a.root",
        f"s3://AKIA:ab/{SECRET}+c=@store/bucket/a.root",
        f"s3://AKIA:80/{SECRET}@store/bucket/a.root",
        f"s3a://AKIA:80?{SECRET}@store/bucket/a.root",
        f"https://user:pa?{SECRET}@host/f",
        f"https://user:pa#{SECRET}@host:8443/f",
        f"https://user:pa's{SECRET}@host/f",
        f"https://:{SECRET}@host/f",
        f"https://{SECRET}@host/f",
        f"ftp://me:pa@ss/{SECRET}@host/a.root",
        f"https://me:{SECRET}/x@host/f,https://me:y/{SECRET}@host/g",
        f"root://me:{SECRET}@eos.cern.ch//eos/a.root cannot be read",
        f"https://store/a.root?X-Amz-Signature={SECRET}&Expires=1",
        f"https://store/a.root?sig=a,b;{SECRET}",
        f"https://store/a.root?token={SECRET}, https://store/b.root?token={SECRET}",
        f"https://store/a.root#access_token={SECRET}",
        f"ftp://me:pa@{SECRET}@host/a.root",
        f"--set spark.conf.spark.hadoop.fs.s3a.secret.key={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"spark.my.password = {SECRET}",
        f"password=a;{SECRET}",
        f"password=a,{SECRET}",
        f"{{'token': '{SECRET}'}}",
        f"{{'password': 'a, b {SECRET}'}}",
        f"{{'password': 'it\\'s {SECRET}'}}",
        f"password: 'it''s {SECRET}'",
        f'{{"password":"{SECRET}","cores":4}}',
        f'{{"text": "{{\\"password\\": \\"a {SECRET}\\"}}"}}',
        f"{{'s3a': {{'secret': {{'key': '{SECRET}'}}}}}}",
        f"{{'passwords': ['a', {{'b': '{SECRET}'}}]}}",
        f"{{'passwords': ['a', {{'b': '{SECRET}'",
        f"password='a {SECRET}",
        f"spark.conf={{fs.secret.key: {SECRET}}}",
        f"['-x', 'MY_TOKEN=a {SECRET}', '-v']",
        f"mpirun --password {SECRET} -v",
        f"['--password', '{SECRET}']",
        f'["--password", "a {SECRET}"]',
        f"fs.azure.account.key.mine.dfs.core.windows.net={SECRET}",
        f"fs.azure.sas.box.mine.blob.core.windows.net=?sv=1&sig={SECRET}",
        f"spark.hadoop.fs.s3a.server-side-encryption.key={SECRET}",
        f"api_key={SECRET}",
        f"apiKey: {SECRET}",
        f"X-Api-Key: {SECRET}",
        f"passphrase: {SECRET}",
        f"DB_PASS={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}, and more",
        f"curl -H 'Authorization: Bearer {SECRET}'",
    ],
)
def test_secrets_are_gone(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/a=b/qcd_*.root",
        "s3://store/bucket/qcd_*.root",
        "https://store:8443/a/b.root is truncated: its header says 100 bytes",
        "train.epochs=5",
        "mail me@host, or see https://page/x",
        "https://host/a@b",
        "https://host:8443/a@b/c.root",
        "http://[::1]:8080/a@b",
        "['https://host:8443','me@host']",
        "https://host:8443, me@host",
        "monkey=3, keys: 4, spark.io.encryption.keySizeBits=128",
        "the events that pass: 12, passed: 3, bypass=4",
        "ingestion/secrets.py:37: in redact",
        "found character '@' that cannot start any token\n  in line 3",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "if token == other",
        "kernel_pass.py and author=me, sasha=you",
    ],
)
def test_the_rest_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AKIA:ab/cd@bucket/f is truncated", "s3://***@bucket/f is truncated"),
        ("https://user:pa?ss@host/f, and more", "https://***@host/f, and more"),
        ("(https://store/a.root?token=a,b).", "(https://store/a.root?***)."),
        ("password=a;b, and more", "password=***, and more"),
        ("{'password': 'a, b', 'cores': 4}", "{'password': '***', 'cores': 4}"),
        ("(given: {'secret': {'key': 'x'}, 'b': 1}).", "(given: {'secret': ***, 'b': 1})."),
        ('{"password":"x","cores":4}', '{"password":"***","cores":4}'),
        ("['--password', 'x', '-v']", "['--password', '***', '-v']"),
        ("Authorization: Bearer x.y and more", "Authorization: Bearer *** and more"),
    ],
)
def test_what_is_around_a_secret_stays_readable(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--set", 'spark.conf={"spark.x.password": "a,b c"}'], ["--set", "spark.conf=***"]),
        (["--set", "spark.conf={spark.x.password: a,b c}"], ["--set", "spark.conf=***"]),
        (["--set", "spark.x.password=a;b, c"], ["--set", "spark.x.password=***"]),
        (["--set=spark.x.password=a;b, c"], ["--set=spark.x.password=***"]),
        (["--set", "train.launcher_args=[-x,MY_TOKEN=a b]"], ["--set", "train.launcher_args=***"]),
        (["--set", "train.launcher_args=[--password, a]"], ["--set", "train.launcher_args=***"]),
        (["--set", "a.headers=Authorization: Digest a, b"], ["--set", "a.headers=Authorization: ***"]),
        (["--password", "a b", "--epochs", "5"], ["--password", "***", "--epochs", "5"]),
        (["--password", "-a", "b"], ["--password", "***", "b"]),
        (["--token", "--epochs", "5"], ["--token", "--epochs", "5"]),
        (["-H", "X-Api-Key: a b"], ["-H", "X-Api-Key: ***"]),
        (["{my.password: a b}"], ["***"]),
        (["https://me:a/b@store/a.root?x=1"], ["https://***@store/a.root?***"]),
        (["samples=[{files: [https://store/a?token=x]}]"], ["samples=[{files: [https://store/a?***]}]"]),
        (["report.title=Tokens of jets", "token="], ["report.title=Tokens of jets", "token="]),
        (["run", "--set", "train.epochs=5", "a=b=c", ""], ["run", "--set", "train.epochs=5", "a=b=c", ""]),
    ],
)
def test_words_of_a_command(words: list[str], shown: list[str]) -> None:
    assert redact_words(words) == shown
    assert redact_all({"command": words}) == {"command": shown}


@given(st.text(min_size=1))
def test_a_value_ends_where_its_word_does(secret: str) -> None:
    assert redact_words([f"my.password={secret}", f"--set=my.password={secret}"]) == [
        "my.password=***", "--set=my.password=***"
    ]  # fmt: skip


@given(st.text(st.sampled_from("ab0/+=?#@&;,"), max_size=40))
def test_passwords_of_urls_may_hold_anything_but_blanks(password: str) -> None:
    assert redact(f"s3://AKIA:{password}{SECRET}@bucket/f.root") == "s3://***@bucket/f.root"


@given(TEXTS)
@example('https://a:token="b c"@d')
def test_what_is_redacted_stays_as_it_is(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.lists(TEXTS, max_size=4))
def test_words_that_are_redacted_stay_as_they_are(words: list[str]) -> None:
    assert redact_words(redact_words(words)) == redact_words(words)


@pytest.mark.parametrize("name", ["hush.token", "X-Api-Key", "sas", "a.sas.b", "PGPASSWORD", "_auth", "accessKeyId"])
def test_names_that_tell(name: str) -> None:
    assert is_telling(name)


@pytest.mark.parametrize(
    "name", ["keys", "monkey", "passed", "author", "sasha", "key", "signal", "seconds", "min_sigma"]
)
def test_names_that_do_not(name: str) -> None:
    assert not is_telling(name)


def test_settings_with_telling_names_are_hidden_wherever_they_are() -> None:
    content = {
        "spark": {"conf": {"fs.s3a.secret.key": SECRET, "spark.executor.cores": "4"}},
        "list": [{"token": SECRET}],
    }
    assert redact_all(content) == {
        "spark": {"conf": {"fs.s3a.secret.key": "***", "spark.executor.cores": "4"}}, "list": [{"token": "***"}]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"passwords": ["a", ("b", 1)]}, {"passwords": ["***", ["***", "***"]]}),
        ({"secret": {"key": "x", "number": 1.5}}, {"secret": {"key": "***", "number": "***"}}),
        ({"my.password": 12345}, {"my.password": "***"}),
        ({"token": None, "a.secret": True, "password": ""}, {"token": None, "a.secret": True, "password": ""}),
        ({"/data/token/a.root": {"name": "a", "size": 1}}, {"/data/token/a.root": {"name": "a", "size": 1}}),
        ({"skipped token.root": {"name": "a", "size": 1}}, {"skipped token.root": {"name": "a", "size": 1}}),
        ({"keys": [1], "monkey": "a"}, {"keys": [1], "monkey": "a"}),
    ],
)  # fmt: skip
def test_what_stands_below_a_telling_name_is_hidden_whatever_it_is(content: Any, shown: Any) -> None:
    assert redact_all(content) == shown


def test_counts_of_a_sample_with_a_telling_name_stay_in_records() -> None:
    content = {"samples": {"token": {"events": 7, "weights": [0.5]}}, "samples.token.label": 2, "token": SECRET}
    assert redact_all(content, keep_numbers=True) == {**content, "token": "***"}


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(), st.lists))
def test_numbers_are_left_alone(content: object) -> None:
    assert redact_all(content) == content


def test_errors_hide_them_and_survive_the_way_back_from_a_task() -> None:
    error = UnreadableFileError(f"https://me:{SECRET}@store/a.root cannot be opened")
    assert SECRET not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own
