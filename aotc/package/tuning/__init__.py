"""Tuning: measured or estimated times of configs, and the selection of a config by the arguments of a launch."""
