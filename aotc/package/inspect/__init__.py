"""Views for people: of archives, compiles, sources and this machine."""
