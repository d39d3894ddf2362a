// tqkv for JavaScript. The module `tqkv.wasm` is the C interface of tqkv (host/capi) for WebAssembly; this file copies arrays into its memory
// and out of it. Views of that memory are made for each use, because a call may replace its buffer by a larger one.

const OK = 0, F32 = 0, MOST = 2 ** 32 - 1;
// The fields of `tqkv_cache_stats`, in order.
const STATS = [
  "tokens", "sinks", "hot", "waitingKeys", "warm", "cold", "evicted", "centredHeads", "mappedHeads", "allocatedBytes", "spilledBytes", "sharedBytes",
];
const SHAPE = { layers: "layers", heads: "heads", kvHeads: "kv-heads", headDim: "head-dim", valueDim: "value-dim" };
// A module that imports a function (i32, i32, i32) -> i32 and exports it. Only what a module exports can be put into the table of another.
const TRAMPOLINE = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 8, 1, 96, 3, 127, 127, 127, 1, 127, 2, 7, 1, 1, 101, 1, 102, 0, 0, 7, 5, 1, 1, 102, 0, 0,
);
const encoder = new TextEncoder(), decoder = new TextDecoder();

export class TqkvError extends Error {
  constructor(message, code = "TQKV_BAD_ARGUMENT") {
    super(message);
    this.name = "TqkvError";
    this.code = code;
  }
}

const typeOf = (x) => Object.prototype.toString.call(x).slice(8, -1);

function array(what, x, type) {
  // The name, and not `instanceof`, because arrays of another window have another constructor.
  if (typeOf(x) !== type) throw new TqkvError(`${what} is of type ${typeOf(x)}, expected ${type}`);
  return x;
}

function whole(what, x) {
  if (!Number.isInteger(x) || x < 0 || x > MOST) throw new TqkvError(`${what} is ${String(x)}, expected a whole number from 0 to ${MOST}`);
  return x;
}

function words(what, x) {
  if (typeof x !== "string") throw new TqkvError(`${what} is of type ${typeOf(x)}, expected String`);
  if (x.includes("\0")) throw new TqkvError(`${what} has a zero character, expected none`);
  return x;
}

/// The part of WASI that the module may call. It has no files, no arguments and no variables.
function system(library) {
  const view = () => new DataView(library.buffer);
  const empty = (count, size) => {
    view().setUint32(count, 0, true);
    view().setUint32(size, 0, true);
    return OK;
  };
  const calls = {
    args_sizes_get: empty,
    args_get: () => OK,
    environ_sizes_get: empty,
    environ_get: () => OK,
    clock_time_get(clock, _precision, time) {
      const origin = clock === 0 ? performance.timeOrigin : 0;
      view().setBigUint64(time, BigInt(Math.round((origin + performance.now()) * 1e6)), true);
      return OK;
    },
    random_get(at, length) {
      crypto.getRandomValues(new Uint8Array(library.buffer, at >>> 0, length));
      return OK;
    },
    // The text of a panic.
    fd_write(_file, vectors, count, written) {
      let total = 0;
      for (let i = 0; i < count; i++) {
        const at = (vectors >>> 0) + 8 * i;
        const length = view().getUint32(at + 4, true);
        library.said += decoder.decode(new Uint8Array(library.buffer, view().getUint32(at, true), length));
        total += length;
      }
      view().setUint32(written, total, true);
      return OK;
    },
    sched_yield: () => OK,
    // "Bad file descriptor" ends the search for open folders.
    fd_prestat_get: () => 8,
    proc_exit(code) {
      throw new Error(`exit ${code}`);
    },
  };
  // "Function not implemented"
  return (name) => calls[name] ?? (() => 52);
}

/// Memory of one call, which is freed after it.
class Frame {
  constructor(library) {
    this.library = library;
    this.taken = [];
  }

  room(bytes) {
    const at = bytes > MOST ? 0 : this.library.invoke("malloc", Math.max(bytes, 1)) >>> 0;
    if (at === 0) throw new TqkvError(`no memory: the system cannot provide ${bytes} bytes`, "TQKV_NO_MEMORY");
    this.taken.push(at);
    return at;
  }

  put(x) {
    const at = this.room(x.byteLength);
    new x.constructor(this.library.buffer, at, x.length).set(x);
    return at;
  }

  text(text) {
    return this.put(encoder.encode(`${text}\0`));
  }

  /// The number or the handle that a call writes to its last argument.
  result(name, ...args) {
    const place = this.room(4);
    this.library.ask(name, ...args, place);
    return this.numbers(place, 1)[0];
  }

  numbers(at, length) {
    return new Uint32Array(this.library.buffer, at, length).slice();
  }

  floats(at, out) {
    out.set(new Float32Array(this.library.buffer, at, out.length));
    return out;
  }
}

class Library {
  said = "";
  fault = "";

  async start(module) {
    const call = system(this);
    const imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module)) (imports[from] ??= {})[name] = call(name);
    this.exports = (await WebAssembly.instantiate(module, imports)).exports;
    this.exports.__wasm_call_ctors();
    const e = { f: (_user, at, length) => this.move(at >>> 0, length >>> 0) };
    const { f } = (await WebAssembly.instantiate(TRAMPOLINE, { e })).instance.exports;
    const table = this.exports.__indirect_function_table;
    this.callback = table.grow(1);
    table.set(this.callback, f);
    return this;
  }

  get buffer() {
    return this.exports.memory.buffer;
  }

  textAt(at) {
    const bytes = new Uint8Array(this.buffer, at >>> 0);
    return decoder.decode(bytes.slice(0, bytes.indexOf(0)));
  }

  /// A call of the module. After one that did not return, its memory is not to be trusted.
  invoke(name, ...args) {
    if (this.fault) throw new TqkvError(`an earlier call failed inside tqkv (${this.fault}): load it again`, "TQKV_PANIC");
    this.said = "";
    try {
      return this.exports[name](...args);
    } catch (error) {
      this.fault = this.said.trim().replace(/\s*\n\s*/g, " ") || error.message;
      throw new TqkvError(`a defect of tqkv: ${this.fault}`, "TQKV_PANIC");
    }
  }

  /// A call that returns a status.
  ask(name, ...args) {
    const status = this.invoke(name, ...args);
    if (status !== OK) throw new TqkvError(this.textAt(this.invoke("tqkv_last_error")), this.textAt(this.invoke("tqkv_status_name", status)));
  }

  run(work) {
    const frame = new Frame(this);
    try {
      return work(frame);
    } finally {
      if (!this.fault) for (const at of frame.taken) this.invoke("free", at);
    }
  }

  /// A call that moves bytes of a snapshot by `move(at, length)`, which returns what the C interface expects of such a function.
  stream(name, handle, move) {
    let failure;
    // An exception must not pass through the module.
    this.move = (at, length) => {
      try {
        return move(at, length);
      } catch (error) {
        failure = error;
        return -1;
      }
    };
    try {
      this.ask(name, handle, this.callback, 0);
    } catch (error) {
      throw failure ?? error;
    }
  }
}

/// What stands for an object of the module: its address, until it is freed.
class Handle {
  constructor(library, what, free, at) {
    Object.assign(this, { library, what, release: free, address: at });
  }

  get at() {
    if (this.address === 0) throw new TqkvError(`the ${this.what} is freed, expected one that is not`);
    return this.address;
  }

  free() {
    const at = this.address;
    this.address = 0;
    if (at !== 0 && !this.library.fault) this.library.invoke(this.release, at);
  }
}

const dispose = Symbol.dispose ?? Symbol("dispose");

const codecClass = (library) => class Codec {
  #handle;

  constructor(codec, dim) {
    words("codec", codec);
    this.dim = whole("dim", dim);
    const at = library.run((frame) => frame.result("tqkv_codec_create", frame.text(codec), dim));
    this.#handle = new Handle(library, "codec", "tqkv_codec_free", at);
    this.blockBytes = library.run((frame) => frame.result("tqkv_codec_block_bytes", at));
    Object.freeze(this);
  }

  encode(x) {
    const vectors = this.#count("x", array("x", x, "Float32Array"), this.dim, "values");
    return library.run((frame) => {
      const bytes = vectors * this.blockBytes, from = frame.put(x), to = frame.room(bytes);
      library.ask("tqkv_codec_encode", this.#handle.at, from, x.length, to, bytes);
      return new Uint8Array(library.buffer, to, bytes).slice();
    });
  }

  decode(blocks) {
    const values = this.dim * this.#blocks(blocks);
    return library.run((frame) => {
      const from = frame.put(blocks), to = frame.room(4 * values);
      library.ask("tqkv_codec_decode", this.#handle.at, from, blocks.length, to, values);
      return frame.floats(to, new Float32Array(values));
    });
  }

  scores(q, blocks) {
    array("q", q, "Float32Array");
    const count = this.#blocks(blocks);
    return library.run((frame) => {
      const query = frame.put(q), from = frame.put(blocks), to = frame.room(4 * count);
      library.ask("tqkv_codec_scores", this.#handle.at, query, q.length, from, blocks.length, to, count);
      return frame.floats(to, new Float32Array(count));
    });
  }

  free() {
    this.#handle.free();
  }

  [dispose]() {
    this.free();
  }

  #blocks(blocks) {
    return this.#count("blocks", array("blocks", blocks, "Uint8Array"), this.blockBytes, "bytes");
  }

  #count(what, x, each, unit) {
    if (x.length % each !== 0) throw new TqkvError(`${what} has ${x.length} ${unit}, expected a multiple of ${each}`);
    return x.length / each;
  }
};

/// A cache that exists already, for the constructor.
class Made {
  constructor(at, shape) {
    Object.assign(this, { at, shape });
  }
}

/// The text of a cache, and the numbers that lengths of results follow from.
function read(options) {
  if (typeof options !== "object" || options === null) throw new TqkvError(`options are of type ${typeOf(options)}, expected Object`);
  const { kv = "", ...shape } = options;
  const text = [];
  for (const [name, x] of Object.entries(shape)) {
    if (!(name in SHAPE)) throw new TqkvError(`option ${name} is not known, expected ${Object.keys(SHAPE).join(", ")}, kv`);
    if (x !== undefined) text.push(`${SHAPE[name]}=${whole(name, x)}`);
  }
  for (const name of ["layers", "heads", "headDim"]) whole(name, shape[name]);
  const { heads, headDim, valueDim = headDim } = shape;
  return { text: [...text, words("kv", kv)].join(" "), shape: { heads, headDim, valueDim } };
}

const cacheClass = (library) => class Cache {
  #handle;
  #shape;

  constructor(options) {
    const { at, shape } = options instanceof Made ? options : Cache.#create(options);
    this.#handle = new Handle(library, "cache", "tqkv_free", at);
    this.#shape = shape;
  }

  static #create(options) {
    const { text, shape } = read(options);
    return new Made(library.run((frame) => frame.result("tqkv_create", frame.text(text))), shape);
  }

  append(layer, k, v) {
    whole("layer", layer);
    this.#run({ k, v }, (frame, at) => {
      library.ask("tqkv_append", this.#handle.at, layer, F32, at.k, k.length, at.v, v.length);
    });
  }

  attend(layer, q, out = new Float32Array(this.#shape.heads * this.#shape.valueDim)) {
    whole("layer", layer);
    array("out", out, "Float32Array");
    return this.#run({ q }, (frame, at) => {
      const to = frame.room(out.byteLength);
      library.ask("tqkv_attend", this.#handle.at, layer, F32, at.q, q.length, F32, to, out.length);
      return frame.floats(to, out);
    });
  }

  attendSelected(layer, q, tokens, out = new Float32Array(this.#shape.heads * this.#shape.valueDim)) {
    whole("layer", layer);
    array("out", out, "Float32Array");
    array("tokens", tokens, "Array").forEach((list, i) => array(`tokens[${i}]`, list, "Uint32Array"));
    return this.#run({ q }, (frame, at) => {
      const lengths = Uint32Array.from(tokens, (list) => list.length), chosen = new Uint32Array(lengths.reduce((sum, length) => sum + length, 0));
      tokens.reduce((used, list) => (chosen.set(list, used), used + list.length), 0);
      const to = frame.room(out.byteLength), lists = [frame.put(chosen), chosen.length, frame.put(lengths), lengths.length];
      library.ask("tqkv_attend_selected", this.#handle.at, layer, F32, at.q, q.length, ...lists, F32, to, out.length);
      return frame.floats(to, out);
    });
  }

  attendPrefill(layer, q, k, v, out) {
    whole("layer", layer);
    const { heads, headDim, valueDim } = this.#shape;
    // The library refuses queries of a part of a token.
    out ??= new Float32Array(Math.floor(array("q", q, "Float32Array").length / (heads * headDim)) * heads * valueDim);
    array("out", out, "Float32Array");
    return this.#run({ q, k, v }, (frame, at) => {
      const to = frame.room(out.byteLength);
      library.ask(
        "tqkv_prefill", this.#handle.at, layer, F32, at.q, q.length, F32, at.k, k.length, at.v, v.length, F32, to, out.length,
      );
      return frame.floats(to, out);
    });
  }

  keys(layer, kvHead, start, end) {
    return this.#rows("tqkv_keys", this.#shape.headDim, layer, kvHead, start, end);
  }

  values(layer, kvHead, start, end) {
    return this.#rows("tqkv_values", this.#shape.valueDim, layer, kvHead, start, end);
  }

  truncate(length) {
    library.ask("tqkv_truncate", this.#handle.at, whole("length", length));
  }

  reset() {
    library.ask("tqkv_reset", this.#handle.at);
  }

  fork() {
    return new Cache(new Made(library.run((frame) => frame.result("tqkv_fork", this.#handle.at)), this.#shape));
  }

  snapshot() {
    let bytes = new Uint8Array(this.bytes), used = 0;
    library.stream("tqkv_snapshot", this.#handle.at, (at, length) => {
      if (used + length > bytes.length) {
        const larger = new Uint8Array(2 * (used + length));
        larger.set(bytes);
        bytes = larger;
      }
      bytes.set(new Uint8Array(library.buffer, at, length), used);
      used += length;
      return OK;
    });
    return bytes.slice(0, used);
  }

  restore(snapshot) {
    array("snapshot", snapshot, "Uint8Array");
    let used = 0;
    library.stream("tqkv_restore", this.#handle.at, (at, length) => {
      const part = snapshot.subarray(used, used + length);
      new Uint8Array(library.buffer, at, part.length).set(part);
      used += part.length;
      return part.length;
    });
  }

  stats() {
    return library.run((frame) => {
      const place = frame.room(4 * STATS.length);
      library.ask("tqkv_stats", this.#handle.at, place);
      const numbers = frame.numbers(place, STATS.length);
      return Object.fromEntries(STATS.map((name, i) => [name, numbers[i]]));
    });
  }

  get length() {
    return library.run((frame) => frame.result("tqkv_len", this.#handle.at));
  }

  get bytes() {
    return this.stats().allocatedBytes;
  }

  free() {
    this.#handle.free();
  }

  [dispose]() {
    this.free();
  }

  /// Runs `work` with the addresses of copies of arrays.
  #run(arrays, work) {
    for (const [what, x] of Object.entries(arrays)) array(what, x, "Float32Array");
    return library.run((frame) => work(frame, Object.fromEntries(Object.entries(arrays).map(([what, x]) => [what, frame.put(x)]))));
  }

  #rows(name, dim, layer, kvHead, start, end) {
    const range = Object.entries({ layer, kvHead, start, end }).map(([what, x]) => whole(what, x));
    const values = Math.max(end - start, 0) * dim;
    return library.run((frame) => {
      const to = frame.room(4 * values);
      library.ask(name, this.#handle.at, ...range, F32, to, values);
      return frame.floats(to, new Float32Array(values));
    });
  }
};

/// The bytes of a file or of an address.
async function fetched(source) {
  const url = new URL(source, import.meta.url);
  // Node fetches no files. Without an import, which a bundler for browsers would refuse.
  const files = url.protocol === "file:" && globalThis.process?.getBuiltinModule?.("node:fs");
  if (files) return files.readFileSync(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

export async function load(source = new URL("./tqkv.wasm", import.meta.url)) {
  if (typeof source === "string" || typeOf(source) === "URL") source = await fetched(source);
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  const library = await new Library().start(module);
  const codecs = Array.from({ length: library.invoke("tqkv_codec_count") }, (_, i) => library.textAt(library.invoke("tqkv_codec_name", i)));
  return { Codec: codecClass(library), Cache: cacheClass(library), codecs, version: library.textAt(library.invoke("tqkv_version")) };
}
