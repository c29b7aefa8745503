"""Services that record experiments: Weights & Biases, MLflow."""

from __future__ import annotations

import os
import time
from typing import Any

from dynet_cy.loggers.logger import Logger, needed


class WandB(Logger):
    """A run of Weights & Biases. It needs ``pip install 'dynet_cy[wandb]'``.

    Args:
        project: the project; None: that of the environment
        settings: further arguments of ``wandb.init``, such as ``name="first"``, ``config={"hidden": 128}`` or
            ``mode="offline"``

    Attributes:
        run: the run, for all else that wandb can do; None on ranks other than 0

    Raises:
        ImportError: wandb is not installed; the message says how to install it

    Example:
        >>> def training(log):                           # with loggers.WandB("tagger", config=sizes) as log
        ...     log.log({"loss": 0.5}, 1)
    """

    def __init__(self, project: str | None = None, **settings: Any) -> None:
        self._wandb = needed("wandb", "WandB", "wandb")
        self.run: Any = self._wandb.init(project=project, **settings) if self.writes else None

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        self.run.log(numbers, step=int(step))

    def record_text(self, name: str, text: str, step: float) -> None:
        table = self._wandb.Table(columns=["step", name], data=[[step, text]])
        self.run.log({name: table}, step=int(step))

    def record_artefact(self, path: str) -> None:
        artefact = self._wandb.Artifact(os.path.basename(path), type="file")
        artefact.add_file(path)
        self.run.log_artifact(artefact)

    def end(self, status: str) -> None:
        self.run.finish(exit_code=int(status == "FAILED"))


class MLflow(Logger):
    """A run of MLflow. It needs ``pip install 'dynet_cy[mlflow]'``.

    The run of ``mlflow.start_run`` is another one: this class does not touch it.

    Args:
        experiment: the experiment, which is made if there is none of this name
        name: the name of the run; None: MLflow makes one up
        uri: the server or the folder, see ``mlflow.set_tracking_uri``; None: that of the environment
        settings: numbers and words that are recorded as parameters of the run, such as ``hidden=128``

    Attributes:
        run_id: the number of the run, for all else that MLflow can do; None on ranks other than 0

    Raises:
        ImportError: mlflow is not installed; the message says how to install it

    Example:
        >>> def training(log):                           # with loggers.MLflow("tagger", hidden=128) as log
        ...     log.log({"loss": 0.5}, 1)
    """

    def __init__(self, experiment: str = "Default", name: str | None = None, uri: str | None = None, **settings: Any):
        mlflow = needed("mlflow", "MLflow", "mlflow")
        self.run_id: str | None = None
        if not self.writes:
            return
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self.run_id = self._client.create_run(number, run_name=name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self.run_id, key, value)

    def record_numbers(self, numbers: dict[str, float], step: float) -> None:
        now = int(time.time() * 1000)
        for name, value in numbers.items():
            self._client.log_metric(self.run_id, name, value, timestamp=now, step=int(step))

    def record_text(self, name: str, text: str, step: float) -> None:
        self._client.log_text(self.run_id, text, f"{name}_{step:g}.txt")

    def record_artefact(self, path: str) -> None:
        self._client.log_artifact(self.run_id, path)

    def end(self, status: str) -> None:
        self._client.set_terminated(self.run_id, status)
