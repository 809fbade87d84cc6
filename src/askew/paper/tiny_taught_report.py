"""The table of TinyImageNet at one bit with a teacher and its figures, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper import low_bit_report
from askew.paper.present import Presentation
from askew.paper.tiny_taught import TABLE
from askew.train.record import Record


def present(records: Sequence[Record]) -> Presentation:
    """Tables, figures and verdicts of whatever has been run so far."""
    return low_bit_report.present(TABLE, records)
