"""The code of plugins on which a model depends: what a model states of it, and its check.

Parts of plugins are named `feature NAME` and `network NAME`. Each has the digest of the meaning of
its whole plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from features.dataset import FeatureDataset
from features.functions import plugin_features
from hep_core import plugins
from hep_core.plugin_functions import code_module
from models.errors import PluginCodeError
from models.networks.network_settings import NETWORKS
from pipeline.runs.code_meaning import plugin_digest

# It loads numba, which a plan does without.
if TYPE_CHECKING:
    from pipeline.runs.trained_models import FoundModel

#: What parts begin with.
_FEATURE: Final = "feature "
_NETWORK: Final = "network "


def feature_code() -> dict[str, str]:
    """Return the digest of the plugin of each feature that a plugin computes, by part.

    It is empty for a feature of a notebook, which is not that of a plugin of the same name.
    """
    return {part: plugin_digest(module) for part, module in _modules(_FEATURE).items()}


def network_code(network: str) -> dict[str, str]:
    """Return the digest of the plugin of a network, by part; none if it has no file or is ours."""
    part = f"{_NETWORK}{network}"
    digest = plugin_digest(_modules(_NETWORK)[part])
    return {part: digest} if digest else {}


def check_plugin_code(models: Sequence[FoundModel], dataset: FeatureDataset | None = None) -> None:
    """Refuse models whose plugins have another code now than in their training.

    Args:
        models: The models.
        dataset: The features of the events; None for those that are computed now.

    Raises:
        PluginCodeError: The code of a plugin has another meaning.
    """
    for model in models:
        check_same_code(f"the training of {model.candidate.name}", model.plugin_code, dataset)


def check_same_code(
    subject: str, code: Mapping[str, str], dataset: FeatureDataset | None = None
) -> None:
    """Refuse a model or features whose plugins have another code now.

    Args:
        subject: What used the code, for the message, such as `the training of hlf`.
        code: Digests of the plugins by which it was made, by part.
        dataset: The features of the events; None for those that are computed now.

    Raises:
        PluginCodeError: The code of a plugin has another meaning.
    """
    code_of_features = feature_code() if dataset is None else dataset.plugin_code
    # Features of an earlier release do not say by which code they were computed.
    is_known = dataset is None or bool(code_of_features)
    changed_parts = []
    for part, digest in code.items():
        # The network is built now, whatever the features are.
        if part.startswith(_NETWORK):
            present_code = network_code(part.removeprefix(_NETWORK))
        elif is_known:
            present_code = code_of_features
        else:
            continue
        if present_code.get(part) != digest:
            changed_parts.append(part)
    if changed_parts:
        raise PluginCodeError(subject, _files(changed_parts), changed_parts)


def _files(parts: Sequence[str]) -> list[str]:
    """Return the files of the plugins that have some parts now; code of a notebook has none."""
    modules = _modules(_FEATURE) | _modules(_NETWORK)
    files = {plugins.plugin_file(modules[part]) for part in parts if part in modules}
    return sorted(str(file) for file in files if file is not None)


def without_network(code: Mapping[str, str]) -> dict[str, str]:
    """Return digests by part without that of the network, which an exported file holds itself."""
    return {part: digest for part, digest in code.items() if not part.startswith(_NETWORK)}


def _modules(kind: str) -> dict[str, str]:
    """Return the modules of all features of plugins, or those of all networks, by part."""
    if kind == _FEATURE:
        features = plugin_features().items()
        return {f"{kind}{name}": code_module(feature.function) for name, feature in features}
    return {f"{kind}{name}": settings.__module__ for name, settings in NETWORKS.items()}
