"""Bounds that hold over the real numbers: every rounding error is bounded.

Engines choose slopes in fast arithmetic; here their choice is replayed in float64 with the
error of each operation charged to the result.
"""
