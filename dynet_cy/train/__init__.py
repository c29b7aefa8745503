"""Trainers."""

# derived: imports, by tools/derive.py
from dynet_cy.train.trainers import (
    AdadeltaTrainer,
    AdagradTrainer,
    AdamTrainer,
    AdamWTrainer,
    AmsgradTrainer,
    CyclicalSGDTrainer,
    MomentumSGDTrainer,
    ParameterGroup,
    RMSPropTrainer,
    SimpleSGDTrainer,
    Trainer,
)

# end of imports

__all__ = [
    # derived: names, by tools/derive.py
    "AdadeltaTrainer",
    "AdagradTrainer",
    "AdamTrainer",
    "AdamWTrainer",
    "AmsgradTrainer",
    "CyclicalSGDTrainer",
    "MomentumSGDTrainer",
    "ParameterGroup",
    "RMSPropTrainer",
    "SimpleSGDTrainer",
    "Trainer",
    # end of names
]
