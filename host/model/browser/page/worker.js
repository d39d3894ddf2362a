// Runs the program in WebAssembly, and sends each of its lines to the page. The part of WASI that it calls stands below.
const SUCCESS = 0, BAD_FILE = 8, MISSING = 52;
const encoder = new TextEncoder(), decoder = new TextDecoder();

class Exit extends Error {}

function wasi(args, line) {
  let memory;
  const view = () => new DataView(memory.buffer);
  const bytes = (at, length) => new Uint8Array(memory.buffer, at, length);
  const words = args.map((word) => encoder.encode(word + "\0"));
  let rest = "";
  const calls = {
    args_sizes_get(count, size) {
      view().setUint32(count, words.length, true);
      view().setUint32(size, words.reduce((sum, word) => sum + word.length, 0), true);
      return SUCCESS;
    },
    args_get(pointers, buffer) {
      for (const word of words) {
        view().setUint32(pointers, buffer, true);
        bytes(buffer, word.length).set(word);
        pointers += 4;
        buffer += word.length;
      }
      return SUCCESS;
    },
    environ_sizes_get(count, size) {
      view().setUint32(count, 0, true);
      view().setUint32(size, 0, true);
      return SUCCESS;
    },
    environ_get: () => SUCCESS,
    clock_time_get(clock, _precision, time) {
      const origin = clock === 0 ? performance.timeOrigin : 0;
      view().setBigUint64(time, BigInt(Math.round((origin + performance.now()) * 1e6)), true);
      return SUCCESS;
    },
    random_get(at, length) {
      crypto.getRandomValues(bytes(at, length));
      return SUCCESS;
    },
    fd_write(file, vectors, count, written) {
      let total = 0;
      for (let i = 0; i < count; i++, vectors += 8) {
        const length = view().getUint32(vectors + 4, true);
        // A line is complete when it is decoded: the program flushes after each.
        rest += decoder.decode(bytes(view().getUint32(vectors, true), length).slice(), { stream: true });
        total += length;
      }
      const lines = rest.split("\n");
      rest = lines.pop();
      if (file === 1) lines.forEach(line);
      view().setUint32(written, total, true);
      return SUCCESS;
    },
    // There are no folders.
    fd_prestat_get: () => BAD_FILE,
    proc_exit(code) {
      throw new Exit(code);
    },
    sched_yield: () => SUCCESS,
  };
  const missing = { get: (known, name) => known[name] ?? (() => MISSING) };
  return { imports: new Proxy(calls, missing), start: (instance) => (memory = instance.exports.memory) };
}

onmessage = async ({ data: { module, args } }) => {
  const host = wasi(args, (line) => postMessage(JSON.parse(line)));
  try {
    // A proxy has no keys of its own, so every import is looked up here.
    const names = WebAssembly.Module.imports(module).map(({ name }) => [name, host.imports[name]]);
    const instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: Object.fromEntries(names) });
    host.start(instance);
    instance.exports._start();
  } catch (error) {
    if (!(error instanceof Exit)) postMessage({ event: "error", message: String(error) });
  }
};
