"""Files for hosts: the C header, the static library, the Python module and the wheel."""
