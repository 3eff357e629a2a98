"""`rollback`: the model that was in use before comes back."""

from __future__ import annotations

from models.networks.registry import NETWORKS
from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.provenance import now


def rollback(run_folder: RunFolder, network: str) -> tuple[str, str]:
    """Put the model before the one in use back; returns the names of both versions, the old one last.

    The one that was in use is not promoted again, unless forced.

    Raises:
        ConfigError: There is no network of that name.
        MissingInputError: There is no earlier one.
    """
    if network not in NETWORKS:
        raise ConfigError(f"rollback: there is no network '{network}'.{nearest(network, NETWORKS)}")
    with run_folder.locked():
        registry = Registry(run_folder.config.run_dir, network)
        current = registry.recovered()
        earlier = [] if current is None else [name for name in registry.promoted() if name < current.name]
        if current is None or not earlier:
            raise MissingInputError(
                f"there is no model of '{network}' in {registry.folder} before the one in use; nothing to go back to."
            )
        registry.withdraw(current, now())
        registry.point_to(earlier[-1])
        run_folder.log.event("network rolled back", network=network, withdrawn=current.name, in_use=earlier[-1])
        run_folder.write_metrics(failed=None)
        return current.name, earlier[-1]
