//! Nothing but a place for the benchmarks: `cargo bench -p tqkv-benches -- --quick scores/s4/128`.
