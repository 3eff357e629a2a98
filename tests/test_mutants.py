"""The errors that `make mutants` puts into the code, on a toy module."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutating import Mutant, all_mutants, mutants_of, nearest_tests, pick

from tests.mutants import Copy, Ended, _kill_group, _waited_for

TOY = b'''"""A toy: 1 < 2."""

LEFT_ALONE = 1 + 1


def least(values: list[int], low: int = 3) -> int:
    """The least, 7 at most."""
    total = min(values)  # \xc3\xa9 is two bytes
    total += 2
    if total < low and values:
        raise ValueError("too low", 5 + 5)
    return total * 4 if low == 2 else 1


class Box:
    def put(self, item: "Literal[3]") -> None:
        number: "Literal[4]" = f"{item + 1:>5}"
        self.items.append(number)
'''


def found(source: bytes = TOY) -> list[Mutant]:
    return mutants_of("toy", {"toy.py": source})


def test_errors_of_every_kind_are_found_and_nothing_but_code_is_changed() -> None:
    assert {(each.function, each.kind, each.old, each.new) for each in found()} == {
        ("least", "extreme", "min(values)", "(max(values))"),
        ("least", "deletion", "total += 2", "pass"),
        ("least", "arithmetic", "total += 2", "total -= 2"),
        ("least", "constant", "2", "(3)"),
        ("least", "condition", "total < low and values", "(not (total < low and values))"),
        ("least", "and/or", "total < low and values", "(total < low or values)"),
        ("least", "comparison", "total < low", "(total <= low)"),
        ("least", "return", "return total * 4 if low == 2 else 1", "return 0"),
        ("least", "condition", "low == 2", "(not (low == 2))"),
        ("least", "comparison", "low == 2", "(low != 2)"),
        ("least", "arithmetic", "total * 4", "(total / 4)"),
        ("least", "constant", "4", "(5)"),
        ("least", "constant", "1", "(2)"),
        ("Box.put", "deletion", "self.items.append(number)", "pass"),
    }


@pytest.mark.parametrize("mutant", found(), ids=lambda each: f"{each.kind}-{each.key}")
def test_one_place_of_the_file_is_changed(mutant: Mutant) -> None:
    changed = mutant.applied(TOY)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(TOY))
    assert changed[: mutant.start] == TOY[: mutant.start]
    assert changed.endswith(TOY[mutant.end :])


def test_equal_expressions_of_a_function_are_distinguished() -> None:
    twos = [each for each in found() if each.kind == "constant" and each.old == "2"]
    assert [each.occurrence for each in twos] == [1, 2]
    assert len({each.key for each in found()}) == len(found())


def test_an_error_is_found_again_in_a_changed_file_of_another_name() -> None:
    moved = mutants_of("toy", {"b.py": b"def new():\n    return 1 - 1\n\n\n" + TOY})
    assert {each.key for each in found()} < {each.key for each in moved}


def test_the_same_seed_picks_the_same_evenly_and_more_begin_with_the_fewer() -> None:
    mutants = {"toy": found(), "other": mutants_of("other", {"other.py": TOY})}
    picked = pick(mutants, 6, seed=1)
    assert [each.part for each in picked] == ["toy", "other"] * 3
    assert picked == pick({name: each[::-1] for name, each in mutants.items()}, 6, seed=1) == pick(mutants, 9, 1)[:6]
    assert picked != pick(mutants, 6, seed=2)
    assert len(pick(mutants, 1000, seed=1)) == 2 * len(found())


def test_parts_are_there_in_this_code(request: pytest.FixtureRequest) -> None:
    assert all(all_mutants(request.config.rootpath).values())


def test_tests_nearest_to_a_file_come_first(tmp_path: Path) -> None:
    for name, text in {
        "room/toy.py": "",
        "tests/room/test_another.py": "",
        "tests/room/test_toy_twice.py": "",
        "tests/training/test_toy.py": "",
        "tests/property/test_use.py": "import room.toy\n",
        "tests/room/sub/test_user.py": "from room import a, toy\n",
        "tests/room/test_mutations.py": "import room.toy\n",
        "tests/integration/test_use.py": "    from room.toy import least\n",
        "tests/integration/test_no_use.py": "from room.toys import most\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert nearest_tests("room/toy.py", tmp_path) == (
        ["room/toy.py", "tests/room/test_toy_twice.py"],
        [
            "tests/room/sub/test_user.py",
            "tests/room/test_another.py",
            "tests/property/test_use.py",
            "tests/integration/test_use.py",
        ],
    )


@pytest.fixture
def toy_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # options of this project, which the toy does not know
    (tmp_path / "code/tests").mkdir(parents=True)
    (tmp_path / "code/toy.py").write_text("def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n")
    (tmp_path / "code/tests/test_toy.py").write_text("import toy\n\ndef test_it():\n    assert toy.double(2) == 4\n")
    (tmp_path / "code/tests/test_broken.py").write_text("import toy\n\ndef test_no():\n    assert False\n")
    subprocess.run(["git", "init", "--quiet", tmp_path / "code"], check=True)  # noqa: S607
    return Copy(tmp_path / "code", tmp_path / "copy", seconds=60)


@pytest.mark.slow
def test_failed_tests_of_a_copy_are_named(toy_copy: Copy) -> None:
    assert toy_copy.test(["tests"], None) == Ended(1, ["tests/test_broken.py::test_no"])


def test_tests_that_cannot_be_run_have_noticed_nothing(toy_copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Copy, "test", lambda *_: Ended(1, []))
    [mutant, *_] = mutants_of("toy", {"toy.py": (toy_copy.tree / "toy.py").read_bytes()})
    with pytest.raises(SystemExit, match="cannot be run without any error"):
        toy_copy.attempt(mutant)


@pytest.mark.slow
def test_a_process_that_does_not_end_is_given_up() -> None:
    endless = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert not _waited_for(endless, 0.5)
    finally:
        _kill_group(endless)


def test_errors_are_put_into_a_copy_and_tests_that_fail_anyway_do_not_count(
    toy_copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Copy, tests: Sequence[str], limit: float | None, *options: str) -> Ended:
        assert (tmp_path / "code/toy.py").read_bytes() == code
        double_is_right = b"return 2 * x" in (toy_copy.tree / "toy.py").read_bytes()
        fails = {"tests/test_toy.py": not double_is_right, "tests/test_broken.py": "test_no" not in str(self._broken)}
        failed = [f"{test.split('::')[0]}::test_no" for test in tests if fails.get(test.split("::")[0])]
        return Ended(1 if failed else 0, failed)

    monkeypatch.setattr(Copy, "test", run)
    code = (tmp_path / "code/toy.py").read_bytes()
    of_two, of_three = (next(each for each in mutants_of("toy", {"toy.py": code}) if each.old == old) for old in "23")
    assert toy_copy.attempt(of_two) == ("caught", "tests/test_toy.py::test_no")
    assert toy_copy.attempt(of_three) == ("survived", None)
    assert (toy_copy.tree / "toy.py").read_bytes() == code
