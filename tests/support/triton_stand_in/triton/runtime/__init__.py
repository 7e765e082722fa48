"""The launching classes."""
