"""llama.cpp's own converter, on paths that were exported; runs where the rivals are installed.

    python gguf_converter.py LLAMA_CPP FOLDER FILE.gguf [FOLDER FILE.gguf ...]

The converter knows pre-tokenizers by what they make of a text with the vocabulary that they came
with, and refuses those of a vocabulary that it has not seen. A run's tokenizer splits text as
GPT-2's does (`ByteLevel` with its regular expression) and has a vocabulary of its own, so it is
told that. All else is the converter's, in float32.
"""

import runpy
import sys
from pathlib import Path


def main() -> None:
    llama_cpp, *pairs = sys.argv[1:]
    converter = Path(llama_cpp) / "convert_hf_to_gguf.py"
    sys.path[:0] = [llama_cpp, str(Path(llama_cpp) / "gguf-py")]
    from conversion.base import TextModel  # ty: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    for folder, file in zip(pairs[::2], pairs[1::2], strict=True):
        sys.argv = [str(converter), folder, "--outfile", file, "--outtype", "f32"]
        runpy.run_path(str(converter), run_name="__main__")


if __name__ == "__main__":
    main()
