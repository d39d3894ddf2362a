//! Compares the shipped model with the figures of the program that made it
//! (`host/model/shipped/figures.json`).

use std::ops::ControlFlow;

use half::f16;
use safetensors::SafeTensors;
use serde_json::Value;
use tqkv::KvShape;
use tqkv::attention::AttentionCache;
use tqkv::dense::DenseCache;
use tqkv::error::CacheError;
use tqkv_model::eval::{EvalReport, EvalSpec, Setting, evaluate};
use tqkv_model::generate::{GenerateSpec, StopReason, generate};
use tqkv_model::{Model, shipped};
use tqkv_tests::scope::{extent, is_exhaustive};

const CONTEXT: usize = 1024;

fn figures() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/shipped/figures.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A dense cache whose keys and values first pass a quantiser, as in that program.
struct Through {
    dense: DenseCache,
    quantise: fn(&[f32]) -> Vec<f32>,
}

impl AttentionCache for Through {
    fn shape(&self) -> KvShape {
        self.dense.shape()
    }
    fn attend_chunk(
        &mut self,
        layer: usize,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) -> Result<(), CacheError> {
        let (k, v) = ((self.quantise)(k), (self.quantise)(v));
        self.dense.attend_chunk(layer, q, &k, &v, out)
    }
    fn len(&self) -> usize {
        self.dense.len()
    }
    fn truncate(&mut self, len: usize) -> Result<(), CacheError> {
        self.dense.truncate(len)
    }
    fn reset(&mut self) {
        self.dense.reset();
    }
    fn allocated_bytes(&self) -> usize {
        self.dense.allocated_bytes()
    }
}

fn through_f16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|v| f16::from_f32(*v).to_f32()).collect()
}

/// ggml's q4_0 with an f32 reciprocal, as in eval_model.py.
fn through_q4_0(x: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for block in x.chunks_exact(32) {
        let peak = block.iter().copied().fold(0.0f32, |a, b| if b.abs() > a.abs() { b } else { a });
        let d = peak / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let scale = f16::from_f32(d).to_f32();
        out.extend(block.iter().map(|v| ((v * inverse + 8.5).floor().min(15.0) - 8.0) * scale));
    }
    out
}

fn dense(model: &Model) -> Setting<'_> {
    Setting { name: "f32".to_owned(), new_cache: Box::new(|| Ok(Box::new(model.config().dense_cache()?))) }
}

fn through<'a>(model: &'a Model, name: &str, quantise: fn(&[f32]) -> Vec<f32>) -> Setting<'a> {
    let new_cache = move || -> Result<Box<dyn AttentionCache>, CacheError> {
        Ok(Box::new(Through { dense: model.config().dense_cache()?, quantise }))
    };
    Setting { name: name.to_owned(), new_cache: Box::new(new_cache) }
}

fn run(model: &Model, windows: usize, layers: bool, settings: &[Setting<'_>]) -> EvalReport {
    let spec = EvalSpec { layers, ..EvalSpec::new(CONTEXT, Some(windows)) };
    evaluate(model, shipped::HELDOUT_TEXT, &spec, &dense(model), settings, &mut |_| {}).unwrap()
}

fn relative(got: f64, want: f64) -> f64 {
    (got / want - 1.0).abs()
}

#[test]
fn perplexity_and_divergence_are_those_of_the_figures() {
    let figures = figures();
    let rows = &figures["quantized"]["rows"];
    let number = |row: &str, field: &str| rows[row][field].as_f64().unwrap();
    let model = Model::shipped().unwrap();
    let settings = [through(&model, "f16", through_f16), through(&model, "q4_0", through_q4_0)];
    // The exact model runs over all windows. By default the loss by quantising is measured on a few.
    let exact = run(&model, 48, false, &[]);
    assert_eq!((exact.windows, exact.context), (48, CONTEXT));
    assert!(relative(exact.reference.perplexity, number("f32", "ppl")) < 1e-4);
    let report = run(&model, extent(4, 48), false, &settings);
    println!("{report:#?}");
    let base = report.reference.perplexity / number("f32", "ppl");
    assert!(report.reference.kl == 0.0 && report.reference.top1_agreement == 1.0);
    let [half, q4] = &report.results[..] else { panic!("two settings give two results") };
    assert!(relative(half.perplexity / base, number("f16", "ppl")) < 1e-4);
    assert!(half.kl < 1e-6 && half.top1_agreement > 0.9995);
    assert!(relative(q4.perplexity / base, number("q4_0", "ppl")) < extent(1e-2, 1e-4));
    assert!(relative(q4.kl, number("q4_0", "kl_nats")) < extent(0.3, 1e-2));
    assert!((q4.top1_agreement - number("q4_0", "top1_agree")).abs() < extent(1e-2, 1e-3));
    assert!((q4.nll_delta - (q4.nll - report.reference.nll)).abs() < 1e-12);
    // 4 layers, K and V, 128 values of 4 bytes. The capacity may be larger than the length.
    assert!((4096.0..=8192.0).contains(&q4.cache_bytes_per_token));
}

#[test]
fn the_outlier_variant_keeps_the_function_and_hurts_block_formats() {
    let figures = figures();
    let rows = &figures["outlier_variant"]["rows"];
    let model = Model::shipped().unwrap().into_outlier_variant().unwrap();
    let windows = extent(3, 16);
    let report = run(&model, windows, true, &[through(&model, "q4_0", through_q4_0)]);
    println!("{report:#?}");
    let want = |row: &str| rows[row]["outlier"]["ppl"].as_f64().unwrap();
    let plain = run(&Model::shipped().unwrap(), windows, false, &[]).reference.perplexity;
    assert!(relative(report.reference.perplexity, plain) < 1e-4);
    let base = if is_exhaustive() { 1.0 } else { report.reference.perplexity / want("f32") };
    assert!(relative(report.reference.perplexity / base, want("f32")) < 1e-4);
    assert!(relative(report.results[0].perplexity / base, want("q4_0")) < extent(0.03, 1e-3));
    assert_eq!(report.reference.layer_cosine, [1.0; 4]);
    let cosines = &report.results[0].layer_cosine;
    assert_eq!(cosines.len(), 4);
    assert!(cosines.iter().all(|c| (0.8..0.9999).contains(c)), "{cosines:?}");
    assert!(cosines[3] < cosines[0], "differences grow with depth: {cosines:?}");
}

#[test]
fn greedy_text_is_that_of_the_figures() {
    let figures = figures();
    let prompt = figures["greedy"]["prompt"].as_str().unwrap();
    let want = figures["greedy"]["f32"].as_str().unwrap();
    let model = Model::shipped().unwrap();
    let mut cache = model.config().dense_cache().unwrap();
    let mut streamed = String::new();
    let made = generate(&model, prompt.as_bytes(), &GenerateSpec::default(), &mut cache, &mut |piece| {
        streamed.push_str(piece);
        ControlFlow::Continue(())
    })
    .unwrap();
    println!(
        "prefill {:.0}/s decode {:.0}/s",
        made.prefill_tokens_per_second(),
        made.decode_tokens_per_second()
    );
    assert_eq!(made.text, want);
    assert_eq!(streamed, want);
    assert_eq!((made.tokens.len(), made.prompt_tokens, made.stop), (200, prompt.len(), StopReason::Length));
    assert_eq!((made.cache_tokens, made.decode_steps), (prompt.len() + 199, 199));
    assert!(made.decode_tokens_per_second() > 0.0 && made.cache_bytes >= made.cache_tokens * 4096);
}

#[test]
fn keys_and_values_are_those_of_the_sample() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/shipped/kv_sample.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let sample = SafeTensors::deserialize(&bytes).unwrap();
    let model = Model::shipped().unwrap();
    let window: Vec<u32> =
        shipped::HELDOUT_TEXT[5 * CONTEXT..6 * CONTEXT].iter().map(|b| u32::from(*b)).collect();
    let mut cache = model.config().dense_cache().unwrap();
    model.forward(&window, 0, &mut cache).unwrap();
    for layer in 0..4 {
        for (name, got) in [("k", cache.keys(layer, 0)), ("v", cache.values(layer, 0))] {
            let tensor = sample.tensor(&format!("layers.{layer}.{name}")).unwrap();
            assert_eq!(tensor.shape(), [1, CONTEXT, 128]);
            let want = tensor.data().as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32());
            let got = got.unwrap();
            assert_eq!(got.len(), want.len());
            let rms = (got.iter().map(|x| x * x).sum::<f32>() / got.len() as f32).sqrt();
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                // Half a unit in the last place of f16, and a margin for two orders of f32 summation.
                let allowed = w.abs() / 2048.0 + 1e-4 * rms;
                assert!((g - w).abs() <= allowed, "layer {layer} {name} value {i}: {g} against {w}");
            }
        }
    }
}

#[test]
fn any_chunking_of_a_window_gives_the_same_logits() {
    let model = Model::shipped().unwrap();
    let tokens: Vec<u32> = shipped::HELDOUT_TEXT[..300].iter().map(|b| u32::from(*b)).collect();
    let mut cache = model.config().dense_cache().unwrap();
    let whole = model.forward(&tokens, 0, &mut cache).unwrap();
    for chunk in [1, 7, 128] {
        let mut cache = model.config().dense_cache().unwrap();
        let mut got = Vec::new();
        for part in tokens.chunks(chunk) {
            let start = cache.len();
            got.extend(model.forward(part, start, &mut cache).unwrap());
        }
        let worst = got.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "chunks of {chunk}: logits differ by {worst}");
    }
}

#[test]
fn temperature_repeats_by_seed_and_a_break_stops() {
    let model = Model::shipped().unwrap();
    let text = |seed| {
        let spec = GenerateSpec { max_new_tokens: 40, temperature: 1.0, seed };
        let mut cache = model.config().dense_cache().unwrap();
        generate(&model, b"fn main() {", &spec, &mut cache, &mut |_| ControlFlow::Continue(())).unwrap().text
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
    let mut cache = model.config().dense_cache().unwrap();
    let stopped =
        generate(&model, b"fn", &GenerateSpec::default(), &mut cache, &mut |_| ControlFlow::Break(()))
            .unwrap();
    assert_eq!((stopped.tokens.len(), stopped.stop), (1, StopReason::Cancelled));
}
