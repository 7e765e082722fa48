"""Tools that programs import."""
