"""`python -m benchmarks.paper`, from the folder that holds `benchmarks`."""

from benchmarks.paper.command import main

main()
