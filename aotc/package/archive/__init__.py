"""The archive: its records, its encoding, and parts and unions of archives."""
