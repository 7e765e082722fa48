"""Linear layouts of tiles, and conversions between them."""
