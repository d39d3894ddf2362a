// Prints rates of one thread: `node speed/speed.mjs`. `speed.py` does the same in a native build.
import { load } from "../index.js";

const HEADS = 32, KV_HEADS = 8, DIM = 128, TOKENS = 4096;
const tqkv = await load();
const numbers = (length) => Float32Array.from({ length }, (_, i) => Math.sin(0.7 * i * i) + Math.sin(1.3 * i));

// The least seconds of several runs.
function least(work, runs = 9) {
  let best = Infinity;
  for (let run = 0; run < runs; run++) {
    const from = performance.now();
    work();
    best = Math.min(best, performance.now() - from);
  }
  return best / 1e3;
}

const x = numbers(2048 * DIM);
for (const name of ["s4", "t2"]) {
  const codec = new tqkv.Codec(name, DIM);
  console.log(`encode ${name}: ${(2048 / least(() => codec.encode(x)) / 1e3).toFixed(1)} thousand vectors per second`);
}
for (const kv of ["s4", "t4,t2"]) {
  const cache = new tqkv.Cache({ layers: 1, heads: HEADS, kvHeads: KV_HEADS, headDim: DIM, kv });
  const k = numbers(TOKENS * KV_HEADS * DIM), q = numbers(HEADS * DIM), out = new Float32Array(HEADS * DIM);
  cache.append(0, k, k);
  console.log(`attend ${kv}: ${(1e3 * least(() => cache.attend(0, q, out), 30)).toFixed(2)} ms`);
}
