"""GGUF: `gguf` reads the weights, and `transformers` computes the same logits from the file."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from dipaco.model import lm
from dipaco.model.errors import NoGguf
from dipaco.model.gguf_file import export_gguf
from dipaco.model.huggingface import PLAIN_CHAT, EdgeToken
from tests.model.conftest import GROUPED, TINY, lively

gguf = pytest.importorskip("gguf", reason="needs the extra `gguf`")
forward = jax.jit(lm.forward, static_argnums=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("base", [TINY, GROUPED], ids=["llama", "qwen3"])
def test_a_gguf_has_the_same_logits_in_transformers(base, dtype, tokenizer_file, tmp_path):
    torch = pytest.importorskip("torch", reason="parity needs the `parity` extra")
    transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")
    # transformers expects heads of 128 in a GGUF of Qwen3.
    head_dim = 128 if base.qk_norm else None
    config = dataclasses.replace(base, vocab_size=320, num_kv_heads=2, head_dim=head_dim)
    parts = lively(config)
    end = EdgeToken(0, "<|endoftext|>")
    file = tmp_path / "path_0001.gguf"
    given = {"start": end, "end": end, "dtype": dtype, "chat": PLAIN_CHAT}
    export_gguf(config, parts, tokenizer_file, file, **given)
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    chat = gguf.GGUFReader(file).get_field("tokenizer.chat_template")
    assert chat is not None
    assert chat.contents() == PLAIN_CHAT
    kinds = {str(tensor.tensor_type.name) for tensor in gguf.GGUFReader(file).tensors}
    assert kinds == ({"F32"} if dtype == "float32" else {"F32", "BF16"})

    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    tokens_BT = np.random.default_rng(1).integers(0, 320, (3, 12), np.int32)
    with torch.no_grad():
        logits = theirs(torch.tensor(tokens_BT, dtype=torch.long)).logits.numpy()
    if dtype == "bfloat16":
        parts = jax.tree.map(lambda value: _rounded(value) if value.ndim > 1 else value, parts)
    np.testing.assert_allclose(logits, forward(config, parts, tokens_BT)[0], atol=1e-4)

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    text = " a path, so  on\n\u05d0\u05d1 ."
    import tokenizers

    ours = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ours.encode(text).ids


def _rounded(value):
    return np.asarray(value.astype(jax.numpy.bfloat16), np.float32)


def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(tokenizer_file, tmp_path):
    content = json.loads(tokenizer_file.read_text())
    content["pre_tokenizer"] = {"type": "Whitespace"}
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(content))
    with pytest.raises(NoGguf, match="BPE after Whitespace"):
        export_gguf(TINY, lively(TINY), other, tmp_path / "path.gguf")
    assert not list(tmp_path.glob("*.gguf*"))
