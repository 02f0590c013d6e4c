"""`python -m benchmark.cli`."""

from benchmark.cli import main

main()
