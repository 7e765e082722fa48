"""The manifest: its TOML, its tables and their variants."""
