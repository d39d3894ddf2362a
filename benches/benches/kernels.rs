//! Every kernel, codec, head dim and level of this machine, from the first-level cache and from memory, named
//! `op/codec/dim/level/place`. The whole list takes hours, so give a filter:
//!
//! ```text
//! cargo bench -p tqkv-benches -- --quick scores/s4/128
//! cargo bench -p tqkv-benches -- 'encode/.*/128/avx512/l1'
//! ```
//!
//! The work is the same as in `tqkv bench`, which alternates with the baselines. This benchmark follows a
//! kernel over time.

use criterion::{Criterion, Throughput};
use tqkv_benches::{Case, Data, Op, Workload};
use tqkv_core::{AnyCodec, CodecId, Effort, Options};
use tqkv_simd::Level;
use tqkv_simd::page::{KeyPages, ValuePages};

const SLOTS: usize = 128;

/// Returns true if there is a kernel, without making its data.
fn exists(op: Op, id: CodecId, dim: usize) -> bool {
    let Ok(codec) = AnyCodec::new(id, dim, Options::DEFAULT) else { return false };
    match op {
        Op::Encode | Op::Decode => true,
        _ if id == CodecId::F16 => true,
        Op::Scores if id == CodecId::Q4_0 => true,
        Op::Scores => KeyPages::new(&codec, SLOTS).is_some(),
        Op::Accumulate => ValuePages::new(&codec, SLOTS).is_some(),
        Op::Attend => KeyPages::new(&codec, SLOTS).is_some() && ValuePages::new(&codec, SLOTS).is_some(),
    }
}

fn kernels(criterion: &mut Criterion) {
    for op in Op::ALL {
        let mut group = criterion.benchmark_group(op.name());
        group.throughput(Throughput::Elements(SLOTS as u64));
        for &codec in CodecId::ALL {
            for dim in [64, 128, 256].into_iter().filter(|&dim| exists(op, codec, dim)) {
                for level in Level::available() {
                    for data in [Data::L1, Data::Dram] {
                        let name =
                            [codec.name(), &dim.to_string(), level.name().name(), data.name()].join("/");
                        let effort = Effort::Default;
                        let case = Case { op, codec, dim, level, data, threads: 1, query_heads: 1, effort };
                        // Made only if the filter selects it.
                        let mut work = None;
                        group.bench_function(name, |bencher| {
                            let work = work.get_or_insert_with(|| {
                                Workload::new(&case).unwrap_or_else(|error| panic!("{error}"))
                            });
                            bencher.iter(|| work.call());
                        });
                    }
                }
            }
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    kernels(&mut criterion);
    criterion.final_summary();
}
