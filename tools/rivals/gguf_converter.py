"""Runs llama.cpp's own converter on exported paths, in the environment of the rivals.

    python gguf_converter.py LLAMA_CPP FOLDER FILE.gguf [FOLDER FILE.gguf ...]

The converter recognises a pre-tokenizer by the tokens of a test text, and refuses an unknown
vocabulary. A run's tokenizer splits text as GPT-2's does (`ByteLevel` with its regular expression)
but has another vocabulary, so the converter is told to take it for GPT-2's. All else is the
converter's, in float32.
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
