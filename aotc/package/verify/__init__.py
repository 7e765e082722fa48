"""Verification of the variants of a manifest or an archive."""
