"""Pack SGLang for a GPU host that reaches no package registry.

    python scripts/gpu/make_bundle.py OUT [--app] [--part-mib 58]

The host is expected to have Python 3.12, torch 2.11.0+cu130, triton, numpy, what transformers compiles
(regex, pyyaml, tqdm ...), nvcc 13 and an sm_90 GPU. What it lacks is taken from PyPI as wheels, trimmed of
what a Hopper card with Triton attention never loads, packed with xz and cut into parts OUT/1/site.tar.xz.00,
OUT/2/site.tar.xz.01, ..., each in a folder of its own, to be copied one by one. On the host:

    mkdir -p /opt/site && cat */site.tar.xz.* | tar xJf - -C /opt/site
    export PYTHONPATH=/opt/site

`--app` adds Gradio and what the web app needs.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ENGINE = (
    "sglang==0.5.17", "sglang-kernel==0.4.5", "flashinfer-python==0.6.15.post1", "xgrammar==0.2.1",
    "apache-tvm-ffi==0.1.11", "compressed-tensors==0.20.1", "gguf==0.19.0", "loguru==0.7.3", "openai==2.6.1",
    "opentelemetry-api==1.45.2", "transformers==5.12.1", "tokenizers==0.22.2", "huggingface_hub==1.33.0",
    "annotated-types", "brotli", "dill", "distro", "fastapi==0.165.0", "ipython==9.*", "traitlets",
    "prompt_toolkit", "decorator", "wcwidth", "stack_data", "executing", "asttokens", "pure_eval", "jedi",
    "parso", "matplotlib-inline", "pexpect", "ptyprocess", "ipython_pygments_lexers", "jiter", "sniffio",
    "msgspec==0.23.0", "orjson==3.13.0", "partial_json_parser", "pybase64", "pydantic==2.14.4",
    "pydantic-core==2.50.5", "pydantic-extra-types", "typing-inspection", "python-multipart", "pyzmq",
    "setproctitle", "starlette==1.10.0", "uvicorn==0.54.0", "zstandard==0.25.0", "httpx==0.28.1",
    "watchfiles", "llguidance", "interegular", "nest_asyncio", "platformdirs",
)  # fmt: skip
APP = (
    "gradio==6.31.0", "gradio_client==2.7.2", "hf-gradio", "safehttpx", "groovy", "semantic-version",
    "tomlkit", "graphviz==0.21", "pandas==3.1.1", "pytz", "tzdata",
)  # fmt: skip
LEFT_OUT = (  # FA3 alone is 1.1 GB
    "sgl_kernel/flash_ops", "sgl_kernel/sm100/", "sgl_kernel/infllm_ops", "sgl_kernel/flashmla_ops",
    "xgrammar/lib/", "sglang/multimodal_gen/", "sglang/test/", "sglang/srt/server/",
    "sglang/srt/rust_extensions/", "gradio/templates/frontend/static/ffmpeg/", "__pycache__/",
)  # fmt: skip
PLATFORMS = (
    *(f"manylinux_2_{glibc}_x86_64" for glibc in (39, 38, 37, 36, 35, 34, 31, 28, 27, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
LARGE_LIBRARY = 3_000_000  # bytes, worth stripping


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--app", action="store_true", help="with Gradio and what the web app needs")
    parser.add_argument("--part-mib", type=int, default=58)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder) / "wheels", Path(folder) / "site"
        download((*ENGINE, *APP) if args.app else ENGINE, wheels)
        unpack(wheels, site)
        strip_libraries(site)
        packed = subprocess.run(
            "tar cf - . | xz -T0 -6", shell=True, cwd=site, check=True, capture_output=True
        ).stdout
    write_parts(packed, args.out, args.part_mib << 20)


def download(packages: tuple[str, ...], wheels: Path) -> None:
    """The wheels of exactly these packages, for Python 3.12 on Linux."""
    options = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.12"]
    options += [flag for abi in ("cp312", "abi3", "none") for flag in ("--abi", abi)]
    options += [flag for platform in PLATFORMS for flag in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(wheels), *packages]
    subprocess.run(command, check=True)


def unpack(wheels: Path, site: Path) -> None:
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not any(part in member.filename for part in LEFT_OUT):
                    archive.extract(member, site)
    for data in site.glob("*.data"):  # some wheels keep their files under NAME.data/{purelib,platlib}
        for kind in ("purelib", "platlib"):
            if (data / kind).is_dir():
                shutil.copytree(data / kind, site, dirs_exist_ok=True)
        shutil.rmtree(data)


def strip_libraries(site: Path) -> None:
    """Drop debugging symbols; sglang-kernel's are stripped already."""
    large = [
        str(path)
        for path in site.rglob("*.so")
        if path.stat().st_size > LARGE_LIBRARY and "sgl_kernel" not in str(path)
    ]
    if large and shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *large], check=False, stderr=subprocess.DEVNULL)


def write_parts(packed: bytes, out: Path, size: int) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for number, start in enumerate(range(0, len(packed), size)):
        part = out / str(number + 1) / f"site.tar.xz.{number:02d}"
        part.parent.mkdir(parents=True)
        part.write_bytes(packed[start : start + size])
        print(part, part.stat().st_size)


if __name__ == "__main__":
    main()
