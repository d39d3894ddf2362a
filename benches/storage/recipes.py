"""Recipes of other work, written anew from their papers: not their code, and not tuned as theirs is.

A recipe learns from keys and values of other text, and turns bf16 `[2, layers, tokens, heads, head_dim]` into bytes and back.
"""

from __future__ import annotations

import zlib

import constriction
import numpy as np
import zstandard

GROUP = 10
"""Tokens of CacheGen's groups. The first of them is the anchor."""
LAST_LEVEL = 127
Shape = "tuple[int, ...]"


def bf16(x: np.ndarray) -> np.ndarray:
    """The bits of bf16, rounded to nearest."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def wide(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Zstd:
    """Lossless: zstd of the bits of bf16."""

    def __init__(self, level: int) -> None:
        self.name, self.level, self.exact = f"zstd -{level} of bf16", level, 0

    def encode(self, bits: np.ndarray) -> bytes:
        return zstandard.ZstdCompressor(self.level).compress(bits.tobytes())

    def decode(self, data: bytes, shape: Shape) -> np.ndarray:
        return np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint16).reshape(shape)


class CacheGen:
    """CacheGen (Liu et al., SIGCOMM 2024): in groups of ten tokens, each token is its difference to the first, the anchor. Anchors have
    eight bits. Differences have steps of `scale` times .5, 1 and 1.5 standard deviations of their channel, for the first, middle and
    last third of the layers. An arithmetic coder has a distribution for each channel of each layer, profiled on other text."""

    def __init__(self, learned: np.ndarray, scale: float, exact: int = 0) -> None:
        self.scale, self.exact = scale, exact
        self.name = f"CacheGen's recipe, steps x {scale:g}"
        x = self._channels(learned)
        anchors, differences = self._split(x)
        layers = learned.shape[1]
        thirds = np.repeat([0.5, 1.0, 1.5], -(-layers // 3))[:layers]
        steps = np.tile(thirds, 2)[:, None, None] * scale
        self.step = np.maximum(differences.std(1, keepdims=True) * steps, 1e-6).astype(np.float32)
        most = np.abs(anchors).max(1, keepdims=True)
        self.anchor_step = np.maximum(1.25 * most / LAST_LEVEL, 1e-6).astype(np.float32)
        self.models = [self._profile(anchors, self.anchor_step), self._profile(differences, self.step)]

    @staticmethod
    def _channels(kv: np.ndarray) -> np.ndarray:
        """`[sides and layers, tokens, channels]`."""
        return kv.reshape(-1, kv.shape[2], kv.shape[3] * kv.shape[4])

    @staticmethod
    def _split(x: np.ndarray, anchors: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        first = np.arange(x.shape[1]) % GROUP == 0
        near = x[:, first] if anchors is None else anchors
        return near, (x - np.repeat(near, GROUP, 1)[:, : x.shape[1]])[:, ~first]

    @staticmethod
    def _levels(x: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(x / step), -LAST_LEVEL, LAST_LEVEL).astype(np.int32)

    def _profile(self, x: np.ndarray, step: np.ndarray) -> list:
        """A distribution for each channel, of the levels that it had, and a little of all others."""
        levels = self._levels(x, step) + LAST_LEVEL
        models = []
        for layer in levels:
            for channel in layer.T:
                seen = np.bincount(channel, minlength=2 * LAST_LEVEL + 1).astype(np.float32) + 0.02
                models.append(constriction.stream.model.Categorical(seen / seen.sum(), perfect=False))
        return models

    def encode(self, bits: np.ndarray) -> bytes:
        x = self._channels(wide(bits))
        coder = constriction.stream.queue.RangeEncoder()
        anchors = self._levels(x[:, ::GROUP], self.anchor_step)
        _, differences = self._split(x, anchors * self.anchor_step)
        for levels, models in zip((anchors, self._levels(differences, self.step)), self.models):
            by_channel = np.ascontiguousarray((levels + LAST_LEVEL).transpose(0, 2, 1)).reshape(len(models), -1)
            for symbols, model in zip(by_channel, models):
                coder.encode(symbols, model)
        return coder.get_compressed().tobytes()

    def decode(self, data: bytes, shape: Shape) -> np.ndarray:
        sides, tokens, channels = shape[0] * shape[1], shape[2], shape[3] * shape[4]
        coder = constriction.stream.queue.RangeDecoder(np.frombuffer(data, np.uint32))
        first = np.arange(tokens) % GROUP == 0
        parts = []
        for count, models in zip((first.sum(), (~first).sum()), self.models):
            levels = np.stack([coder.decode(model, int(count)) for model in models]) - LAST_LEVEL
            parts.append(levels.reshape(sides, channels, -1).transpose(0, 2, 1))
        anchors = parts[0] * self.anchor_step
        x = np.repeat(anchors, GROUP, 1)[:, :tokens].astype(np.float32)
        x[:, ~first] += parts[1] * self.step
        return bf16(x.reshape(shape))


class Kvtc:
    """KVTC (Staniszewski and Lancucki, 2025): keys before RoPE and values have a basis each, of principal components of other text over
    `together` layers and all heads. Each component has uniform levels of 0 to 8 bits over a range of its own. Dynamic programming
    gives them the budget, by the errors on the other text. DEFLATE codes the levels, component after component."""

    WIDTHS = (0, 1, 2, 3, 4, 5, 6, 8)
    RANGES = (0.0, 1.0, 1.6, 2.2, 2.7, 3.2, 3.7, 4.5)
    """Largest level in standard deviations, near the best for normal numbers."""

    def __init__(self, learned: np.ndarray, turn, budget: float, together: int, exact: int = 4) -> None:
        self.turn, self.exact, self.together = turn, exact, together
        self.name = f"KVTC's recipe, basis over {together} layer{'s' if together > 1 else ''}"
        self.bases = []
        for x in self._groups(turn(learned, -1)):
            mean = x.mean(0)
            moments = (x - mean).T @ (x - mean) / len(x)
            energies, columns = np.linalg.eigh(moments.astype(np.float64))
            order = np.argsort(-energies)
            columns = columns[:, order].astype(np.float32)
            spread = np.sqrt(np.maximum(energies[order], 1e-12)).astype(np.float32)
            widths = self._allot((x - mean) @ columns, spread, budget)
            self.bases.append((mean, columns, spread, widths))
        self.basis_bytes = sum(2 * columns.size for _, columns, _, _ in self.bases)

    def _groups(self, kv: np.ndarray) -> list[np.ndarray]:
        """`[tokens, channels]` of each side and group of layers."""
        sides, layers, tokens, heads, dim = kv.shape
        x = kv.reshape(sides, layers // self.together, self.together, tokens, heads * dim)
        return list(x.transpose(0, 1, 3, 2, 4).reshape(-1, tokens, self.together * heads * dim))

    def _allot(self, c: np.ndarray, spread: np.ndarray, budget: float) -> np.ndarray:
        """The widths of the least error whose sum is the budget."""
        total = int(budget * len(spread))
        errors = np.stack([((c - self._restore(self._levels(c, spread, i), spread, i)) ** 2).mean(0) for i in range(len(self.WIDTHS))])
        best = np.zeros(total + 1)
        choices = np.zeros((len(spread), total + 1), np.uint8)
        for component in range(len(spread)):
            tries = np.full((len(self.WIDTHS), total + 1), np.inf)
            for i, width in enumerate(self.WIDTHS):
                tries[i, width:] = best[: total + 1 - width] + errors[i, component]
            choices[component] = tries.argmin(0)
            best = tries.min(0)
        widths, left = np.zeros(len(spread), np.int64), int(best.argmin())
        for component in reversed(range(len(spread))):
            widths[component] = choices[component, left]
            left -= self.WIDTHS[widths[component]]
        return widths

    def _levels(self, c: np.ndarray, spread: np.ndarray, i: int) -> np.ndarray:
        count = 1 << self.WIDTHS[i]
        if count == 1:
            return np.zeros(c.shape, np.uint8)
        unit = 2 * self.RANGES[i] * spread / count
        return np.clip(np.floor(c / unit) + count // 2, 0, count - 1).astype(np.uint8)

    def _restore(self, levels: np.ndarray, spread: np.ndarray, i: int) -> np.ndarray:
        count = 1 << self.WIDTHS[i]
        if count == 1:
            return np.zeros(levels.shape, np.float32)
        return (levels.astype(np.float32) - count // 2 + 0.5) * (2 * self.RANGES[i] * spread / count)

    def encode(self, bits: np.ndarray) -> bytes:
        streams = []
        for x, (mean, columns, spread, widths) in zip(self._groups(self.turn(wide(bits), -1)), self.bases):
            c = (x - mean) @ columns
            for i, width in enumerate(self.WIDTHS):
                of = widths == i
                if width and of.any():
                    streams.append(_pack(self._levels(c[:, of], spread[of], i).T.ravel(), width))
        return zlib.compress(b"".join(streams), 6)

    def decode(self, data: bytes, shape: Shape) -> np.ndarray:
        stream, at, groups = np.frombuffer(zlib.decompress(data), np.uint8), 0, []
        sides, layers, tokens, heads, dim = shape
        for mean, columns, spread, widths in self.bases:
            c = np.zeros((tokens, len(spread)), np.float32)
            for i, width in enumerate(self.WIDTHS):
                of = widths == i
                if width and of.any():
                    count = int(of.sum()) * tokens
                    size = -(-count * width // 8)
                    levels = _unpack(stream[at : at + size], width, count).reshape(-1, tokens).T
                    c[:, of] = self._restore(levels, spread[of], i)
                    at += size
            groups.append(c @ columns.T + mean)
        x = np.stack(groups).reshape(sides, layers // self.together, tokens, self.together, heads * dim)
        return bf16(self.turn(x.transpose(0, 1, 3, 2, 4).reshape(shape), 1))


def _pack(levels: np.ndarray, width: int) -> bytes:
    if width == 8:
        return levels.tobytes()
    bits = np.unpackbits(levels[:, None], axis=1)[:, 8 - width :]
    return np.packbits(bits.ravel()).tobytes()


def _unpack(data: np.ndarray, width: int, count: int) -> np.ndarray:
    if width == 8:
        return data[:count]
    bits = np.unpackbits(data)[: count * width].reshape(count, width)
    return np.packbits(np.pad(bits, ((0, 0), (8 - width, 0))), axis=1)[:, 0]
