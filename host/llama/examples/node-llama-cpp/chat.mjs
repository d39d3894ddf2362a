// Runs a model in node-llama-cpp with its KV cache in tqkv codes. GGML_BACKEND_PATH names the library, TQKV_KV
// the codecs:
//
// GGML_BACKEND_PATH=.../libggml_tqkv.so TQKV_KV=s4 node chat.mjs MODEL.gguf [PROMPT]
import {getLlama, LlamaChatSession} from "node-llama-cpp";

const [modelPath, prompt = "Name three colours."] = process.argv.slice(2);
// The package's own binaries have loadable back ends, so nothing is built.
const llama = await getLlama({build: "never"});
const devices = await llama.getGpuDeviceNames();
if (!devices.includes("KV cache in tqkv codes")) throw new Error("the library is not loaded: set GGML_BACKEND_PATH");

// All layers, so that the device holds the cache of every layer. Weights stay on the CPU. The device has no memory other than
// the machine's, so the package would find none for the layers.
const model = await llama.loadModel({modelPath, gpuLayers: 99, ignoreMemorySafetyChecks: true});
// ggml's threads spin while they wait. Give no more threads than idle processors.
const context = await model.createContext({contextSize: 1024, flashAttention: true, threads: 1, ignoreMemorySafetyChecks: true});
const session = new LlamaChatSession({contextSequence: context.getSequence()});
console.log(await session.prompt(prompt, {maxTokens: 48, temperature: 0}));
await llama.dispose();
