"""Spoiled ROOT files and configs: a clean error each time, no hang, no crash, no memory explosion.

With `--rounds` more of them, and others with `--first-seed` (`make torture`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from fuzzing import SAMPLES, Outcome, fuzz, try_content, with_plain_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config import Config, load_config
from pipeline.errors import ConfigError

pytestmark = pytest.mark.timeout(600)


def assert_none_failed(outcomes: list[Outcome]) -> None:
    failures = [outcome for outcome in outcomes if outcome.verdict == "failed"]
    failed = [f"seed {outcome.seed}: {outcome.message}" for outcome in failures]
    assert not failed, "\n\n".join(failed)


@pytest.mark.minutes
def test_spoiled_root_files_are_read_or_refused(tmp_path: Path, fault_seed: int) -> None:
    outcomes = fuzz(60 * fault_seed, 60, tmp_path, seconds=500)
    assert_none_failed(outcomes)
    counter = Counter(outcome.verdict for outcome in outcomes)
    # Both happen, or the mutations are too tame or too wild to tell anything.
    assert counter["refused"] >= 20
    assert counter["accepted"] >= 5
    assert sum(counter.values()) == 60


# A damaged index of baskets, by which one branch had no entries: it ended in an error of numpy.
@pytest.mark.slow
def test_a_spoiled_root_file_that_once_failed(tmp_path: Path) -> None:
    outcomes = fuzz(267714, 1, tmp_path, seconds=500)
    assert_none_failed(outcomes)
    assert "DamagedFileError" in outcomes[0].message


@pytest.mark.slow
def test_a_damaged_class_version_does_not_make_later_files_unreadable(tmp_path: Path) -> None:
    good = min(SAMPLES.glob("*.root"))
    document, tree_at = with_plain_tree(good)
    spoiled = bytearray(document)
    # TBranchElement: size, version, then its base TBranch: size, version.
    class_name = b"TBranchElement\0"
    name_end = spoiled.index(class_name, tree_at) + len(class_name)
    # 4 bytes of size and 2 of version, and 4 of the size of the base.
    version_at = name_end + 10
    assert spoiled[version_at : version_at + 2] == b"\x00\x0d"
    spoiled[version_at + 1] += 1
    # In a process of its own, which it would spoil for the good file that is read after it.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        verdict, message = pool.submit(try_content, bytes(spoiled), tmp_path).result()
    assert verdict == "refused"
    assert "DamagedFileError" in message


#: Values, as YAML, that nobody would give.
ODD_VALUES = st.one_of(
    st.sampled_from(
        ["null", "true", "''", "1e400", ".nan", "[[]]", "[null]", "0x" + "f" * 300, "1:60:61", "2026-11-20T25:61:00Z",
         "!!python/object/apply:os.system ['touch pwned']", "!!binary 'x'", "!!set {a, b}", "!!omap [a: 1]",
         "!unknown 1", "&x {a: *x}", "*nowhere", "{? [1, 2] : 3}", "{1: 2}", "{<<: [1]}", "=", '"\\0"', "/etc/passwd",
         "- " * 2000 + "1", "|\n  text", "%", "@x", "\t", "\x00", "\ufeff", "[1, 2", "'open", "local[0]", "a: b: c"]
    ),
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip
SHIPPED = [
    path.read_text(encoding="utf-8")
    for path in sorted((SAMPLES.parent / "pipeline" / "configs").glob("*.yaml"))
]


@st.composite
def spoiled_configs(draw: st.DrawFn) -> str:
    """A shipped config with one to three lines repeated, removed, cut or changed."""
    lines = draw(st.sampled_from(SHIPPED)).splitlines()
    for _ in range(draw(st.integers(1, 3))):
        line_number = draw(st.integers(0, len(lines) - 1))
        line = lines[line_number]
        cut_length = draw(st.integers(0, len(line)))
        cut_line = line[:cut_length]
        name, _, _ = line.partition(": ")
        odd_line = f"{name}: {draw(ODD_VALUES)}"
        replacements = [[line, line], [], [cut_line], [odd_line], [odd_line]]
        lines[line_number : line_number + 1] = draw(st.sampled_from(replacements))
    return "\n".join(lines)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spoiled_configs())
def test_spoiled_configs_are_loaded_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spoiled.yaml"
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigError):
        assert isinstance(load_config(str(path)), Config)
        return
    with pytest.raises(ConfigError, match=r"spoiled\.yaml") as caught:
        load_config(str(path))
    assert len(str(caught.value)) < 20_000
    assert not Path("pwned").exists()
