"""The one-bit table of TinyImageNet and its figures, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper import images_report
from askew.paper.present import Presentation
from askew.paper.tiny_w1 import EXPERIMENT
from askew.train.record import Record


def present(records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    return images_report.present(EXPERIMENT, records)
