"""Coverage: the launches with a variant in a manifest or archive, and with a fast one."""
