"""`python -m vitrail` is the `vitrail` command."""

from vitrail.cli import main

main()
