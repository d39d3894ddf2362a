"""Makes blocks of the reference codecs with NumPy, from host/reference/FORMATS.md and SPEC.md alone: golden bytes.

usage: codecs.py [LLOYD_MAX.json] > tests/vectors/reference.json      (needs numpy and ml_dtypes)

Everything is in f64. Numbers of 4 and 8 bits are rounded by ml_dtypes.
"""

import json
import sys

import ml_dtypes
import numpy as np

GAUSSIAN = {
    1: [0.7978846],
    2: [0.4527800, 1.5104176],
    3: [0.2450942, 0.7560053, 1.3439093, 2.1519457],
    4: [0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896],
}
TURBO = {
    2: [0.039994, 0.133462],
    3: [0.021663, 0.066822, 0.118786, 0.190207],
    4: [0.011349, 0.034299, 0.058050, 0.083292, 0.111036, 0.143016, 0.182877, 0.241529],
}
S1 = "59036ae44959f842bb3bc6a4a950f249"
S2 = "90eeac16dc8f623f763a35a5b76265be"
MASK = (1 << 64) - 1


def splitmix(seed):
    state = seed & MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def normals(seed, count):
    draws = splitmix(seed)
    uniform = np.array([next(draws) >> 11 for _ in range(count + count % 2)]) / 2.0**53
    radius, angle = np.sqrt(-2 * np.log(1 - uniform[0::2])), 2 * np.pi * uniform[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()[:count]


def haar(dim, seed):
    q, r = np.linalg.qr(normals(seed, dim * dim).reshape(dim, dim))
    return q * np.sign(np.diag(r))


def bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(float)


def sylvester(dim):
    h = np.ones((1, 1))
    while len(h) < dim:
        h = np.block([[h, h], [h, -h]])
    return h / np.sqrt(dim)


def signed_hadamard(dim, seed):
    draws = splitmix(seed)
    return sylvester(dim) * [-1 if next(draws) >> 63 else 1 for _ in range(dim)]


def symmetric(half):
    return np.concatenate([-np.array(half)[::-1], half])


def codes_of(y, levels):
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, y, side="right")


def pack(codes, bits):
    flat = (np.asarray(codes)[:, None] >> np.arange(bits) & 1).astype(np.uint8).ravel()
    return np.packbits(flat, bitorder="little").tobytes()


def f16(x):
    """Rounds to f32 and then to f16, as many programs do."""
    return np.asarray(x, np.float32).astype(np.float16)


class Codecs:
    def __init__(self, books):
        self.books = books

    def exact(self, dim, bits):
        return symmetric(self.books[dim, bits]) * np.sqrt(dim)

    def scalar(self, x, seed, bits, dense=True, wide=False):
        d = len(x)
        rotation = haar(d, seed).astype(np.float32).astype(float) if dense else signed_hadamard(d, seed)
        levels, keep = (symmetric(GAUSSIAN[bits]), bf16) if wide else (self.exact(d, bits), lambda v: v)
        rotation, norm = keep(rotation), np.linalg.norm(x)
        codes = codes_of(rotation @ keep(x / norm) * np.sqrt(d), levels)
        y = levels[codes] / np.sqrt(d)
        scale = np.float32(norm) / (np.linalg.norm(y) if wide else 1.0)
        block = np.float32(norm).tobytes() + pack(codes, 8 if wide else bits)
        return block, rotation.T @ keep(y) * scale

    def product(self, x, seed, bits, residual, norm_type, dense=True):
        d = len(x)
        rotation = haar(d, seed).astype(np.float32).astype(float) if dense else signed_hadamard(d, seed)
        sketch = normals(seed + 500, d * d).astype(np.float32).astype(float).reshape(d, d)
        levels, fine = self.exact(d, bits), symmetric(GAUSSIAN[residual])
        norm = np.linalg.norm(x)
        codes = codes_of(rotation @ (x / norm) * np.sqrt(d), levels)
        coarse = rotation.T @ (levels[codes] / np.sqrt(d))
        left = x / norm - coarse
        left_norm = np.linalg.norm(left)
        signs = codes_of(sketch @ left / left_norm, fine)
        cuts = np.concatenate([[-np.inf], (fine[1:] + fine[:-1]) / 2, [np.inf]])
        density = np.exp(-cuts * cuts / 2) / np.sqrt(2 * np.pi)
        correlation = np.sum(fine * (density[:-1] - density[1:]))
        norm, left_norm = norm_type(norm), norm_type(left_norm)
        block = norm.tobytes() + left_norm.tobytes() + pack(codes, bits) + pack(signs, residual)
        estimate = float(left_norm) / (d * correlation) * (sketch.T @ fine[signs])
        return block, float(norm) * (coarse + estimate)

    def turbo(self, x, bits):
        def signs(text):
            flips = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), bitorder="little")
            return 1.0 - 2.0 * flips

        levels, h, s1, s2 = symmetric(TURBO[bits]), sylvester(128), signs(S1), signs(S2)
        block, out = b"", []
        for group in np.pad(x, (0, -len(x) % 128)).reshape(-1, 128):
            norm = np.linalg.norm(group)
            codes = codes_of(s2 * (h @ (s1 * group / norm)), levels)
            scale = f16(norm / np.linalg.norm(levels[codes]))
            fields = [(codes & 3, 2), (codes >> 2, 1)] if bits == 3 else [(codes, bits)]
            block += scale.tobytes() + b"".join(pack(*field) for field in fields)
            out.append(float(scale) * s1 * (h @ (s2 * levels[codes])))
        return block, np.concatenate(out)[: len(x)]

    def split(self, x, seed, wide, narrow):
        half = len(x) // 2
        norms, packed, out = b"", b"", []
        for part, bits, seed in [(x[:half], wide, seed), (x[half:], narrow, seed + 250)]:
            rotation, levels = haar(half, seed).astype(np.float32).astype(float), self.exact(half, bits)
            norm = np.linalg.norm(part)
            codes = codes_of(rotation @ (part / norm) * np.sqrt(half), levels)
            norms, packed = norms + f16(norm).tobytes(), packed + pack(codes, bits)
            out.append(float(f16(norm)) * (rotation.T @ levels[codes]) / np.sqrt(half))
        return norms + packed, np.concatenate(out)

    def uniform(self, x, bits):
        top = 2**bits - 1
        least = f16(x.min())
        step = f16((x.max() - float(least)) / top)
        codes = np.clip(np.floor((x - float(least)) / float(step) + 0.5), 0, top).astype(int)
        return step.tobytes() + least.tobytes() + pack(codes, bits), float(least) + codes * float(step)

    def e5m2(self, x):
        scale = f16(np.abs(x).max() / 57344)
        half = f16(np.clip(x / float(scale), -57344, 57344)).view(np.uint16).astype(int)
        codes = ((half + 0x7F + (half >> 8 & 1)) >> 8).astype(np.uint8)
        return scale.tobytes() + codes.tobytes(), float(scale) * (codes.astype(np.uint16) << 8).view(np.float16).astype(float)

    def e4m3(self, x):
        numbers = np.array([(m if e == 0 else 8 + m) * 2.0 ** (max(e, 1) - 10) for e in range(16) for m in range(8)][:127])
        scale = f16(np.abs(x).max() / 448)
        target = np.minimum(np.abs(x) / float(scale), 448)
        above = np.minimum(np.searchsorted(numbers, target), 126)
        below = np.maximum(above - 1, 0)
        gaps = numbers[above] - target, target - numbers[below]
        codes = np.where((gaps[0] < gaps[1]) | ((gaps[0] == gaps[1]) & (above % 2 == 0)), above, below)
        signs = np.where(np.signbit(x), 128, 0)
        return scale.tobytes() + (codes + signs).astype(np.uint8).tobytes(), float(scale) * np.copysign(numbers[codes], x)

    def runs(self, x, seed):
        rotation = signed_hadamard(len(x), seed)
        block, out = b"", []
        for run in (rotation @ x).reshape(-1, 32):
            scale = run[np.abs(run).argmax()] / -8
            codes = np.clip(np.floor(run / scale + 8.5), 0, 15).astype(np.uint8)
            block += f16(scale).tobytes() + (codes[:16] | codes[16:] << 4).astype(np.uint8).tobytes()
            out.append((codes.astype(float) - 8) * float(f16(scale)))
        return block, rotation.T @ np.concatenate(out)

    def of_kept_norm(self, x, bits):
        levels, h, norm = symmetric(GAUSSIAN[bits]), sylvester(len(x)), np.linalg.norm(x)
        codes = codes_of(h @ (x / norm) * np.sqrt(len(x)), levels)
        y = levels[codes]
        return f16(norm).tobytes() + pack(codes, bits), float(f16(norm)) * (h @ y) / np.linalg.norm(y)

    def rotated(self, x, seed, code):
        rotation = signed_hadamard(len(x), seed)
        block, y = code(rotation @ x)
        return block, rotation.T @ y

    def zero_point(self, x):
        def away(v):
            return np.sign(v) * np.floor(np.abs(v) + 0.5)

        scale = np.float32(max((x.max() - x.min()) / 15, 1e-6))
        zero = np.clip(away(-x.min() / float(scale)), 0, 15)
        codes = np.clip(away(x / float(scale) + zero), 0, 15).astype(np.uint8)
        stored = np.array([scale]).view(np.uint32) & ~np.uint32(15)
        return (stored | np.uint32(zero)).tobytes() + pack(codes, 4), (codes - zero) * float(stored.view(np.float32)[0])

    def fp8(self, x):
        numbers = x.astype(ml_dtypes.float8_e4m3fn)
        return numbers.tobytes(), numbers.astype(float)

    def fp4(self, x, run, scale_type):
        runs = x.reshape(-1, run)
        largest = np.abs(runs).max(axis=1)
        if scale_type is ml_dtypes.float8_e8m0fnu:
            scales = (2.0 ** (np.floor(np.log2(largest)) - 2)).astype(scale_type)
        else:
            scales = (largest / 6).astype(scale_type)
        numbers = (runs / scales.astype(float)[:, None]).astype(ml_dtypes.float4_e2m1fn)
        codes = numbers.view(np.uint8).ravel() & 15
        decoded = numbers.astype(float) * scales.astype(float)[:, None]
        return pack(codes, 4) + scales.tobytes(), decoded.ravel()

    def rows(self):
        yield from ((f"p{b + 1}", lambda x, s, b=b: self.product(x, s, b, 1, f16)) for b in (1, 2, 3))
        yield from ((f"p4r{w}", lambda x, s, w=w: self.product(x, s, 3, w, f16)) for w in (2, 3, 4))
        yield from ((f"tq{b}", lambda x, s, b=b: self.scalar(x, s, b)) for b in (1, 2, 3, 4))
        yield "tq4u8", lambda x, s: self.scalar(x, s, 4, wide=True)
        yield from ((f"turbo{b}", lambda x, s, b=b: self.turbo(x, b)) for b in (2, 3, 4))
        yield from ((f"turbo{b}k", lambda x, s, b=b: self.product(x, s, b - 1, 1, np.float32, False)) for b in (3, 4))
        yield from ((f"turbo{b}v", lambda x, s, b=b: self.scalar(x, s, b, dense=False)) for b in (3, 4))
        yield from ((f"c{b}5", lambda x, s, b=b: self.split(x, s, b + 1, b)) for b in (2, 3))
        yield from ((f"u{b}", lambda x, s, b=b: self.uniform(x, b)) for b in (3, 4, 8))
        yield "f8", lambda x, s: self.e4m3(x)
        yield "f8e5m2", lambda x, s: self.e5m2(x)
        yield "q4_0r", self.runs
        yield from ((f"u{b}r", lambda x, s, b=b: self.rotated(x, s, lambda y: self.uniform(y, b))) for b in (3, 4, 8))
        yield "fp8", lambda x, s: self.fp8(x)
        yield "nvfp4", lambda x, s: self.fp4(x, 16, ml_dtypes.float8_e4m3fn)
        yield "mxfp4", lambda x, s: self.fp4(x, 32, ml_dtypes.float8_e8m0fnu)
        yield "int4h", lambda x, s: self.rotated(x, s, self.zero_point)
        yield from ((f"vtq{b}", lambda x, s, b=b: self.of_kept_norm(x, b)) for b in (3, 4))


def books_of(path):
    with open(path) as file:
        return {(table["d"], table["bits"]): table["centroids"] for table in json.load(file)["tables"]}


def main():
    codecs = Codecs(books_of(sys.argv[1] if len(sys.argv) > 1 else "tests/vectors/lloyd_max.json"))
    blocks = []
    for dim in (64, 128):
        for layer in (0, 3):
            # Multiples of 1/25, rounded to f32.
            ints = [(i * 37 + 11 * layer + i * i // 7) % 101 - 50 for i in range(dim)]
            for name, code in codecs.rows():
                block, decoded = code((np.array(ints) / 25).astype(np.float32).astype(float), 42 + 1000 * layer)
                decoded = [float(f"{v:.9g}") for v in decoded]
                blocks.append({"row": name, "layer": layer, "ints": ints, "block": block.hex(), "decoded": decoded})
    print(json.dumps({"normals_of_42": normals(42, 3).tolist(), "blocks": blocks}, separators=(",", ":")))


if __name__ == "__main__":
    main()
