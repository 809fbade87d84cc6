"""The inference kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on arrays that end where they must."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from askew.native import build

SCRIPT = """
import ctypes, sys
import numpy as np
from askew.ship import kernels
kernels.load = lambda name: ctypes.CDLL(sys.argv[1])
from askew.ship import layout, reference
from askew.ship.geometry import Window
from askew.ship.signs import BITS, FLOATS, SignProduct

rng = np.random.default_rng(0)
exact = lambda a: np.frombuffer(bytearray(a.tobytes()), a.dtype).reshape(a.shape)  # no slack at the end
windows = [Window(), Window((3, 3), (1, 1), (1, 1)), Window((2, 3), (2, 1), (1, 2), (2, 1))]
for isa in ("portable", "avx2", "avx512"):
    with kernels.limited(isa):
        for window in windows:
            for batch, c, outputs in [(1, 3, 5), (2, 64, 65), (3, 70, 17)]:
                image, k = (batch, 5, 6, c), window.kernel[0] * window.kernel[1]
                ends = (np.ones(outputs, np.float32), np.zeros(outputs, np.float32))
                bits = rng.integers(0, 2, image).astype(np.uint8)
                codes = rng.integers(0, 2, (outputs, k * c)).astype(np.uint8)
                tiles = layout.one_bit_tiles(layout.words(codes.reshape(outputs, k, c)).reshape(outputs, -1))
                x = exact(layout.words(bits))
                args = (exact(tiles), outputs, window, c)
                for threads in (1, 2):
                    got = SignProduct(*args)(x, threads)
                    assert np.array_equal(got, reference.one_bit(bits, codes, window))
                flip = exact(layout.words(np.ones(outputs, np.uint8)))
                SignProduct(*args, BITS, threshold=exact(np.zeros(outputs, np.int32)), flip=flip)(x)
                SignProduct(*args, FLOATS, *map(exact, ends))(x)
                kernels.pool_bits(x, window)
                f = exact(rng.normal(size=image).astype(np.float32))
                kernels.sign_pack(f)
                SignProduct(*args)(f, 2)
                q = exact(rng.integers(-128, 128, image).astype(np.int8))
                for b in (1, 2, 4):
                    codes = rng.integers(0, 1 << b, (outputs, k * c))
                    levels = np.arange(1 << b, dtype=np.float32)
                    kernels.floats(f, exact(layout.code_lanes(codes, b)), b, levels, window, *ends, threads=2)
                    got = kernels.integers(q, exact(layout.byte_lanes(codes, b)), b, window, outputs)
                    assert np.array_equal(got, reference.integer(q, codes, window))
                dense = rng.normal(size=(outputs, k * c)).astype(np.float32)
                kernels.floats(f, exact(layout.float_lanes(dense)), 32, np.zeros(0), window, *ends)
                one = exact(f.reshape(-1)[: 2 * c].reshape(2, 1, 1, c).copy())
                codes = rng.integers(0, 2, (outputs, c))
                kernels.floats(one, exact(layout.code_lanes(codes, 1)), 1, levels, Window(), *ends)
print("clean")
"""


def test_kernels_are_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs g++ and its sanitizers")
    asan = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(asan).is_absolute():
        pytest.skip("this compiler has no AddressSanitizer")
    extra = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, *extra])
    monkeypatch.setattr(build, "compiler", lambda: [compiler, "-fsanitize=address,undefined"])
    library = build.compile_library("infer", tmp_path / "infer.so")
    environment = os.environ | {"LD_PRELOAD": asan, "ASAN_OPTIONS": "detect_leaks=0", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "clean" in done.stdout, done.stderr[-3000:]
