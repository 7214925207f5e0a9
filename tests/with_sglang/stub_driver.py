"""A stand-in for NVIDIA's driver library, so that SGLang's kernels can be imported where there is no driver.

No kernel can run: every function of it returns an error. It is built with the C compiler, in a temporary
folder, and loaded before SGLang; a library whose soname is loaded is not looked for again.
"""

import ctypes
import ctypes.util
import subprocess
from pathlib import Path

FUNCTIONS = ("cuPointerGetAttribute",)  # what sglang-kernel 0.4.5 links against
CUDA_ERROR_NO_DEVICE = 100


def load(folder: Path) -> None:
    """Load the driver library, the stand-in where there is none."""
    if ctypes.util.find_library("cuda"):
        return
    library = folder / "libcuda.so.1"
    if not library.exists():
        source = folder / "stub.c"
        source.write_text("".join(f"int {f}(void) {{ return {CUDA_ERROR_NO_DEVICE}; }}\n" for f in FUNCTIONS))
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
