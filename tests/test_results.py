"""What lies under results/ was written by runs of this code, on data that exist."""

from pathlib import Path

import pytest

from askew.train.record import load_all

RESULTS = Path(__file__).parents[1] / "results"
FOLDERS = sorted(path for path in RESULTS.iterdir() if any(path.glob("*.json")))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_records_say_where_they_come_from(folder: Path) -> None:
    """Each names a commit, the versions and the machine of its run; a set made up for a test is no data set."""
    records = load_all(folder)
    assert records
    for record in records:
        said = record.environment
        assert int(said["commit"].rstrip("+"), 16) and "torch" in said["versions"] and said["system"], record.name
        assert record.config.get("train_set") != "made-up", record.name
