"""Replace loads and stores by tensor or bulk copies, with tensor maps from the launcher."""
