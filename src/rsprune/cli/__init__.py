"""The command line: ``rsprune profile MODEL``."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line and exit."""
    try:
        from rsprune.cli.app import run
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in _NEEDED:
            raise
        sys.exit('The command line needs two more packages: pip install "rsprune[cli]"')
    sys.exit(run(sys.argv[1:]))
