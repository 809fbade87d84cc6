"""The examples run as they are."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_quickstart() -> None:
    example = runpy.run_path(str(EXAMPLES / "01_quickstart.py"))
    assert example["main"](epochs=8) > 85
