"""`rollback`: put the previous model back in use."""

from __future__ import annotations

from models.networks.registry import NETWORKS
from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.run_folder import RunFolder
from pipeline.runs.model_registry import Registry
from pipeline.runs.provenance import now


def rollback(run_folder: RunFolder, network: str) -> tuple[str, str]:
    """Put the previous model back in use; returns the names of the withdrawn version and the version in use.

    `promote` promotes the withdrawn model only with --force.

    Raises:
        ConfigError: There is no network of that name.
        MissingInputError: There is no previous model.
    """
    if network not in NETWORKS:
        raise ConfigError(f"rollback: there is no network '{network}'.{nearest(network, NETWORKS)}")
    with run_folder.locked():
        registry = Registry(run_folder.config.run_dir, network)
        current = registry.recovered()
        earlier = registry.earlier_models(current) if current else []
        if current is None or not earlier:
            raise MissingInputError(
                f"there is no previous model of '{network}' in {registry.folder}; nothing to roll back to."
            )
        registry.withdraw(current, now())
        registry.point_to(earlier[-1])
        run_folder.log.event("network rolled back", network=network, withdrawn=current.name, in_use=earlier[-1])
        run_folder.write_metrics(failed=None)
        return current.name, earlier[-1]
