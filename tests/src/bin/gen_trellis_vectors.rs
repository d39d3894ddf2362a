//! Writes `vectors/trellis_blocks.json`, one block a line.

use tqkv_tests::trellis_vectors::golden_blocks;

fn main() -> std::io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors/trellis_blocks.json");
    let lines: Result<Vec<_>, _> = golden_blocks().iter().map(serde_json::to_string).collect();
    std::fs::write(path, format!("[\n{}\n]\n", lines?.join(",\n")))
}
