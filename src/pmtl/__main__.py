"""`python -m pmtl` is `pmtl`."""

from pmtl.cli.app import main

main()
