"""Finds settings in the file of a study that do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hep_core.unknown_names import there_is_no
from hep_studies.cells import SITUATION
from hep_studies.nested_values import has_key, repeated_values, replaced_values
from hep_studies.study import StudySettings
from pipeline.configuration.keys import Keys
from pipeline.configuration.mistakes import dotted_path


class IdleSetting(NamedTuple):
    """A setting of a study that does nothing in one of its forms."""

    keys: Keys
    """The keys that lead to it; a slow rank has a number."""
    reason: str
    """Why it does nothing, and what to do."""

    @property
    def sentence(self) -> str:
        """What is wrong, with the path of the setting."""
        return f"{dotted_path(self.keys)} has no effect: {self.reason}."


def mistakes_in_forms(forms: Any, form_names: Sequence[str]) -> list[str]:
    """Return sentences about `forms` of a study's file that are no forms.

    Args:
        forms: The value of the key.
        form_names: The names that forms may have.
    """
    if not isinstance(forms, Mapping):
        return [f"forms: it must hold the forms {' and '.join(form_names)}."]
    mistakes = []
    for name, changes in forms.items():
        if name not in form_names:
            mistakes.append(f"forms: {there_is_no('form', str(name), form_names)}")
        elif changes is not None and not isinstance(changes, Mapping):
            mistakes.append(f"forms.{name}: it must hold keys and values.")
    return mistakes


def forms_without_effect(study_keys: Mapping[str, Any], form_names: Sequence[str]) -> list[str]:
    """Return sentences about values that a form repeats, or that all forms replace.

    Args:
        study_keys: The keys and values of the file; its `forms` have no mistakes.
        form_names: The names of the forms.
    """
    common = {key: value for key, value in study_keys.items() if key != "forms"}
    forms = study_keys.get("forms") or {}
    changes_of_forms = [forms.get(name) or {} for name in form_names]
    settings = []
    repeated_keys = set()
    for name, changes in zip(form_names, changes_of_forms, strict=True):
        for keys, value in repeated_values(common, changes):
            repeated_keys.add(keys)
            reason = f"{value} is the value of the file already; leave it out there"
            settings.append(IdleSetting(("forms", name, *keys), reason))
    for keys in replaced_values(common, changes_of_forms):
        # Without the repetition in a form, the value of the file has an effect there.
        if keys not in repeated_keys:
            reason = "both forms replace this value of the file; leave it out"
            settings.append(IdleSetting(keys, reason))
    return [setting.sentence for setting in settings]


def settings_without_effect(study: StudySettings, forms: Sequence[StudySettings]) -> list[str]:
    """Return sentences about settings of a study that do nothing.

    A value that the forms of a file share has an effect if any form uses it.

    Args:
        study: The form that is read, with the changes of the config.
        forms: The forms of the file that are complete without changes.
    """
    used_keys: set[Keys] = set()
    settings = list(_idle_settings(study))
    for form in forms:
        form_values = form.model_dump(exclude_unset=True)
        idle_keys = {setting.keys for setting in _idle_settings(form)}
        for setting in settings:
            if setting.keys not in idle_keys and _has_value(form_values, setting.keys):
                used_keys.add(setting.keys)
    return [setting.sentence for setting in settings if setting.keys not in used_keys]


def _has_value(values: Any, keys: Keys) -> bool:
    """Tell whether nested mappings have the value that some keys lead to."""
    for key in keys:
        if not isinstance(values, Mapping) or key not in values:
            return False
        values = values[key]
    return True


def _idle_settings(study: StudySettings) -> Iterator[IdleSetting]:
    """Yield the settings of one form that do nothing in it."""
    for name, named_values in study.situations.items():
        key = f"{SITUATION}{name}"
        run_values = study.all_values_of(key) if key in study.vary else []
        reason = f"no form has it in `vary` at {key}; add it there, or leave it out"
        for value in named_values:
            if value not in run_values:
                yield IdleSetting(("situations", name, value), reason)
    if study.extend and not study.best_of:
        yield IdleSetting(("extend",), "it needs best_of; set that, or leave extend out")
    for key in study.vary:
        if not any(study.values_of(method, key) for method in study.methods):
            reason = "every method sets or fixes the key; leave it out"
            yield IdleSetting(("vary", key), reason)
    for name, method in study.methods.items():
        for key in method.vary:
            if key in method.fixed or has_key({"train": method.train}, key):
                reason = "the method sets or fixes the key; leave one of them out"
                yield IdleSetting(("methods", name, "vary", key), reason)
    for key in study.train:
        if all(study.replaces(method, key) for method in study.methods):
            yield IdleSetting(("train", key), "every method sets or varies it; leave it out")
