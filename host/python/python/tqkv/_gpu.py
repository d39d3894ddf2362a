"""The KV cache of many sequences on an NVIDIA GPU."""

from __future__ import annotations

import sys
from typing import Any, Sequence

from . import _native
from ._arrays import count, counts, words
from ._native import TqkvError


class GpuCache:
    """Compressed keys and values of many sequences on a GPU, and attention over them, for engines that decode there.

    Keys, values, queries and `out` are contiguous tensors on that GPU with DLPack (`__dlpack__`: PyTorch, CuPy, and for inputs JAX), of
    float32, float16 or bfloat16. Keys and values are `[tokens, num_kv_heads, head_dim]`, queries and `out` `[tokens, num_heads, head_dim]`.
    Nothing is copied, and results are written into `out`. Each call works on PyTorch's current stream of the device, so what follows the
    call there sees its results. `stream` is the number of another CUDA stream for all calls, which must exist as long as the cache and
    which the caller orders; 0 is the default stream, which graphs cannot capture, and which is taken where PyTorch is not imported. The
    current device of the caller stays as it is.

    `attend`, `append_step`, `attend_step`, `keys` and `values` return before the GPU has read or written their tensors. A library may give
    the memory of a tensor that you drop to another tensor, unless both are of the cache's stream. So keep such tensors, for example
    `q.half()`, until the stream has passed the call, or call PyTorch's `record_stream` on them. `end_step` waits for the whole step.

    `kv` takes the codecs `s2 s3 s4 i8 t2 t3 t4`. The first `sinks` tokens of a sequence and its newest `hot` attend in float16,
    and all tokens have codes too; unlike `KvCache`, this cache has no centring. The package has this class if it was built with the
    feature `cuda` (`maturin build --features cuda`). The class needs NVIDIA's driver at run time. Its tests passed on an H200 when
    it had codes alone. For an engine that owns its pages there is `tqkv.paged`.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv: str = "s4",
        *,
        sinks: int = _native.SINKS,
        hot: int = _native.HOT,
        num_sequences: int = 1,
        max_tokens: int = 4096,
        pool_tokens: int | None = None,
        seed: int = _native.SEED,
        scale_mode: str = "unbiased",
        effort: str = "default",
        device: int = 0,
        stream: int | None = None,
    ) -> None:
        native = getattr(_native, "GpuCache", None)
        if native is None:
            raise TqkvError("GpuCache is not valid in this package: expected a build with maturin build --features cuda")
        self._device = count("device", device)
        self._given = None if stream is None else count("stream", stream)
        self._native_on_stream = native(
            {
                "num_layers": count("num_layers", num_layers),
                "num_heads": count("num_heads", num_heads),
                "num_kv_heads": count("num_kv_heads", num_kv_heads),
                "head_dim": count("head_dim", head_dim),
                "kv": words("kv", kv),
                "sinks": count("sinks", sinks),
                "hot": count("hot", hot),
                "num_sequences": count("num_sequences", num_sequences),
                "max_tokens": count("max_tokens", max_tokens),
                "pool_tokens": None if pool_tokens is None else count("pool_tokens", pool_tokens),
                "seed": count("seed", seed),
                "scale_mode": words("scale_mode", scale_mode),
                "effort": words("effort", effort),
                "device": self._device,
                "stream": self._stream(),
            }
        )

    def _stream(self) -> int:
        """The stream of the caller, or PyTorch's current one."""
        if self._given is not None:
            return self._given
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return 0
        current: int = torch.cuda.current_stream(self._device).cuda_stream
        return current

    @property
    def _native(self) -> Any:
        """The native cache, on the stream of this call."""
        if self._given is None:
            self._native_on_stream.follow(self._stream())
        return self._native_on_stream

    def length(self, sequence: int) -> int:
        """Number of tokens in a sequence. 0 for a sequence out of range."""
        held: int = self._native.len(count("sequence", sequence))
        return held

    def append(self, layer: int, sequences: Sequence[int], k: Any, v: Any) -> None:
        """Appends a token to each of `sequences`, which may repeat, in one layer. Keys are after RoPE. Waits for the device."""
        self._native.append(count("layer", layer), counts("sequences", sequences), k, v)

    def attend(self, layer: int, sequences: Sequence[int], q: Any, out: Any) -> None:
        """Attends from the newest token of each of `sequences`. A query that is not finite gives NaN. Does not wait."""
        self._native.attend(count("layer", layer), counts("sequences", sequences), q, out)

    def begin_step(self, sequences: Sequence[int]) -> None:
        """Begins a step of a model: one token at the end of each of `sequences` in every layer. `append_step` and `attend_step` of
        each layer follow, which only launch kernels, then `end_step`."""
        self._native.begin_step(counts("sequences", sequences))

    def append_step(self, layer: int, k: Any, v: Any) -> None:
        """Encodes keys and values of the step's tokens in one layer, in one launch."""
        self._native.append_step(count("layer", layer), k, v)

    def attend_step(self, layer: int, q: Any, out: Any) -> None:
        """Attends with the query of each of the step's tokens, which sees its sequence up to itself."""
        self._native.attend_step(count("layer", layer), q, out)

    def end_step(self) -> None:
        """Waits for the step, once. If a vector could not be encoded, the error names the first, and only the sequences of such vectors lose
        their tokens of the step, from that one on: `length` says which."""
        self._native.end_step()

    def reserve(self, tokens: int) -> None:
        """Allocates memory for steps of up to `tokens` tokens, so that CUDA graphs can contain their launches. The memory stays
        until the cache is gone. A larger step is refused later."""
        self._native.reserve(count("tokens", tokens))

    def fork(self, source: int, to: int, tokens: int) -> None:
        """Copies the first tokens of `source` to the empty sequence `to`. Both share pages until one of them writes."""
        self._native.fork(count("source", source), count("to", to), count("tokens", tokens))

    def truncate(self, sequence: int, tokens: int) -> None:
        """Drops the tokens of a sequence from index `tokens` on."""
        self._native.truncate(count("sequence", sequence), count("tokens", tokens))

    def keys(self, layer: int, sequence: int, out: Any) -> None:
        """Decodes the keys of a sequence to `out`, `[tokens, num_kv_heads, head_dim]`, exact tokens from float16. Does not wait."""
        self._native.decode(count("layer", layer), count("sequence", sequence), False, out)

    def values(self, layer: int, sequence: int, out: Any) -> None:
        """Decodes the values of a sequence, like `keys`."""
        self._native.decode(count("layer", layer), count("sequence", sequence), True, out)
