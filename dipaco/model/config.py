"""Sizes of a model and of a mesh, and counts that follow from them. Pure Python: no JAX."""

import dataclasses
import math
from typing import Annotated, Literal, get_args

from annotated_types import Ge, Le

from dipaco.errors import BadSetting
from dipaco.model.errors import BadMesh
from dipaco.settings import Count, Positive, check_values

ComputeDtype = Literal["float32", "bfloat16"]
ResultDtype = Literal["auto", "float32", "bfloat16"]
AttentionKernel = Literal["auto", "plain", "cudnn", "splash"]
KERNELS = ("cudnn", "splash")  # each for one maker's devices, in bfloat16
# Parameters with a row or column for each token -> their axis of tokens.
VOCABULARY_AXIS = {"embed.table": 0, "head.kernel": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Llama-family decoder without biases. Parameters are always float32."""

    vocab_size: Count
    """Tokens of the vocabulary, rows of embedding and head. A tokenizer is trained to as many, or a
    given one must fit into them."""
    d_model: Count
    """Width of the residual stream, in values."""
    num_layers: Annotated[int, Ge(1), Le(10_000)]  # each is named, wherever parts are
    """Blocks of a path, one above another."""
    num_heads: Count
    """Query heads of a block."""
    d_ff: Count
    """Width of the gated feed-forward, in values."""
    max_length: Count
    """Tokens of context, at most."""
    num_kv_heads: Count | None = None
    """Key/value heads of a block. None = as many as query heads."""
    head_dim: Count | None = None
    """Values in a head, an even number. None = `model.d_model` / `model.num_heads`."""
    rope_theta: Positive = 10_000.0
    """Base of the rotary wavelengths, a plain number. The default is Llama's."""
    norm_epsilon: Positive = 1e-6
    """Number added inside the square root of every RMSNorm."""
    qk_norm: bool = False
    """True: each query and key head has an RMSNorm, before rotary, as in Qwen3."""
    tied_head: bool = False
    """True: the head is the embedding's table, and there is no part `head`."""
    compute_dtype: ComputeDtype = "float32"
    """Type of the inputs of products: `float32`, or `bfloat16` with sums in float32. Parameters are
    always float32."""
    result_dtype: ResultDtype = "auto"
    """Type in which the products of a block leave their float32 sums, and the gradients of their
    inputs, in training and wherever whole texts are read (scores, features of routing): `float32`,
    `bfloat16` (with `model.compute_dtype=bfloat16`), or `auto` = `model.compute_dtype`, on CPU
    `float32`. A `mesh.tensor` above 1 adds the parts of such a sum in this type as well. Residual
    stream, logits and gradients of parameters are always float32."""
    attention_kernel: AttentionKernel = "auto"
    """Attention in training: `cudnn` = cuDNN's kernel, on NVIDIA Ampere or later, `splash` = JAX's,
    on TPUs, both in bfloat16. `plain` = JAX operations. `auto` = a kernel if one runs, else the
    plain form."""

    def __post_init__(self):
        check_values(self, "model")
        if self.head_dim is None and self.d_model % self.num_heads:
            _refuse(self, "num_heads", f"a divisor of d_model ({self.d_model})", "Or set head_dim.")
        if self.num_heads % self.kv_heads:
            expected = f"a divisor of num_heads ({self.num_heads})"
            _refuse(self, "num_kv_heads", expected, "Each key/value head serves equally many.")
        if self.head_size % 2:
            field = "num_heads" if self.head_dim is None else "head_dim"
            expected = f"heads of an even size (now {self.head_size})"
            _refuse(self, field, expected, "Rotary positions rotate pairs of values.")
        if (self.result_dtype, self.compute_dtype) == ("bfloat16", "float32"):
            remedy = "Or set model.compute_dtype=bfloat16."
            _refuse(self, "result_dtype", "auto or float32, as compute_dtype is float32", remedy)
        field, others = "attention_kernel", "auto or plain, as"
        if self.attention_kernel in KERNELS and self.compute_dtype != "bfloat16":
            expected = f"{others} compute_dtype is {self.compute_dtype}"
            _refuse(self, field, expected, "Or set model.compute_dtype=bfloat16.")
        if self.attention_kernel == "cudnn" and not self.fits_cudnn:
            expected = f"{others} heads have {self.head_size} values"
            _refuse(self, field, expected, "cuDNN's takes multiples of 8 up to 256.")

    @property
    def kv_heads(self) -> int:
        """Key/value heads, G."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """Values in one head, K."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def fits_cudnn(self) -> bool:
        """True if cuDNN's attention takes heads of this size, on some GPU."""
        return self.head_size % 8 == 0 and self.head_size <= 256


def _refuse(config: ModelConfig, field: str, expected: str, remedy: str):
    value = getattr(config, field)
    raise BadSetting(name=f"model.{field}", value=value, expected=expected, hint=f" {remedy}")


def block_names(config: ModelConfig) -> tuple[str, ...]:
    """`block_00`, `block_01`, ...: the blocks from the bottom up."""
    return tuple(f"block_{index:02d}" for index in range(config.num_layers))


def is_block(part: str) -> bool:
    """Whether a part's name is a block's."""
    return part.startswith("block_")


def part_names(config: ModelConfig) -> tuple[str, ...]:
    """All parts, in the order in which a token passes them."""
    return (
        "embed",
        *block_names(config),
        "final_norm",
        *(() if config.tied_head else ("head",)),
    )


def part_parameters(config: ModelConfig) -> dict[str, int]:
    """Number of parameters of each part."""
    table = config.vocab_size * config.d_model
    counts = dict.fromkeys(block_names(config), block_matrices(config) + _block_norms(config))
    counts = {"embed": table, **counts, "final_norm": config.d_model}
    return counts if config.tied_head else {**counts, "head": table}


def num_parameters(config: ModelConfig) -> int:
    """Parameters of one path."""
    return sum(part_parameters(config).values())


def flops_per_token(config: ModelConfig, length: int, *, training: bool = True) -> int:
    """Floating point operations of the matrix products for one token, a multiply-add being two.

    Forward: 2 N + 4 L H K T, with N the parameters in products (the blocks' matrices and the head,
    tied or not, since the embedding is a look-up), L layers, H heads of size K, and T = `length`,
    the tokens of a row. Training is three times that: the backward pass has two products for each
    of the forward pass. As usual, the second term counts the whole T x T square of attention,
    although half of it is masked. Norms, softmax and rotary are left out.

    Source: PaLM (arXiv 2204.02311) appendix B.
    """
    in_products = config.num_layers * block_matrices(config) + config.vocab_size * config.d_model
    attention = 4 * config.num_layers * config.num_heads * config.head_size * length
    return (3 if training else 1) * (2 * in_products + attention)


def block_matrices(config: ModelConfig) -> int:
    """Parameters of the matrices of one block."""
    query_and_output = 2 * config.num_heads * config.head_size
    key_and_value = 2 * config.kv_heads * config.head_size
    return config.d_model * (query_and_output + key_and_value + 3 * config.d_ff)


def _block_norms(config: ModelConfig) -> int:
    return 2 * config.d_model + (2 * config.head_size if config.qk_norm else 0)


MeshAxis = Literal["data", "fsdp", "tensor"]
MESH_AXES = get_args(MeshAxis)
BESIDE_EMBED = ("vocab", "heads", "kv_heads", "feed_forward")  # the other axes of its matrices


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingRules:
    """The mesh axes along which each logical axis is divided. None = whole on every device."""

    batch: tuple[MeshAxis, ...] = ("data", "fsdp")
    """Mesh axes along which the rows of a batch are divided."""
    vocab: tuple[MeshAxis, ...] = ("tensor",)
    """Mesh axes along which embedding and head are divided by token."""
    embed: tuple[MeshAxis, ...] = ("fsdp",)
    """Mesh axes along which parameters are divided by `model.d_model`."""
    heads: tuple[MeshAxis, ...] = ("tensor",)
    """Mesh axes along which query heads are divided."""
    kv_heads: tuple[MeshAxis, ...] = ("tensor",)
    """Mesh axes along which key/value heads are divided."""
    feed_forward: tuple[MeshAxis, ...] = ("tensor",)
    """Mesh axes along which the feed-forward is divided by `model.d_ff`."""

    def __post_init__(self):
        for axis, mesh_axes in dataclasses.asdict(self).items():
            if unknown := set(mesh_axes) - set(MESH_AXES):
                remedy = f"`mesh.rules.{axis}` may name any of {', '.join(MESH_AXES)}."
                raise BadMesh(asked=sorted(unknown)[0], num_devices="any number of", remedy=remedy)
            if len(set(mesh_axes)) < len(mesh_axes):
                name, expected = f"mesh.rules.{axis}", "each mesh axis once"
                raise BadSetting(name=name, value=mesh_axes, expected=expected)
        for axis in BESIDE_EMBED:
            if set(self.embed) & set(getattr(self, axis)):
                expected = f"other axes than `mesh.rules.{axis}`, which divides the same matrices"
                hint = " `()` leaves what it names whole on every device."
                raise BadSetting(
                    name="mesh.rules.embed", value=self.embed, expected=expected, hint=hint
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis of the mesh. One axis may be -1, the remaining devices.

    Without a -1 the mesh uses the first data x fsdp x tensor devices only.
    """

    data: int = 1
    """Devices that share the rows of a batch, each with all parameters."""
    fsdp: int = 1
    """Devices that share the rows of a batch and the parameters, which are cut along
    `model.d_model`."""
    tensor: int = 1
    """Devices that share heads, feed-forward and vocabulary."""
    rules: ShardingRules = ShardingRules()

    def __post_init__(self):
        if any(size < 1 and size != -1 for size in self._sizes) or self._sizes.count(-1) > 1:
            remedy = "Sizes are 1 or more, and at most one is -1 (the devices that remain)."
            raise BadMesh(asked=self._asked(), num_devices="any number of", remedy=remedy)

    def shape(self, num_devices: int) -> tuple[int, int, int]:
        """Devices along (data, fsdp, tensor), with -1 filled in.

        Raises:
          BadMesh: there are too few devices, or -1 is not a whole number.
        """
        given = math.prod(size for size in self._sizes if size != -1)
        if given > num_devices or (-1 in self._sizes and num_devices % given):
            remedy = "Ask for sizes whose product divides the number of devices."
            raise BadMesh(asked=self._asked(), num_devices=num_devices, remedy=remedy)
        rest = num_devices // given
        data, fsdp, tensor = (rest if size == -1 else size for size in self._sizes)
        return data, fsdp, tensor

    @property
    def num_devices(self) -> int | None:
        """Number of devices of the mesh. None = all devices."""
        return None if -1 in self._sizes else math.prod(self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.data, self.fsdp, self.tensor

    def _asked(self) -> str:
        return ", ".join(
            f"{axis}={size}" for axis, size in zip(MESH_AXES, self._sizes, strict=True)
        )
