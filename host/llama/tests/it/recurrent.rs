//! A small model with a recurrent state, as a GGUF file: one layer of short convolutions, one of attention.

use std::path::{Path, PathBuf};

const DIM: u64 = 128;
const HEAD: u64 = 64;
const INNER: u64 = 64;
const WORDS: u64 = 16;
const TAPS: u64 = 3;

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The settings with the numbers of their types in GGUF, and how many they are.
fn settings() -> (u64, Vec<u8>) {
    let (mut bytes, mut count) = (Vec::new(), 0);
    let mut put = |key: &str, kind: u32, value: &[u8]| {
        text(&mut bytes, key);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
        count += 1;
    };
    for (key, value) in [("general.architecture", "lfm2"), ("tokenizer.ggml.model", "no_vocab")] {
        let mut named = Vec::new();
        text(&mut named, value);
        put(key, 8, &named);
    }
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 1024),
        ("embedding_length", DIM),
        ("feed_forward_length", INNER),
        ("attention.head_count", DIM / HEAD),
        ("shortconv.l_cache", TAPS),
        ("vocab_size", WORDS),
    ] {
        put(&format!("lfm2.{key}"), 4, &(value as u32).to_le_bytes());
    }
    for (key, value) in [("attention.layer_norm_rms_epsilon", 1e-5f32), ("rope.freq_base", 1e6)] {
        put(&format!("lfm2.{key}"), 6, &value.to_le_bytes());
    }
    // An array of two 32-bit integers: the first layer has no KV head.
    let heads = [5u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), [0, 0, 0, 0, 1, 0, 0, 0].to_vec()];
    put("lfm2.attention.head_count_kv", 9, &heads.concat());
    (count, bytes)
}

/// Names and shapes of the tensors, the fastest dimension first.
fn tensors() -> Vec<(String, Vec<u64>)> {
    let mut all = vec![
        ("token_embd.weight".to_owned(), vec![DIM, WORDS]),
        ("token_embd_norm.weight".to_owned(), vec![DIM]),
    ];
    let both: &[(&str, &[u64])] = &[
        ("attn_norm", &[DIM]),
        ("ffn_norm", &[DIM]),
        ("ffn_gate", &[DIM, INNER]),
        ("ffn_up", &[DIM, INNER]),
        ("ffn_down", &[INNER, DIM]),
    ];
    let first: &[(&str, &[u64])] = &[
        ("shortconv.conv", &[TAPS, DIM]),
        ("shortconv.in_proj", &[DIM, 3 * DIM]),
        ("shortconv.out_proj", &[DIM, DIM]),
    ];
    let second: &[(&str, &[u64])] = &[
        ("attn_q", &[DIM, DIM]),
        ("attn_k", &[DIM, HEAD]),
        ("attn_v", &[DIM, HEAD]),
        ("attn_output", &[DIM, DIM]),
        ("attn_q_norm", &[HEAD]),
        ("attn_k_norm", &[HEAD]),
    ];
    for (layer, own) in [first, second].into_iter().enumerate() {
        for (name, shape) in both.iter().chain(own) {
            all.push((format!("blk.{layer}.{name}.weight"), shape.to_vec()));
        }
    }
    all
}

/// Writes the file, and returns its path.
pub(crate) fn model(folder: &Path) -> PathBuf {
    let (tensors, (count, settings)) = (tensors(), settings());
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(count.to_le_bytes());
    file.extend(settings);
    let mut offset = 0u64;
    for (name, shape) in &tensors {
        text(&mut file, name);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| file.extend(n.to_le_bytes()));
        // Type 0 is f32.
        file.extend(0u32.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (4 * shape.iter().product::<u64>()).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    let (start, mut state) = (file.len(), 1u32);
    // Evenly between -0.25 and 0.25, the same in each run.
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 25) as f32 - 0.25
    };
    for (name, shape) in &tensors {
        let count: u64 = shape.iter().product();
        let weight = |_| if name.contains("norm") { 1.0 } else { random() };
        file.extend((0..count).map(weight).flat_map(f32::to_le_bytes));
        file.resize(start + (file.len() - start).next_multiple_of(32), 0);
    }
    let path = folder.join("recurrent.gguf");
    std::fs::write(&path, file).expect("a file");
    path
}
