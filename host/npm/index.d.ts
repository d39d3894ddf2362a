/// <reference lib="esnext.disposable" />

/** What the library refuses: one line that says what was wrong and what is accepted. */
export class TqkvError extends Error {
  /** The status of the C interface, such as "TQKV_BAD_ARGUMENT". */
  readonly code: string;
}

/** The shape of a model, and how its cache keeps tokens. */
export interface CacheOptions {
  layers: number;
  heads: number;
  /** As many as `heads` where it is left out. */
  kvHeads?: number;
  headDim: number;
  /** That of `headDim` where it is left out. */
  valueDim?: number;
  /** The words of docs/options.md, such as "t4,t2 hot=32". Files (`spill=`, `map=FILE`) do not exist in WebAssembly. */
  kv?: string;
}

/** Tokens by tier, and bytes. Token counts are of the first KV head that keeps any. */
export interface CacheStats {
  tokens: number;
  sinks: number;
  hot: number;
  waitingKeys: number;
  warm: number;
  cold: number;
  evicted: number;
  centredHeads: number;
  mappedHeads: number;
  allocatedBytes: number;
  spilledBytes: number;
  sharedBytes: number;
}

/** One codec at one head dim. */
export interface Codec {
  readonly dim: number;
  readonly blockBytes: number;
  /** Encodes vectors, back to back, to as many blocks. */
  encode(x: Float32Array): Uint8Array;
  decode(blocks: Uint8Array): Float32Array;
  /** Dot products of one query with blocks, which are not decoded. */
  scores(q: Float32Array, blocks: Uint8Array): Float32Array;
  /** Frees its memory. Later calls are refused. */
  free(): void;
  [Symbol.dispose](): void;
}

/** The cache of one sequence. Arrays are copied, so the program may write to its own afterwards. */
export interface Cache {
  /** Tokens in the first layer that keeps any. */
  readonly length: number;
  /** Bytes of keys and values, spare capacity included. */
  readonly bytes: number;
  /** Appends tokens to one layer: `k` is [tokens, kvHeads, headDim], after RoPE, and `v` is [tokens, kvHeads, valueDim]. */
  append(layer: number, k: Float32Array, v: Float32Array): void;
  /** Attends from the newest position of a layer. `q` is [heads, headDim], and the result [heads, valueDim]; it goes to `out` where one is passed. */
  attend(layer: number, q: Float32Array, out?: Float32Array): Float32Array;
  /**
   * Attends from the newest position of a layer to some tokens only, as `attend` does to all. `tokens` has a list for each KV head: positions that
   * the newest one sees, ascending.
   */
  attendSelected(layer: number, q: Float32Array, tokens: Uint32Array[], out?: Float32Array): Float32Array;
  /** Appends a prompt and attends causally with its queries, which are [tokens, heads, headDim]. */
  attendPrefill(layer: number, q: Float32Array, k: Float32Array, v: Float32Array, out?: Float32Array): Float32Array;
  /** Keys of the tokens from `start` to `end` (not included) as they are kept: [end - start, headDim]. */
  keys(layer: number, kvHead: number, start: number, end: number): Float32Array;
  /** Values: [end - start, valueDim]. */
  values(layer: number, kvHead: number, start: number, end: number): Float32Array;
  /** Drops the tokens from index `length` on. */
  truncate(length: number): void;
  /** Empties the cache. */
  reset(): void;
  /** Another cache with the same tokens, which shares pages until one of the two writes to them. */
  fork(): Cache;
  /** All tokens, in the format of every interface of tqkv. */
  snapshot(): Uint8Array;
  /** Replaces the tokens by those of a snapshot of a cache with the same options. */
  restore(snapshot: Uint8Array): void;
  stats(): CacheStats;
  /** Frees its memory. Later calls are refused. */
  free(): void;
  [Symbol.dispose](): void;
}

export interface Tqkv {
  /** A codec for vectors of `dim` values: "s4", or "t4 seed=7 effort=best". */
  Codec: new (codec: string, dim: number) => Codec;
  Cache: new (options: CacheOptions) => Cache;
  /** The names of all codecs. */
  codecs: string[];
  version: string;
}

/**
 * Loads the library: from `tqkv.wasm` next to this file, or from another address, its bytes or a compiled module. Each call makes one with memory
 * of its own.
 */
export function load(source?: string | URL | BufferSource | WebAssembly.Module): Promise<Tqkv>;
