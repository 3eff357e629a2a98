"""Settings of the sources for each network on images, as keys of `TrainSettings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOMENTUM: Final = {"optimizer": "sgd", "momentum": 0.9}

#: By network. A method adds its own keys to these, and `SLOWMO` those of its outer steps.
PUBLISHED: Final[Mapping[str, Mapping[str, Any]]] = {
    # Migliorini 2020, section 4.2.2; it does not give the rate and the momentum.
    "lenet5": {"workers": 16, "batch_size": 128, "learning_rate": 0.01, **_MOMENTUM},
    # Section 4.2.2: "decaying by a factor of 10 at the 81st and 121st epochs", which begin after 80 and 120.
    "resnet20": {
        "workers": 16,
        "batch_size": 32,
        "epochs": 150,
        "learning_rate": 0.1,
        "weight_decay": 1e-4,
        "schedule": {"decay": "step", "milestones": [80, 120], "factor": 0.1},
        **_MOMENTUM,
    },
    # Hermans 2017, section 3.2.
    "perceptron": {"batch_size": 128, "epochs": 40},
    # Zhang et al. 2015, section 5.
    "seven-layers": {"batch_size": 32},
}

#: Of the thesis, by network.
SLOWMO: Final[Mapping[str, Mapping[str, Any]]] = {
    "lenet5": {"tau": 12, "beta": 0.7},
    "resnet20": {"tau": 12, "beta": 0.6},
}
