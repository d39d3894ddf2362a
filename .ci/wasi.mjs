// Runs a program of wasm32-wasip1 in Node, with this process's arguments and variables, and the whole file system.
//
//     node --no-warnings wasi.mjs PROGRAM.wasm ARGUMENTS..
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const args = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args, env: process.env, preopens: { "/": "/" }, returnOnExit: true });
const module = new WebAssembly.Module(readFileSync(args[0]));
process.exitCode = wasi.start(new WebAssembly.Instance(module, wasi.getImportObject()));
