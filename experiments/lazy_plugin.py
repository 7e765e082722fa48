"""All archives of a test run are loaded lazily: pytest -p experiments.lazy_plugin."""
from aotc.runtime import library as _library

_load = _library.Library._load


def _lazily(self, device, name, lazy=True, **others):
    return _load(self, device, name, True, **others)


_library.Library._load = _lazily
