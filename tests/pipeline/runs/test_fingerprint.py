"""The reasons for a stale stage."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from hep_core.secrets import redact_all
from pipeline.runs.fingerprint import Fingerprint, Input, reasons_to_run

BASE = Fingerprint(
    {"u1": Input("a.root", "1"), "u2": Input("b.root", "2")},
    {"x.a": 1, "x.b": [1]},
    {"features": "f"},
)


def test_each_kind_of_change_is_a_reason() -> None:
    changed = Fingerprint(
        {"u2": Input("b.root", "9"), "u3": Input("c.root", "3")},
        {"x.a": 2, "x.c": 0},
        {"features": "g"},
    )

    assert reasons_to_run(BASE, changed) == [
        "input added: c.root",
        "input removed: a.root",
        "input changed: b.root",
        "config x.a changed (1 -> 2)",
        "config x.b changed ([1] -> not set)",
        "config x.c changed (not set -> 0)",
        "code of features changed",
    ]


def test_code_that_is_used_in_one_case_only_did_not_change() -> None:
    recorded = Fingerprint({}, {}, {"features": "f", "models.networks.hlf": "h"})
    current = Fingerprint({}, {}, {"features": "f", "models.networks.particles": "p"})

    assert reasons_to_run(recorded, current) == [
        "code of models.networks.hlf is not used any more",
        "code of models.networks.particles is used now",
    ]


def test_a_fingerprint_survives_json() -> None:
    complete = replace(BASE, parts={"hlf": BASE}, code={"features.kernel_pass": "f"})

    stored = json.loads(json.dumps(redact_all(asdict(complete))))

    assert stored["code"] == {"features.kernel_pass": "f"}
    assert TypeAdapter(Fingerprint).validate_python(stored) == complete


def test_parts_have_reasons_of_their_own() -> None:
    changed_hlf = replace(
        BASE, config={"x.a": 2, "x.b": [1]}, code={"features": "f", "models.networks.hlf": "n"}
    )
    old = Fingerprint({}, {}, {}, {"hlf": BASE, "particles": BASE})
    new = Fingerprint({}, {}, {}, {"hlf": changed_hlf, "inclusive": BASE})

    assert reasons_to_run(old, new) == [
        "inclusive is new",
        "particles is no longer configured",
        "hlf: config x.a changed (1 -> 2)",
        "hlf: code of models.networks.hlf is used now",
    ]
    assert old.digest != new.digest


def test_inputs_can_be_left_out_of_parts_too() -> None:
    complete = replace(BASE, parts={"hlf": BASE})

    reduced = complete.without_inputs(["u1"])

    assert list(reduced.inputs) == list(reduced.parts["hlf"].inputs) == ["u2"]
