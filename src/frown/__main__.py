"""`python -m frown` is the command `frown`."""

from frown.cli import main

main()
