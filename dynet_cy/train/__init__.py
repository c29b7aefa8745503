"""Trainers."""

from dynet_cy.train.trainers import (
    AdadeltaTrainer,
    AdagradTrainer,
    AdamTrainer,
    AmsgradTrainer,
    CyclicalSGDTrainer,
    MomentumSGDTrainer,
    RMSPropTrainer,
    SimpleSGDTrainer,
    Trainer,
)

__all__ = [
    "AdadeltaTrainer",
    "AdagradTrainer",
    "AdamTrainer",
    "AmsgradTrainer",
    "CyclicalSGDTrainer",
    "MomentumSGDTrainer",
    "RMSPropTrainer",
    "SimpleSGDTrainer",
    "Trainer",
]
