"""Compiles the native libraries listed in src/askew/native/build.py; all else is in pyproject.toml.

They are optional: without a C++ compiler the package installs all the same and uses its PyTorch forms.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path("src/askew/native")
NATIVE = runpy.run_path(str(FOLDER / "build.py"))


class BuildNative(build_ext):
    """Plain shared libraries for ctypes, where setuptools would put extension modules."""

    def build_extension(self, ext: Extension) -> None:
        name = ext.name.rpartition("._")[2]
        try:
            NATIVE["compile_library"](name, Path(self.get_ext_fullpath(ext.name)).absolute())
        except NATIVE["BuildError"] as error:
            raise CompileError(str(error)) from error


def extension(name: str, units: list) -> Extension:
    """Named so that the file does not depend on the Python version: it does not use Python."""
    sources = sorted({str(FOLDER / unit.source) for unit in units})
    headers = sorted(str(path) for path in FOLDER.glob("*.h"))
    return Extension(f"askew.native._{name}", sources, depends=headers, py_limited_api=True, optional=True)


setup(
    ext_modules=[extension(name, units) for name, units in NATIVE["LIBRARIES"].items()],
    cmdclass={"build_ext": BuildNative},
)
