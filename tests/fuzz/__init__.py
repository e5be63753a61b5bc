"""Readers of files under a coverage-guided fuzzer."""
