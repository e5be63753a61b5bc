"""Certificates changed on purpose, and what may be accepted of them."""
