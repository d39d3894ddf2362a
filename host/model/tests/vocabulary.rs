//! A large vocabulary of pieces takes little memory, both while it is read and afterwards.
// This test has its own binary, because it replaces the allocator of the whole program.
#![allow(missing_docs, reason = "a test crate")]

use allocation_counter::measure;
use tqkv_model::config_json;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key)[..], &kind.to_le_bytes(), value].concat()
}

fn list(key: &str, kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    let head = [kind.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
    pair(key, 9, &[head, values.concat()].concat())
}

/// A GGUF file whose only weights are the embedding. It has pieces of four to eight letters, bytes and
/// letters.
fn file(pieces: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let bytes = (0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6u32));
    let letters = ('a'..='z').map(|letter| (letter.to_string(), 1));
    let grown = (0..pieces).map(|_| ((0..random.usize(4..9)).map(|_| random.lowercase()).collect(), 1));
    let tokens: Vec<(String, u32)> = bytes.chain(letters).chain(grown).collect();
    let number = |value: u32| value.to_le_bytes().to_vec();
    let of = |name: &str| format!("llama.{name}");
    let pairs = [
        pair("general.architecture", 8, &text("llama")),
        pair(&of("block_count"), 4, &number(1)),
        pair(&of("context_length"), 4, &number(64)),
        pair(&of("embedding_length"), 4, &number(32)),
        pair(&of("feed_forward_length"), 4, &number(32)),
        pair(&of("attention.head_count"), 4, &number(1)),
        pair(&of("attention.layer_norm_rms_epsilon"), 6, &1e-5f32.to_le_bytes()),
        pair("tokenizer.ggml.model", 8, &text("llama")),
        list("tokenizer.ggml.tokens", 8, &tokens.iter().map(|(token, _)| text(token)).collect::<Vec<_>>()),
        list(
            "tokenizer.ggml.scores",
            6,
            &(0..tokens.len()).map(|i| (-(i as f32)).to_le_bytes().to_vec()).collect::<Vec<_>>(),
        ),
        list(
            "tokenizer.ggml.token_type",
            4,
            &tokens.iter().map(|(_, kind)| number(*kind)).collect::<Vec<_>>(),
        ),
    ];
    let mut all = b"GGUF\x03\0\0\0".to_vec();
    all.extend(1u64.to_le_bytes());
    all.extend((pairs.len() as u64).to_le_bytes());
    all.extend(pairs.concat());
    all.extend(text("token_embd.weight"));
    all.extend(2u32.to_le_bytes());
    all.extend([32u64.to_le_bytes(), (tokens.len() as u64).to_le_bytes()].concat());
    all.extend([0; 12]);
    all.resize(all.len().next_multiple_of(32) + 4 * 32 * tokens.len(), 0);
    all
}

#[test]
fn a_large_vocabulary_takes_little() {
    const PIECES: usize = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pieces.gguf");
    std::fs::write(&path, file(PIECES)).unwrap();
    let taken = measure(|| {
        let config = config_json(&path).unwrap();
        assert!(config.starts_with(b"{"));
    });
    // The parsed lists of the file take 32 bytes for each of three entries. The head of the file and the
    // pieces come on top. With a list of all merges it was 2,000 bytes per piece.
    let each = taken.bytes_max as usize / PIECES;
    println!("{each} bytes a piece at most");
    assert!(each < 300, "{each} bytes a piece");
}
