//! Runs a chat in llama-cpp-2 with the KV cache in tqkv codes. `GGML_BACKEND_PATH` names the library,
//! `TQKV_KV` the codecs:
//!
//! ```sh
//! GGML_BACKEND_PATH=.../libggml_tqkv.so TQKV_KV=s4 cargo run --release MODEL.gguf [PROMPT]
//! ```

use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::list_llama_ggml_backend_devices;
use llama_cpp_2::llama_backend::{LlamaBackend, load_backends};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::model::{LlamaChatMessage, LlamaModel};
use llama_cpp_2::sampling::LlamaSampler;
use std::error::Error;
use std::num::NonZeroU32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: chat MODEL.gguf [PROMPT]")?;
    let question = arguments.next().unwrap_or_else(|| "Name three colours.".into());

    // Loads the CPU's back end, then the library that GGML_BACKEND_PATH names.
    load_backends();
    let backend = LlamaBackend::init()?;
    if !list_llama_ggml_backend_devices().iter().any(|device| device.name == "TQKV") {
        return Err("the library is not loaded: set GGML_BACKEND_PATH".into());
    }

    // All layers, so that the device holds the cache of every layer. Weights stay on the CPU.
    let model =
        LlamaModel::load_from_file(&backend, path, &LlamaModelParams::default().with_n_gpu_layers(99))?;
    let chat = [LlamaChatMessage::new("user".into(), question)?];
    let prompt = model.apply_chat_template(&model.chat_template(None)?, &chat, true)?;
    let vocab = model.vocab();
    let tokens = vocab.tokenize(prompt.as_bytes(), false, true);

    // ggml's threads spin while they wait. Give no more threads than idle processors.
    let settings = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(1024))
        .with_n_threads(1)
        .with_n_threads_batch(1);
    let mut context = model.new_context(&backend, settings)?;
    let mut batch = LlamaBatch::new(512, 1);
    batch.add_sequence(&tokens, 0, false)?;
    let mut sampler = LlamaSampler::greedy();
    let mut answer = Vec::new();
    for position in tokens.len()..tokens.len() + 48 {
        context.decode(&mut batch)?;
        let token = sampler.sample(&context, batch.n_tokens() - 1);
        if vocab.is_eog(token) {
            break;
        }
        answer.extend(vocab.token_to_piece(token, false, None));
        batch.clear();
        batch.add(token, i32::try_from(position)?, &[0], true)?;
    }
    println!("{}", String::from_utf8_lossy(&answer));
    Ok(())
}
