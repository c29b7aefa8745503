"""Trainers."""

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

__all__ = [
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
]
