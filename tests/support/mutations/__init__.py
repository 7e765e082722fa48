"""Planted compiler bugs: what `verify` is to find."""
