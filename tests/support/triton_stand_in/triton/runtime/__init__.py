"""Classes that launch."""
