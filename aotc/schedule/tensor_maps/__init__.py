"""Which loads and stores become tensor or bulk copies, and what the launcher encodes for them."""
