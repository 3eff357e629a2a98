"""The errors that `make mutants` puts into the code, on a toy module."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import Copy, Mutant, all_mutants, lost, mutants_of, nearest_tests, pick, waited_for

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
        "tests/integration/test_no_use.py": "from room.toys import most\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert nearest_tests("room/toy.py", tmp_path) == (
        ["room/toy.py", "tests/room/test_toy_twice.py"],
        ["tests/room/sub/test_user.py", "tests/room/test_another.py", "tests/property/test_use.py"],
    )


@pytest.mark.slow
def test_errors_are_put_into_a_copy_and_tests_that_fail_anyway_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # options of this project, which the toy does not know
    code = tmp_path / "code"
    (code / "tests").mkdir(parents=True)
    (code / "toy.py").write_text("def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n")
    (code / "tests/test_toy.py").write_text("import toy\n\ndef test_it():\n    assert toy.double(2) == 4\n")
    (code / "tests/test_broken.py").write_text("import toy\n\ndef test_no():\n    assert False\n")
    subprocess.run(["git", "init", "--quiet", code], check=True)  # noqa: S607
    copy = Copy(code, tmp_path / "copy", seconds=60)
    source = (code / "toy.py").read_bytes()
    of_two, of_three = (next(each for each in mutants_of("toy", {"toy.py": source}) if each.old == old) for old in "23")
    assert copy.attempt(of_two) == ("caught", "tests/test_toy.py::test_it")
    assert copy.attempt(of_three) == ("survived", None)
    assert (code / "toy.py").read_bytes() == (copy.tree / "toy.py").read_bytes() == source


@pytest.mark.slow
def test_a_process_that_does_not_end_is_given_up() -> None:
    endless = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    assert not waited_for(endless, 0.5)
    assert endless.returncode


def test_only_errors_that_were_noticed_and_tried_again_can_be_lost() -> None:
    before = [
        {"key": str(place), "outcome": name} for place, name in enumerate(("caught", "hung", "caught", "survived"))
    ]
    now = [{"key": "0", "outcome": "survived"}, {"key": "1", "outcome": "caught"}, {"key": "3", "outcome": "survived"}]
    assert [each["key"] for each in lost(before, now)] == ["0"]
