"""Types, operators and functions of `triton.language`, on values of the frontend."""
