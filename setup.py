"""Leave the modules of aotc-runtime out of this distribution: they share the package `aotc`."""

from __future__ import annotations

from setuptools import setup
from setuptools.command.build_py import build_py

_OF_THE_RUNTIME = (("aotc", "__init__"), ("aotc", "torch"))


class BuildPython(build_py):
    """Build all modules but those that aotc-runtime installs."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] not in _OF_THE_RUNTIME]


setup(cmdclass={"build_py": BuildPython})
