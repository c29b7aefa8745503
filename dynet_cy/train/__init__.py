"""Trainers."""

# derived: imports, by tools/derive.py
from dynet_cy.train.interfaces import ParameterGroup
from dynet_cy.train.python_trainer import PythonTrainer
from dynet_cy.train.trainer import (
    AdadeltaTrainer,
    AdagradTrainer,
    AdamTrainer,
    AdamWTrainer,
    AmsgradTrainer,
    CyclicalSGDTrainer,
    LionTrainer,
    MomentumSGDTrainer,
    NesterovSGDTrainer,
    RMSPropTrainer,
    SignumTrainer,
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
    "LionTrainer",
    "MomentumSGDTrainer",
    "NesterovSGDTrainer",
    "ParameterGroup",
    "PythonTrainer",
    "RMSPropTrainer",
    "SignumTrainer",
    "SimpleSGDTrainer",
    "Trainer",
    # end of names
]
