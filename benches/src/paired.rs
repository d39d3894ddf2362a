//! Paired measurements: every case against the f16 and `q4_0` kernels of the same level, in alternation.
//!
//! One thread is timed in thread CPU time, several threads in wall time. Samples of all cases alternate, so
//! that a change of clock or load affects all of them. The minimum is the result, and the median shows how
//! reliable it is. Ratios are between minima of the same run, never across runs.

use crate::case::{BenchError, Case, DRAM_POOL, Data, Op};
use crate::workload::Workload;
use std::time::{Duration, Instant};
use tqkv_core::CodecId;

/// The result of a case. Times are per token (one vector; for `attend` one key and one value) over all query
/// heads, divided by the number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// Minimum time in nanoseconds.
    pub ns_min: f64,
    /// Median time in nanoseconds.
    pub ns_median: f64,
    /// Bytes of compressed data read (encode: written) per nanosecond of `ns_min`.
    pub gb_per_s: f64,
    /// Minimum time of the f16 kernel of the same level divided by `ns_min`.
    pub ratio_to_f16: f64,
    /// The same for ggml's `q4_0`, if it has the operation (`scores`, `encode`, `decode`).
    pub ratio_to_q4_0: Option<f64>,
    /// GB/s of the f16 kernel.
    pub f16_gb_per_s: f64,
}

/// The outcomes of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Streaming read of one thread from memory, GB/s.
    pub read_gb_per_s: f64,
    /// The same for each number of threads in the cases: (threads, GB/s of all threads together).
    pub reads: Vec<(usize, f64)>,
    /// One result per case, in order.
    pub results: Vec<Outcome>,
    /// Reasons to distrust the run, one line each; empty for a good run.
    pub doubts: Vec<String>,
}

/// One sampled series: a case or the plain read.
struct Lane {
    /// `None` for the plain read.
    case: Option<Case>,
    workloads: Vec<Workload>,
    /// Calls per sample.
    calls: usize,
    samples: Vec<f64>,
}

impl Lane {
    fn new(case: Case) -> Result<Self, BenchError> {
        if !(1..=256).contains(&case.threads) {
            return Err(BenchError::Count);
        }
        let workloads = (0..case.threads).map(|_| Workload::new(&case)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(Some(case), workloads))
    }

    fn read(threads: usize) -> Self {
        Self::of(None, (0..threads).map(|_| Workload::read(DRAM_POOL)).collect())
    }

    fn of(case: Option<Case>, mut workloads: Vec<Workload>) -> Self {
        // A sample must be long enough for the clock: about half a millisecond.
        let mut calls = 1;
        while calls < 1 << 20 && cpu_seconds(|| repeat(&mut workloads[0], calls)) < 5e-4 {
            calls *= 2;
        }
        Self { case, workloads, calls, samples: Vec::new() }
    }

    fn threads(&self) -> usize {
        self.workloads.len()
    }

    fn sample(&mut self) {
        let tokens = (self.calls * self.workloads[0].tokens * self.workloads.len()) as f64;
        let calls = self.calls;
        let seconds = if let [workload] = &mut self.workloads[..] {
            cpu_seconds(|| repeat(workload, calls))
        } else {
            wall_seconds(&mut self.workloads, calls)
        };
        self.samples.push(seconds * 1e9 / tokens);
    }

    fn min(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn gb_per_s(&self) -> f64 {
        self.workloads[0].bytes_per_token / self.min()
    }
}

fn repeat(workload: &mut Workload, calls: usize) {
    for _ in 0..calls {
        workload.call();
    }
}

/// CPU time of this thread while `f` runs.
fn cpu_seconds(f: impl FnOnce()) -> f64 {
    let start = cpu_time::ThreadTime::now();
    f();
    start.elapsed().as_secs_f64()
}

/// Wall time of all workloads at once, with one thread each. The time to start the threads does not count.
fn wall_seconds(workloads: &mut [Workload], calls: usize) -> f64 {
    let barrier = std::sync::Barrier::new(workloads.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = workloads
            .iter_mut()
            .map(|workload| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    repeat(workload, calls);
                    (start, Instant::now())
                })
            })
            .collect();
        let spans: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        let first = spans.iter().map(|span| span.0).min();
        let last = spans.iter().map(|span| span.1).max();
        first.zip(last).map_or(f64::NAN, |(first, last)| (last - first).as_secs_f64())
    })
}

/// Least share of the plain read bandwidth that a baseline in memory must reach.
const LEAST_SHARE: f64 = 0.85;
/// Largest ratio of a median to its minimum.
const WIDEST_SPREAD: f64 = 1.5;

/// Measures `cases` in alternation for about `budget`. It takes half a gigabyte of memory per thread, for the
/// plain read and for each f16 baseline from memory. Other codecs take a third of that.
///
/// # Errors
/// A case has no kernel, or its numbers are out of range. Nothing is measured after an error.
pub fn run(cases: &[Case], budget: Duration, mut progress: impl FnMut(f64)) -> Result<Report, BenchError> {
    let mut lanes: Vec<Lane> = Vec::new();
    // The lane of a case, made once, because cases share baselines.
    let mut lane = |case: Case| -> Result<usize, BenchError> {
        if let Some(at) = lanes.iter().position(|lane| lane.case == Some(case)) {
            return Ok(at);
        }
        lanes.push(Lane::new(case)?);
        Ok(lanes.len() - 1)
    };
    let mut plan = Vec::new();
    for &case in cases {
        let f16 = lane(Case { codec: CodecId::F16, ..case })?;
        let has_q4_0 = matches!(case.op, Op::Scores | Op::Encode | Op::Decode);
        let q4_0 = if has_q4_0 { lane(Case { codec: CodecId::Q4_0, ..case }).ok() } else { None };
        plan.push((lane(case)?, f16, q4_0));
    }
    let mut threads: Vec<usize> = cases.iter().map(|case| case.threads).chain([1]).collect();
    threads.sort_unstable();
    threads.dedup();
    lanes.extend(threads.into_iter().map(Lane::read));
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 5 || start.elapsed() < budget {
        lanes.iter_mut().for_each(Lane::sample);
        rounds += 1;
        progress((start.elapsed().as_secs_f64() / budget.as_secs_f64()).min(1.0));
    }
    let results: Vec<Outcome> = plan
        .iter()
        .zip(cases)
        .map(|(&(own, f16, q4_0), &case)| Outcome {
            case,
            ns_min: lanes[own].min(),
            ns_median: lanes[own].median(),
            gb_per_s: lanes[own].gb_per_s(),
            ratio_to_f16: lanes[f16].min() / lanes[own].min(),
            ratio_to_q4_0: q4_0.map(|q4_0| lanes[q4_0].min() / lanes[own].min()),
            f16_gb_per_s: lanes[f16].gb_per_s(),
        })
        .collect();
    let reads: Vec<(usize, f64)> = lanes
        .iter()
        .filter(|lane| lane.case.is_none())
        .map(|lane| (lane.threads(), lane.gb_per_s()))
        .collect();
    let read_gb_per_s = read_of(&reads, 1);
    Ok(Report { read_gb_per_s, doubts: doubts(&lanes, &reads), reads, results })
}

/// The plain read with this number of threads.
fn read_of(reads: &[(usize, f64)], threads: usize) -> f64 {
    reads.iter().find(|read| read.0 == threads).map_or(f64::NAN, |read| read.1)
}

/// The reasons to distrust the run.
fn doubts(lanes: &[Lane], reads: &[(usize, f64)]) -> Vec<String> {
    let mut doubts = Vec::new();
    for lane in lanes {
        let mut what = String::from("plain read");
        if let Some(Case { op, codec, level, data, query_heads, .. }) = lane.case {
            what = [op.name(), codec.name(), level.name().name(), data.name()].join(" ");
            let reads_all = matches!(op, Op::Scores | Op::Attend) && data == Data::Dram && query_heads == 1;
            let (own, read) = (lane.gb_per_s(), read_of(reads, lane.threads()));
            if reads_all && codec == CodecId::F16 && own < LEAST_SHARE * read {
                doubts.push(format!(
                    "{what}, {} threads: the baseline reads {own:.1} GB/s, below 85 % of the {read:.1} GB/s that plain reading reaches",
                    lane.threads()
                ));
            }
        }
        if lane.median() > WIDEST_SPREAD * lane.min() {
            doubts.push(format!(
                "{what}, {} threads: the median is {:.2} times the minimum",
                lane.threads(),
                lane.median() / lane.min()
            ));
        }
    }
    doubts
}

/// The processor's name, if the system reports it.
pub fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |(_, name)| name.to_string())
}
