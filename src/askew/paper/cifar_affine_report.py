"""The table of CIFAR-10 at one bit with affine BatchNorm and its figures, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper import low_bit_report
from askew.paper.cifar_affine import TABLE
from askew.paper.present import Presentation
from askew.train.record import Record


def present(records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    return low_bit_report.present(TABLE, records)
