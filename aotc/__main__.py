"""`python -m aotc` is the command `aotc`."""

from aotc.cli import main

if __name__ == "__main__":
    main()
