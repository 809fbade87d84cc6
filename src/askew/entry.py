"""Where the askew command starts: `predict` without torch, everything else with all of it."""

from __future__ import annotations

import sys


def main() -> None:
    """askew predict ... runs here, with numpy; any other command in askew.cli. Ctrl-C ends in one line, always."""
    try:
        if sys.argv[1:2] == ["predict"]:
            predict(sys.argv[2:])
            return
        from askew.cli import main as everything

        everything()
    except KeyboardInterrupt:
        sys.stderr.write("askew: stopped\n")
        sys.exit(130)


def predict(arguments: list[str]) -> None:
    """Parse, run, show; a problem with the input ends with one line on stderr and status 2."""
    import tyro

    from askew.ship.predict import Predict, show
    from askew.ship.predict import predict as run

    config = tyro.cli(Predict, prog="askew predict", args=arguments)
    try:
        sys.stdout.write(show(run(config)) + "\n")
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.stderr.write(f"askew: {error}\n")
        sys.exit(2)
