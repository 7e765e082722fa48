"""A build: from a manifest to compiled variants and the files of a package."""
