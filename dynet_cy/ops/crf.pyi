# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]

def crf_log_partition(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression: ...
def crf_loss(x: Expression, tags: _Ints, transitions: Expression, start: Expression, end: Expression) -> Expression: ...
def crf_marginals(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression: ...
def crf_viterbi(x: Expression, transitions: Expression, start: Expression, end: Expression) -> Expression: ...
