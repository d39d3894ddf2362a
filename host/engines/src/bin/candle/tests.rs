//! The cache of slots compared with candle's caches, with a small random Llama.

use crate::attention::{CandleCaches, ModelAttention, Shape, Slots};
use crate::llama::Llama;
use crate::{generate, spec};
use candle_core::quantized::gguf_file::{Content, Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use std::io::Cursor;

const VOCABULARY: usize = 96;
const HEADS: usize = 2;
const DIM: usize = 64;
const WIDTH: usize = HEADS * DIM;

/// Uniform numbers with this deviation, the same on every machine.
struct Random(u64);

impl Random {
    fn tensor(&mut self, shape: &[usize], deviation: f32) -> Tensor {
        let next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0) * 3.0_f32.sqrt() * deviation
        };
        let values: Vec<f32> = std::iter::repeat_with(next).take(shape.iter().product()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }
}

/// A Llama of random weights, by way of a GGUF file.
fn model() -> Llama {
    let mut random = Random(1);
    let mut tensors = vec![
        ("token_embd".to_owned(), random.tensor(&[VOCABULARY, WIDTH], 1.0)),
        ("output".to_owned(), random.tensor(&[VOCABULARY, WIDTH], 1.0)),
        ("output_norm".to_owned(), Tensor::ones(WIDTH, candle_core::DType::F32, &Device::Cpu).unwrap()),
    ];
    for layer in 0..2 {
        let mut add = |name: &str, tensor| tensors.push((format!("blk.{layer}.{name}"), tensor));
        for name in ["attn_norm", "ffn_norm"] {
            add(name, Tensor::ones(WIDTH, candle_core::DType::F32, &Device::Cpu).unwrap());
        }
        let matrices = [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", DIM, WIDTH),
            ("attn_v", DIM, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", 96, WIDTH),
            ("ffn_up", 96, WIDTH),
            ("ffn_down", WIDTH, 96),
        ];
        for (name, rows, columns) in matrices {
            add(name, random.tensor(&[rows, columns], 2.0 / (columns as f32).sqrt()));
        }
    }
    let tensors: Vec<(String, QTensor)> = tensors
        .into_iter()
        .map(|(name, x)| (format!("{name}.weight"), QTensor::quantize(&x, GgmlDType::F32).unwrap()))
        .collect();
    let numbers = [("block_count", 2), ("attention.head_count", HEADS), ("embedding_length", WIDTH)];
    let mut metadata: Vec<(String, Value)> =
        numbers.iter().map(|(name, n)| (format!("llama.{name}"), Value::U32(*n as u32))).collect();
    metadata.push(("llama.attention.head_count_kv".to_owned(), Value::U32(1)));
    metadata.push(("llama.attention.layer_norm_rms_epsilon".to_owned(), Value::F32(1e-5)));
    metadata.push(("general.architecture".to_owned(), Value::String("llama".to_owned())));
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, x)| (name.as_str(), x)).collect();
    let mut file = Cursor::new(Vec::new());
    write(&mut file, &metadata, &tensors).unwrap();
    file.set_position(0);
    let content = Content::read(&mut file).unwrap();
    Llama::read(content, &mut file).unwrap()
}

fn shape() -> Shape {
    Shape { num_layers: 2, num_heads: HEADS, num_kv_heads: 1, head_dim: DIM }
}

fn slots(policy: &str) -> Slots {
    Slots::new(spec(&shape(), policy).unwrap(), 600).unwrap()
}

fn prompts() -> Vec<Vec<u32>> {
    let prompt = |seed: usize, tokens: usize| {
        (0..tokens).map(|i| ((i * i + seed * (i + 3)) % VOCABULARY) as u32).collect()
    };
    vec![prompt(5, 3), prompt(11, 150), prompt(2, 40)]
}

#[test]
fn a_batch_in_slots_writes_what_each_sequence_writes_alone_in_candle() {
    let model = model();
    let alone: Vec<Vec<u32>> = prompts()
        .iter()
        .map(|prompt| {
            let mut cache = CandleCaches::new(&model.shape);
            generate(&model, &mut cache, std::slice::from_ref(prompt), 60).unwrap().texts.remove(0)
        })
        .collect();
    let mut cache = slots("f16");
    // The second time in slots that the first has freed.
    for _ in 0..2 {
        let batch = generate(&model, &mut cache, &prompts(), 60).unwrap();
        assert_eq!(batch.texts, alone);
        assert_eq!(batch.held, 193 + 3 * 60);
    }
    let different = |text: &Vec<u32>| text.iter().collect::<std::collections::BTreeSet<_>>().len();
    assert!(alone.iter().any(|text| different(text) > 8), "texts that say something: {alone:?}");
}

/// One step of attention after another in both caches. Returns the largest difference of f16 results, and the
/// share of the energy that is error.
fn compare(policy: &str) -> (f32, f64) {
    let (mut ours, mut theirs) = (slots(policy), CandleCaches::new(&shape()));
    let (mut random, mut largest, mut error, mut energy) = (Random(3), 0.0_f32, 0.0, 0.0);
    for step in 0..60 {
        // A sequence begins with a prompt and goes on for twenty steps; then it ends and another begins.
        let new = |sequence: usize| if step % 20 == sequence * 6 { 30 + 40 * sequence } else { 1 };
        let counts: Vec<(usize, usize)> = (0..3).map(|sequence| (sequence, new(sequence))).collect();
        for (sequence, tokens) in &counts {
            if *tokens > 1 {
                ours.end(*sequence).unwrap();
                theirs.end(*sequence).unwrap();
            }
        }
        assert_eq!(ours.begin(&counts).unwrap(), theirs.begin(&counts).unwrap());
        let tokens: usize = counts.iter().map(|(_, tokens)| tokens).sum();
        let mut vectors = |heads: usize| random.tensor(&[1, heads, tokens, DIM], 1.0);
        for layer in 0..2 {
            let (q, k, v) = (vectors(HEADS), vectors(1), vectors(1));
            let flat = |x: Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let out = flat(ours.attend(layer, &q, &k, &v).unwrap());
            let wanted = flat(theirs.attend(layer, &q, &k, &v).unwrap());
            for (a, b) in out.iter().zip(&wanted) {
                largest = largest.max((a - b).abs());
                error += f64::from(a - b).powi(2);
                energy += f64::from(*b).powi(2);
            }
        }
    }
    (largest, error / energy)
}

#[test]
fn attention_in_slots_is_near_that_of_candle() {
    // Both have the same f16 values and sum in another order.
    let (largest, _) = compare("f16");
    assert!(largest < 2e-6, "{largest}");
    let (_, t4) = compare("t4 hot=8");
    let (_, t2) = compare("t2 hot=8");
    println!("f16 {largest}, t4 {t4}, t2 {t2}");
    assert!(t4 < 0.02 && t4 < t2 && t2 < 0.2, "t4 {t4}, t2 {t2}");
}
