"""Coverage: which launches a manifest or an archive has a variant for, and which a fast one."""
