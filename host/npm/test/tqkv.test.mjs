// The package as a program sees it: `node --test` in the folder of the package, after `cargo xtask npm`.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { before, test } from "node:test";
import { load, TqkvError } from "../index.js";

const file = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const SHAPE = { layers: 2, heads: 4, kvHeads: 2, headDim: 64 };

let tqkv;
// What the package instantiates, for tests that look at its memory.
const instances = [];
before(async () => {
  const { instantiate } = WebAssembly;
  WebAssembly.instantiate = async (...args) => {
    const made = await instantiate.apply(WebAssembly, args);
    instances.push(made.instance ?? made);
    return made;
  };
  tqkv = await load();
});
const memory = (instance) => instance.exports.memory.buffer;

/// Numbers around 0 that are the same in each run.
function numbers(length, seed = 1) {
  let state = seed;
  const next = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32 - 0.5;
  return Float32Array.from({ length }, () => next() + next() + next() + next());
}

/// A cache of the shape with as many tokens in each layer.
function filled(tokens, kv = "t4,t2 hot=32", seed = 1) {
  const cache = new tqkv.Cache({ ...SHAPE, kv });
  for (let layer = 0; layer < SHAPE.layers; layer++)
    cache.append(layer, numbers(tokens * 128, seed + layer), numbers(tokens * 128, seed + 10 + layer));
  return cache;
}

function refused(work, message, code = "TQKV_BAD_ARGUMENT") {
  assert.throws(work, (error) => {
    assert.ok(error instanceof TqkvError, String(error.stack));
    assert.deepEqual([error.message, error.code], [message, code]);
    return true;
  });
}

test("codes are the golden blocks", () => {
  const vectors = {};
  let equal = 0;
  for (const line of file("../../../tests/vectors/blocks.txt").trim().split("\n")) {
    const [name, dim, seed, scale, effort, hex] = line.split(" ");
    if (name === "#") {
      // "# vector DIM VALUES": f32 in little endian.
      if (dim === "vector") vectors[seed] = new Float32Array(new Uint8Array(Buffer.from(scale, "hex")).buffer);
      continue;
    }
    const codec = new tqkv.Codec(`${name} seed=${seed} scale-mode=${scale} effort=${effort}`, Number(dim));
    const x = vectors[dim];
    if (hex === "refused") assert.throws(() => codec.encode(x), TqkvError, line);
    else assert.equal(Buffer.from(codec.encode(x)).toString("hex"), hex, line);
    equal += 1;
    codec.free();
  }
  assert.ok(equal > 200, `${equal} lines`);
});

test("a codec decodes and scores what it encodes", () => {
  const codec = new tqkv.Codec("s4", 128);
  const [x, q] = [numbers(5 * 128), numbers(128, 2)];
  const blocks = codec.encode(x);
  assert.deepEqual([blocks.length, codec.blockBytes, codec.dim], [5 * 66, 66, 128]);
  const y = codec.decode(blocks);
  const square = (sum, value) => sum + value * value;
  const error = x.map((value, i) => value - y[i]).reduce(square, 0) / x.reduce(square, 0);
  assert.ok(error > 0.001 && error < 0.02, `${error}`);
  codec.scores(q, blocks).forEach((score, row) => {
    const want = q.reduce((sum, value, i) => sum + value * y[128 * row + i], 0);
    assert.ok(Math.abs(score - want) < 1e-3, `${score}, expected ${want}`);
  });
  assert.equal(codec.encode(new Float32Array(0)).length, 0);
});

/// Attention in f64 over the rows that a cache says it holds.
function attention(cache, layer, q, head) {
  const group = SHAPE.heads / SHAPE.kvHeads, kvHead = Math.floor(head / group), dim = SHAPE.headDim;
  const [keys, values] = ["keys", "values"].map((name) => cache[name](layer, kvHead, 0, cache.length));
  const logits = Array.from({ length: cache.length }, (_, token) => {
    let sum = 0;
    for (let i = 0; i < dim; i++) sum += q[head * dim + i] * keys[token * dim + i];
    return sum / Math.sqrt(dim);
  });
  const most = Math.max(...logits), weights = logits.map((logit) => Math.exp(logit - most));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return Array.from({ length: dim }, (_, i) => weights.reduce((sum, weight, token) => sum + weight * values[token * dim + i], 0) / total);
}

// Numbers of 8 bits in the product of a query and codes, unless the text says otherwise.
for (const [kv, tolerance] of [["t4,t2 hot=32 arithmetic=f32", 1e-4], ["s4 hot=32 arithmetic=f32", 1e-4], ["s4 hot=32", 1e-2], ["f16", 1e-4]])
  test(`attention over ${kv} is that of f64 over the decoded rows`, () => {
    const cache = filled(700, kv), q = numbers(256, 7).map((value) => 4 * value);
    for (const layer of [0, 1]) {
      const out = cache.attend(layer, q);
      for (let head = 0; head < SHAPE.heads; head++)
        attention(cache, layer, q, head).forEach((want, i) => {
          const got = out[head * SHAPE.headDim + i];
          assert.ok(Math.abs(got - want) < tolerance, `layer ${layer}, head ${head}: ${got}, expected ${want}`);
        });
    }
    cache.free();
  });

test("a prompt attends causally, also into an array of the program", () => {
  const [cache, other] = [new tqkv.Cache({ ...SHAPE, kv: "f16" }), new tqkv.Cache({ ...SHAPE, kv: "f16" })];
  const [q, k, v] = [numbers(9 * 256), numbers(9 * 128, 2), numbers(9 * 128, 3)];
  const out = new Float32Array(9 * 256);
  assert.equal(cache.attendPrefill(0, q, k, v, out), out);
  for (let token = 0; token < 9; token++) {
    other.append(0, k.subarray(128 * token, 128 * (token + 1)), v.subarray(128 * token, 128 * (token + 1)));
    const row = other.attend(0, q.subarray(256 * token, 256 * (token + 1)));
    row.forEach((want, i) => assert.ok(Math.abs(out[256 * token + i] - want) < 1e-5));
  }
  cache.reset();
  assert.equal(cache.length, 0);
  assert.deepEqual(cache.attendPrefill(0, q, k, v), out);
});

test("chosen tokens alone are attended to", () => {
  const [cache, coded, q, all] = [filled(300, "f16"), filled(300), numbers(256, 9), Uint32Array.from({ length: 300 }, (_, token) => token)];
  assert.deepEqual(coded.attendSelected(1, q, [all, all]), coded.attend(1, q));
  assert.notDeepEqual(coded.attendSelected(1, q, [all, Uint32Array.of(3, 200)]), coded.attend(1, q));
  // The result is the value of the only token.
  const lists = [Uint32Array.of(17), Uint32Array.of(250)], out = new Float32Array(256);
  assert.equal(cache.attendSelected(0, q, lists, out), out);
  for (let head = 0; head < SHAPE.heads; head++) {
    const kvHead = Math.floor(head / 2), [token] = lists[kvHead];
    cache.values(0, kvHead, token, token + 1).forEach((want, i) => assert.ok(Math.abs(out[64 * head + i] - want) < 1e-6, `head ${head}`));
  }
  assert.deepEqual(cache.attendSelected(0, q, [Uint32Array.of(), Uint32Array.of()]), new Float32Array(256));
  refused(() => cache.attendSelected(0, q, [all]), "selected tokens: 1 lists for layer 0 are not valid: expected 2, one per KV head");
  refused(() => cache.attendSelected(0, q, [all, [1]]), "tokens[1] is of type Array, expected Uint32Array");
  refused(() => cache.attendSelected(0, q, all), "tokens is of type Uint32Array, expected Array");
  assert.throws(() => cache.attendSelected(0, q, [Uint32Array.of(5, 4), all]), TqkvError);
});

test("values may have another length than keys, and layers another shape", () => {
  const cache = new tqkv.Cache({ layers: 1, heads: 2, headDim: 64, valueDim: 32, kv: "s4" });
  cache.append(0, numbers(128), numbers(64));
  assert.equal(cache.attend(0, numbers(128)).length, 64);
  const layers = new tqkv.Cache({ layers: 2, heads: 2, kvHeads: 2, headDim: 64, kv: "layer-shapes=2x64/1x128" });
  layers.append(1, numbers(128), numbers(128));
  refused(() => layers.attend(1, numbers(256)), "out has 128 values, expected 256");
  assert.equal(layers.attend(1, numbers(256), new Float32Array(256)).length, 256);
});

test("a cache counts, forks and rolls back", () => {
  const cache = filled(300), q = numbers(256, 9), before = cache.attend(0, q);
  const { tokens, sinks, hot, warm, allocatedBytes, ...rest } = cache.stats();
  assert.deepEqual({ tokens, sinks, hot, warm }, { tokens: 300, sinks: 4, hot: 32, warm: 264 });
  assert.deepEqual([cache.length, cache.bytes, Object.keys(rest).length], [300, allocatedBytes, 7]);
  const f16 = filled(300, "f16");
  assert.ok(cache.bytes < 0.5 * f16.bytes, `${cache.bytes} of ${f16.bytes}`);

  const fork = cache.fork();
  assert.ok(fork.stats().sharedBytes > 0);
  for (const layer of [0, 1]) fork.append(layer, numbers(128), numbers(128));
  assert.deepEqual([cache.length, fork.length], [300, 301]);
  assert.notDeepEqual(fork.attend(0, q), before);
  fork.truncate(300);
  assert.deepEqual([fork.length, fork.attend(0, q)], [300, before]);
  cache.free();
  assert.deepEqual(fork.attend(0, q), before);
});

test("a snapshot goes on bit for bit", () => {
  const [cache, other] = [filled(500), filled(3, undefined, 77)];
  const bytes = cache.snapshot();
  other.restore(bytes);
  assert.deepEqual([other.length, other.snapshot()], [500, bytes]);
  for (const one of [cache, other]) one.append(0, numbers(128, 5), numbers(128, 6));
  assert.deepEqual(other.attend(0, numbers(256)), cache.attend(0, numbers(256)));

  const damaged = bytes.slice();
  damaged[damaged.length >> 1] ^= 1;
  const before = other.snapshot();
  refused(() => other.restore(damaged), "snapshot: damaged (CRC-32 does not match)", "TQKV_BAD_SNAPSHOT");
  refused(() => other.restore(bytes.subarray(0, 400)), "snapshot: cut short", "TQKV_BAD_SNAPSHOT");
  refused(() => other.restore(Array.from(bytes)), "snapshot is of type Array, expected Uint8Array");
  assert.throws(() => new tqkv.Cache({ ...SHAPE, kv: "s4" }).restore(bytes), /snapshot: of a cache with another/);
  assert.deepEqual(other.snapshot(), before);
});

test("results are copies", () => {
  const codec = new tqkv.Codec("s4", 64), x = numbers(64), blocks = codec.encode(x), kept = blocks.slice();
  const y = codec.decode(blocks), cache = filled(40), out = cache.attend(0, numbers(256)), first = out.slice();
  for (let i = 0; i < 50; i++) {
    codec.encode(numbers(64, i));
    codec.decode(codec.encode(numbers(64, i)));
    cache.attend(1, numbers(256, i));
  }
  assert.deepEqual([blocks, out, x], [kept, first, numbers(64)]);
  assert.deepEqual(codec.decode(kept), y);
});

test("what is not accepted is named", () => {
  const codec = new tqkv.Codec("s4", 128), cache = filled(10), x = numbers(128), q = numbers(256);
  refused(
    () => new tqkv.Codec("s4", 63),
    "head dim not supported: accepted are multiples of 16 from 16 to 1024 of the form n * 2^k with n = 1, 12, 20, 28 or 36",
  );
  refused(() => new tqkv.Codec("s4", "128"), "dim is 128, expected a whole number from 0 to 4294967295");
  refused(() => new tqkv.Codec(4, 128), "codec is of type Number, expected String");
  refused(() => new tqkv.Codec("s4\0", 128), "codec has a zero character, expected none");
  refused(() => new tqkv.Codec("t4,t2", 128), 'codec "t4,t2" is not valid: expected one codec, and seed=, scale-mode= or effort=');
  refused(() => codec.encode([1, 2]), "x is of type Array, expected Float32Array");
  refused(() => codec.encode(new Float64Array(128)), "x is of type Float64Array, expected Float32Array");
  refused(() => codec.encode(numbers(130)), "x has 130 values, expected a multiple of 128");
  refused(
    () => codec.encode(Float32Array.from({ length: 256 }, (_, i) => (i < 200 ? 1 : NaN))),
    "vector 1: the vector holds NaN or an infinity; only finite values can be encoded", "TQKV_BAD_VECTOR",
  );
  refused(() => codec.decode(x), "blocks is of type Float32Array, expected Uint8Array");
  refused(() => codec.decode(new Uint8Array(67)), "blocks has 67 bytes, expected a multiple of 66");
  refused(() => codec.scores(numbers(64), new Uint8Array(66)), "q has 64 values, expected 128");
  refused(() => codec.scores(undefined, new Uint8Array(66)), "q is of type Undefined, expected Float32Array");

  refused(() => new tqkv.Cache(), "options are of type Undefined, expected Object");
  refused(() => new tqkv.Cache({ ...SHAPE, hot: 3 }), "option hot is not known, expected layers, heads, kvHeads, headDim, valueDim, kv");
  refused(() => new tqkv.Cache({ layers: 1, heads: 2 }), "headDim is undefined, expected a whole number from 0 to 4294967295");
  refused(() => new tqkv.Cache({ ...SHAPE, kvHeads: 1.5 }), "kvHeads is 1.5, expected a whole number from 0 to 4294967295");
  refused(() => new tqkv.Cache({ ...SHAPE, kv: ["s4"] }), "kv is of type Array, expected String");
  refused(() => new tqkv.Cache({ ...SHAPE, kv: "spill=100:/tmp" }), "cannot spill cold pages: /tmp: a spill file needs a Unix system", "TQKV_IO");
  assert.throws(() => new tqkv.Cache({ ...SHAPE, kv: "q4" }), /kv=q4 is not valid: expected kv=PRESET\|K,V/);
  assert.throws(() => new tqkv.Cache({ ...SHAPE, kv: "warm=3" }), /warm/);
  refused(() => cache.append(0, x, numbers(127)), "v has 127 values, expected 128");
  refused(() => cache.append(0, x), "v is of type Undefined, expected Float32Array");
  refused(() => cache.append(-1, x, x), "layer is -1, expected a whole number from 0 to 4294967295");
  refused(() => cache.append(2, x, x), "layer 2 is out of range: the cache has 2 layers");
  refused(
    () => cache.append(0, x, new Float32Array(128).fill(Infinity)),
    "layer 0, value of token 10, KV head 0: values must be finite and the norm at most 6830.2437", "TQKV_BAD_VECTOR",
  );
  refused(() => cache.attend(0, numbers(100)), "q has 100 values, expected 256");
  refused(() => cache.attend(0, q, new Float32Array(255)), "out has 255 values, expected 256");
  refused(() => cache.attend(0, q, []), "out is of type Array, expected Float32Array");
  refused(() => cache.attendPrefill(0, numbers(300), x, x), "q has 300 values, expected 256");
  refused(() => cache.truncate("all"), "length is all, expected a whole number from 0 to 4294967295");
  refused(() => cache.keys(0, 0, 5, 3), "tokens 5 to 3: the end is before the start");
  refused(() => cache.values(0, 9, 0, 3), "KV head 9 is out of range: layer 0 has 2");
  refused(() => cache.keys(0, 0, 0, 4e9), "no memory: the system cannot provide 1024000000000 bytes", "TQKV_NO_MEMORY");
  refused(() => new tqkv.Cache(SHAPE).attend(0, q), "layer 0 holds no token yet: append before attending", "TQKV_EMPTY");
  assert.equal(cache.length, 10);
});

test("what is freed is not used again", () => {
  const codec = new tqkv.Codec("s4", 128), cache = filled(10);
  for (const one of [codec, cache]) {
    one.free();
    one.free();
  }
  refused(() => codec.encode(numbers(128)), "the codec is freed, expected one that is not");
  for (const use of [() => cache.length, () => cache.append(0, numbers(128), numbers(128)), () => cache.snapshot(), () => cache.fork()])
    refused(use, "the cache is freed, expected one that is not");
  const other = filled(1);
  if (Symbol.dispose) other[Symbol.dispose]();
  else other.free();
  refused(() => other.stats(), "the cache is freed, expected one that is not");
});

test("what is freed makes room: the memory does not grow", async () => {
  const own = await load(), [instance] = instances.slice(-2);
  const [k, q] = [numbers(200 * 128), numbers(256)];
  const cycle = () => {
    const cache = new own.Cache({ ...SHAPE, kv: "s4 hot=16" }), codec = new own.Codec("t2", 128);
    for (const layer of [0, 1]) cache.append(layer, k, k);
    cache.attend(0, q);
    const fork = cache.fork();
    fork.restore(cache.snapshot());
    codec.decode(codec.encode(q));
    assert.throws(() => cache.attend(0, k), TqkvError);
    for (const one of [fork, cache, codec]) one.free();
  };
  for (let i = 0; i < 20; i++) cycle();
  const bytes = memory(instance).byteLength;
  for (let i = 0; i < 500; i++) cycle();
  assert.equal(memory(instance).byteLength, bytes);
});

test("a memory that grows within a call leaves no stale view", async () => {
  const own = await load(), [instance] = instances.slice(-2);
  const codec = new own.Codec("s4", 64), x = numbers(64 * 40000), bytes = memory(instance).byteLength;
  const blocks = codec.encode(x), y = codec.decode(blocks);
  assert.ok(memory(instance).byteLength > bytes + x.byteLength);
  for (const row of [0, 1, 20000, 39999]) {
    const one = codec.encode(x.slice(64 * row, 64 * (row + 1)));
    assert.deepEqual(blocks.slice(34 * row, 34 * (row + 1)), one);
    assert.deepEqual(y.slice(64 * row, 64 * (row + 1)), codec.decode(one));
  }
});

test("after a call that did not return, all are refused", async () => {
  const own = await load(), [instance] = instances.slice(-2);
  const cache = new own.Cache(SHAPE);
  new Uint8Array(memory(instance)).fill(255);
  assert.throws(() => cache.append(0, numbers(128), numbers(128)), /^TqkvError: a defect of tqkv: /);
  assert.throws(() => cache.length, /^TqkvError: an earlier call failed inside tqkv \(.+\): load it again$/);
  cache.free();
  assert.equal(filled(3).length, 3);
});

test("the module comes from a file, an address, bytes, or compiled", async (t) => {
  const bytes = readFileSync(new URL("../tqkv.wasm", import.meta.url));
  const server = createServer((request, response) => response.writeHead(request.url === "/tqkv.wasm" ? 200 : 404).end(bytes));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const address = `http://127.0.0.1:${server.address().port}`;
  for (const source of [new URL("../tqkv.wasm", import.meta.url), `${address}/tqkv.wasm`, bytes, new WebAssembly.Module(bytes)]) {
    const own = await load(source);
    assert.equal(own.version, JSON.parse(file("../package.json")).version);
    assert.deepEqual(own.codecs, tqkv.codecs);
  }
  await assert.rejects(load(`${address}/other.wasm`), { message: `${address}/other.wasm: 404 Not Found` });
  await assert.rejects(load(new Uint8Array(8)), WebAssembly.CompileError);
});

test("the types have each member, and the first program of the README runs", async () => {
  const types = file("../index.d.ts");
  for (const { prototype } of [tqkv.Codec, tqkv.Cache])
    for (const name of Object.getOwnPropertyNames(prototype).filter((name) => name !== "constructor"))
      assert.match(types, new RegExp(`^  (readonly )?${name}[(:]`, "m"));
  for (const name of Object.keys(filled(1).stats())) assert.match(types, new RegExp(`^  ${name}: number;`, "m"));
  const program = /```js\n([^]*?)```/.exec(file("../README.md"))[1].replace('"tqkv"', JSON.stringify(new URL("../index.js", import.meta.url)));
  const lines = [], print = { log: (...line) => lines.push(line.join(" ")) };
  const AsyncFunction = (async () => {}).constructor;
  await new AsyncFunction("console", program.replace(/^import (.*) from (.*);$/m, "const $1 = await import($2);"))(print);
  assert.deepEqual(lines, [...program.matchAll(/\/\/ prints (.*)/g)].map(([, line]) => line));
});
