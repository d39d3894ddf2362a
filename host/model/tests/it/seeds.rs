//! Seeds for the fuzzer of GGUF files: small models that load, with each kind of vocabulary and of weights.
//!
//! `TQKV_WRITE_SEEDS=1` writes them to `fuzz/corpus/gguf`.

use std::path::PathBuf;

use crate::gguf::{Stored, Value, file_of};
use tqkv_model::{Model, SpecialTokens};

/// Weights in blocks: the number of their kind, and values and bytes per block.
type Kind = (u32, usize, usize);
const F32: Kind = (0, 1, 4);
const F16: Kind = (1, 1, 2);
const Q4_0: Kind = (2, 32, 18);
const Q4_1: Kind = (3, 32, 20);
const Q8_0: Kind = (8, 32, 34);
const Q4_K: Kind = (12, 256, 144);
const Q5_K: Kind = (13, 256, 176);
const Q6_K: Kind = (14, 256, 210);

#[derive(Clone, Copy, PartialEq)]
enum Vocabulary {
    /// Byte-level BPE with this splitting.
    Bytes(&'static str),
    /// Pieces with scores.
    Pieces,
}

const HEAD_DIM: usize = 16;
const INNER: usize = 8;

/// Name, family, kind of the weights, vocabulary.
const SEEDS: [(&str, &str, Kind, Vocabulary); 7] = [
    ("llama_q4_0", "llama", Q4_0, Vocabulary::Bytes("llama-bpe")),
    ("llama_q4_k", "llama", Q4_K, Vocabulary::Bytes("smollm")),
    ("llama_pieces_q8_0", "llama", Q8_0, Vocabulary::Pieces),
    ("qwen2_q5_k", "qwen2", Q5_K, Vocabulary::Bytes("qwen2")),
    ("qwen3_q6_k", "qwen3", Q6_K, Vocabulary::Bytes("qwen2")),
    ("qwen3_q4_1", "qwen3", Q4_1, Vocabulary::Bytes("gpt-2")),
    ("gemma3_q8_0", "gemma3", Q8_0, Vocabulary::Pieces),
];

fn tensor(name: &str, shape: &[usize], (kind, values, bytes): Kind) -> Stored {
    let blocks = shape.iter().product::<usize>() / values;
    // The bytes are below 0x30. Scales are then small and finite, wherever a block has them.
    let bytes = (0..blocks * bytes).map(|i| (i * 37 + i / 11) as u8 & 0x2f).collect();
    Stored { name: format!("{name}.weight"), shape: shape.to_vec(), kind, bytes }
}

fn norm(name: &str, len: usize) -> Stored {
    let bytes = (0..len).flat_map(|_| 1f32.to_le_bytes()).collect();
    Stored { name: format!("{name}.weight"), shape: vec![len], kind: F32.0, bytes }
}

/// The tokens, and the other metadata of the vocabulary.
fn vocabulary(kind: Vocabulary) -> (Vec<String>, Vec<(&'static str, Value)>) {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    match kind {
        Vocabulary::Bytes(splitting) => {
            let tokens = texts(&["<s>", "</s>", "t", "h", "e", "\u{120}", "c", "a", "th", "the"]);
            let rest = vec![
                ("model", Value::Text("gpt2".to_owned())),
                ("pre", Value::Text(splitting.to_owned())),
                ("merges", Value::Texts(texts(&["t h", "th e"]))),
                ("token_type", Value::Numbers(vec![3, 3, 1, 1, 1, 1, 1, 1, 1, 1])),
                ("bos_token_id", Value::Number(0)),
                ("eos_token_id", Value::Number(1)),
                ("add_bos_token", Value::Bool(true)),
            ];
            (tokens, rest)
        }
        Vocabulary::Pieces => {
            let mut tokens = texts(&["<unk>", "<s>", "</s>"]);
            tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
            let pieces = ["\u{2581}", "t", "h", "e", "c", "a", "th", "the", "\u{2581}the"];
            tokens.extend(texts(&pieces));
            let kinds = [vec![2, 3, 3], vec![6; 256], vec![1; pieces.len()]].concat();
            let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
            let rest = vec![
                ("model", Value::Text("llama".to_owned())),
                ("scores", Value::Floats(scores)),
                ("token_type", Value::Numbers(kinds)),
                ("bos_token_id", Value::Number(1)),
                ("eos_token_id", Value::Number(2)),
            ];
            (tokens, rest)
        }
    }
}

/// A model of one layer and one head.
fn seed((_, family, kind, words): (&str, &str, Kind, Vocabulary)) -> Vec<u8> {
    // One block wide.
    let hidden = kind.1;
    let (tokens, rest) = vocabulary(words);
    let rows = tokens.len();
    let number = |number: usize| Value::Number(number as u32);
    let own = |key: &str, value| (format!("{family}.{key}"), value);
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::Text(family.to_owned())),
        own("context_length", number(64)),
        own("embedding_length", number(hidden)),
        own("block_count", number(1)),
        own("feed_forward_length", number(INNER)),
        own("attention.head_count", number(1)),
        own("attention.head_count_kv", number(1)),
        own("attention.key_length", number(HEAD_DIM)),
        own("attention.layer_norm_rms_epsilon", Value::Float(1e-5)),
        ("tokenizer.ggml.tokens".to_owned(), Value::Texts(tokens)),
    ];
    metadata.extend(rest.into_iter().map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)));
    let mut tensors = vec![
        tensor("token_embd", &[rows, hidden], kind),
        norm("output_norm", hidden),
        norm("blk.0.attn_norm", hidden),
        norm("blk.0.ffn_norm", hidden),
        tensor("blk.0.attn_q", &[HEAD_DIM, hidden], kind),
        tensor("blk.0.attn_k", &[HEAD_DIM, hidden], kind),
        tensor("blk.0.attn_v", &[HEAD_DIM, hidden], kind),
        // Narrower than one block.
        tensor("blk.0.attn_output", &[hidden, HEAD_DIM], F16),
        tensor("blk.0.ffn_gate", &[INNER, hidden], kind),
        tensor("blk.0.ffn_up", &[INNER, hidden], kind),
        tensor("blk.0.ffn_down", &[hidden, INNER], F16),
    ];
    if family == "qwen3" || family == "gemma3" {
        tensors.extend(["attn_q_norm", "attn_k_norm"].map(|name| norm(&format!("blk.0.{name}"), HEAD_DIM)));
    }
    if family == "gemma3" {
        metadata.push(own("attention.sliding_window", number(8)));
        tensors.extend(
            ["post_attention_norm", "post_ffw_norm"].map(|name| norm(&format!("blk.0.{name}"), hidden)),
        );
    }
    if family == "qwen2" {
        for name in ["attn_q", "attn_k", "attn_v"] {
            let bias = norm("bias", HEAD_DIM);
            tensors.push(Stored { name: format!("blk.0.{name}.bias"), ..bias });
        }
    }
    file_of(&metadata, &tensors)
}

fn corpus() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/gguf"))
}

#[test]
fn seeds_of_the_fuzzer_are_models_that_read_a_text() {
    for of in SEEDS {
        let (name, bytes) = (of.0, seed(of));
        let model = Model::from_gguf(name, &[("seed.gguf", &bytes)]);
        let model = model.unwrap_or_else(|error| panic!("{name}: {error}"));
        let tokens = model.tokenizer().encode(b"the cache", SpecialTokens::Add).unwrap();
        assert!(tokens.len() > 5, "{name}: {tokens:?}");
        let mut cache = model.config().dense_cache().unwrap();
        let logits = model.forward(&tokens, 0, &mut cache).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()), "{name}: {logits:?}");
        assert_eq!(logits.len(), tokens.len() * model.config().vocab_size);
    }
}

#[test]
fn the_fuzzer_has_these_seeds() {
    for of in SEEDS {
        let path = corpus().join(of.0);
        if std::env::var_os("TQKV_WRITE_SEEDS").is_some() {
            std::fs::write(&path, seed(of)).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes == seed(of), "{}", path.display());
        // The fuzzer would cut longer seeds.
        assert!(bytes.len() <= 32_768, "{} bytes of {}", bytes.len(), path.display());
    }
}
