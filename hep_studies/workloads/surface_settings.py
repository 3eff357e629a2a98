"""Settings of the workload `surface`. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field
from typing_extensions import override

from training.workloads.base_settings import BaseSettings, workload

if TYPE_CHECKING:
    from training.workloads.workload import Workload


@workload
class SurfaceSettings(BaseSettings):
    """Beale's function of two parameters, with noise on its gradient, as Hermans (2017) has it."""

    name: Literal["surface"] = "surface"
    noise: float = Field(default=10.0, ge=0)
    """Variance of each component of the gradient of one event."""

    @property
    @override
    def network_name(self) -> str:
        return "beale"

    @override
    def open(self) -> Workload:
        from hep_studies.workloads.surface import Surface

        return Surface(self.noise)
