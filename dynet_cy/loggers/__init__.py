"""Loggers of training: curves, files, pages, notebooks, TensorBoard, W&B, MLflow."""

from dynet_cy.files.places import name_all
from dynet_cy.loggers.curves import Curves
from dynet_cy.loggers.lines import CSV, JSONL
from dynet_cy.loggers.live import Notebook, Page
from dynet_cy.loggers.logger import Logger
from dynet_cy.loggers.services import MLflow, WandB
from dynet_cy.loggers.tensorboard import TensorBoard

__all__ = ["CSV", "JSONL", "Curves", "Logger", "MLflow", "Notebook", "Page", "TensorBoard", "WandB"]

name_all(__name__)
