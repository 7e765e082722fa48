"""Which loads and stores become tensor copies or bulk copies, and what the launcher encodes for them."""
