"""The experiments of the FROWN paper, made again: `make paper`, docs/bench.md."""
