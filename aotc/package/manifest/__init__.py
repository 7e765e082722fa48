"""The manifest: its TOML, its tables and the variants they ask for."""
