"""``python -m rsprune.cli`` is ``rsprune``."""

from rsprune.cli import main

main()
