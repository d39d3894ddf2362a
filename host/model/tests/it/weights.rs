//! Coded weights, and weights that are read layer by layer.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use tqkv_core::{CodecId, Options};
use tqkv_model::compress::{CompressSpec, compress};
use tqkv_model::{Access, Model, ModelError};

use crate::architectures::{GOLDEN, tokenizer};
use crate::support::Checkpoint;

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("shipped")
}

fn spec(codec: CodecId) -> CompressSpec {
    CompressSpec { codec, embedding: CodecId::I8, group: 64, options: Options::DEFAULT }
}

fn logits(model: &Model) -> Vec<f32> {
    let tokens: Vec<u32> =
        b"The borrow checker of the compiler".iter().map(|&byte| u32::from(byte)).collect();
    let mut cache = model.config().dense_cache().unwrap();
    model.forward(&tokens, 0, &mut cache).unwrap()
}

/// Squared difference divided by the squared norm.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    error / b.iter().map(|b| b * b).sum::<f32>()
}

fn compressed(codec: CodecId, within: &Path) -> PathBuf {
    let to = within.join(codec.name());
    let made = compress(&shipped(), &to, &spec(codec), &|_, _| ControlFlow::Continue(())).unwrap();
    let file = std::fs::metadata(to.join("model.safetensors")).unwrap().len() as usize;
    assert!((made.bytes..made.bytes + 16_384).contains(&file), "{} of {file} bytes", made.bytes);
    assert!(made.coded_bytes < made.bytes && made.bytes < made.bytes_before);
    to
}

#[test]
fn coded_weights_compute_nearly_the_same_the_nearer_the_more_bits() {
    let folder = tempfile::tempdir().unwrap();
    let exact = logits(&Model::load(shipped()).unwrap());
    for (codec, most) in [
        (CodecId::I8, 1e-3),
        (CodecId::T4, 0.03),
        (CodecId::S4, 0.05),
        (CodecId::T3, 0.1),
        (CodecId::T2, 0.4),
    ] {
        let coded = logits(&Model::load(compressed(codec, folder.path())).unwrap());
        let error = distance(&coded, &exact);
        assert!(error > 1e-6 && error < most, "{}: {error}", codec.name());
    }
}

#[test]
fn two_runs_give_equal_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let made = ["a", "b"].map(|name| {
        let to = folder.path().join(name);
        compress(&shipped(), &to, &spec(CodecId::S2), &|_, _| ControlFlow::Continue(())).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(to).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|file| std::fs::read(file).unwrap()).collect::<Vec<_>>()
    });
    assert!(made[0] == made[1] && made[0].len() > 1);
}

#[test]
fn products_on_codes_are_those_of_the_decoded_weights() {
    let folder = tempfile::tempdir().unwrap();
    let coded = Model::load(compressed(CodecId::S4, folder.path())).unwrap();
    // The variant scales weights, which expands them. In exact arithmetic it is the same function.
    let expanded = logits(&Model::load(folder.path().join("s4")).unwrap().into_outlier_variant().unwrap());
    let error = distance(&logits(&coded), &expanded);
    assert!(error < 1e-3, "activations of 8 bits: {error}");
}

#[test]
fn streamed_weights_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let coded = compressed(CodecId::T3, folder.path());
    let halves = folder.path().join("halves");
    std::fs::create_dir(&halves).unwrap();
    Checkpoint::new("Qwen3ForCausalLM", 8, json!({})).write_sharded(&halves, Dtype::BF16);
    for path in [shipped(), coded, halves] {
        let mapped = Model::load(&path).unwrap();
        let streamed = Model::open(&path, Access::Streamed).unwrap();
        assert_eq!(logits(&mapped), logits(&streamed), "{}", path.display());
        assert!(matches!(streamed.into_biased_variant(1.0), Err(ModelError::Streamed)));
    }
}

/// The Qwen3-MoE of the golden files with rows of 64 values, in a folder.
fn experts(within: &Path) -> PathBuf {
    let (golden, to) = (Path::new(GOLDEN).join("qwen3-moe"), within.join("experts"));
    std::fs::create_dir(&to).unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(golden.join("config.json")).unwrap()).unwrap();
    for width in ["hidden_size", "intermediate_size", "moe_intermediate_size"] {
        config[width] = 64.into();
    }
    let config = config.to_string();
    std::fs::write(to.join("config.json"), &config).unwrap();
    std::fs::write(to.join("tokenizer.json"), tokenizer(config.as_bytes())).unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let source = std::fs::read(golden.join("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&source).unwrap().tensors();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, tensor)| {
            let wide = |&extent: &usize| if [24, 20, 12].contains(&extent) { 64 } else { extent };
            let shape: Vec<usize> = tensor.shape().iter().map(wide).collect();
            let mut value = || if shape.len() > 1 { 0.5 * (rng.f32() - 0.5) } else { 0.5 + rng.f32() };
            let bytes = (0..shape.iter().product()).flat_map(|_| value().to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
    to
}

/// Logits of a model with 64 words.
fn next_logits(model: &Model) -> Vec<f32> {
    let mut cache = model.config().dense_cache().unwrap();
    model.forward(&[3, 14, 15, 9, 26, 5], 0, &mut cache).unwrap()
}

/// What is coded while it is read is what a folder of coded weights holds, those of experts included.
#[test]
fn weights_coded_at_load_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for codec in [CodecId::S4, CodecId::T3] {
        let loaded = Model::load_coded(shipped(), &spec(codec)).unwrap();
        assert_eq!(logits(&loaded), logits(&Model::load(compressed(codec, folder.path())).unwrap()));
    }
    let experts = experts(folder.path());
    let exact = next_logits(&Model::load(&experts).unwrap());
    for (codec, most) in [(CodecId::I8, 1e-2), (CodecId::T4, 0.2)] {
        let to = folder.path().join(format!("experts {}", codec.name()));
        compress(&experts, &to, &spec(codec), &|_, _| ControlFlow::Continue(())).unwrap();
        let loaded = next_logits(&Model::load_coded(&experts, &spec(codec)).unwrap());
        assert_eq!(loaded, next_logits(&Model::load(&to).unwrap()));
        let error = distance(&loaded, &exact);
        assert!(error > 1e-7 && error < most, "{}: {error}", codec.name());
    }
    // Codes of codes are refused, and so are rows that are no groups.
    let coded = folder.path().join("s4");
    let error = Model::load_coded(coded, &spec(CodecId::S4)).unwrap_err().to_string();
    assert!(error.ends_with("groups of 64 coded as i8 already"), "{error}");
    let wide = CompressSpec { group: 256, ..spec(CodecId::S4) };
    let error = Model::load_coded(shipped(), &wide).unwrap_err().to_string();
    assert!(error.contains("no whole groups of 256"), "{error}");
}

#[test]
fn a_file_that_is_cut_under_a_stream_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    Checkpoint::new("LlamaForCausalLM", 8, json!({})).write(folder.path(), Dtype::F32);
    let model = Model::open(folder.path(), Access::Streamed).unwrap();
    let file = std::fs::File::options().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(20_000).unwrap();
    let mut cache = model.config().dense_cache().unwrap();
    let error = model.forward(&[1, 2, 3], 0, &mut cache).unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
}

#[test]
fn what_cannot_be_coded_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("out");
    let refused = |from: &Path, to: &Path, spec: &CompressSpec, said: &str| {
        let error = compress(from, to, spec, &|_, _| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
    };
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mut checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    checkpoint.write(&small, Dtype::F32);
    refused(&small, &to, &spec(CodecId::S4), "rows of 24 values are no whole groups of 64");
    refused(&folder.path().join("nothing"), &to, &spec(CodecId::S4), "No such file");
    refused(&shipped(), &small, &spec(CodecId::S4), "exists");
    let cancelled = compress(&shipped(), &to, &spec(CodecId::S4), &|done, _| match done {
        3.. => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(cancelled, Err(ModelError::Cancelled)), "{cancelled:?}");
    let coded = compressed(CodecId::S3, folder.path());
    refused(&coded, &to, &spec(CodecId::S4), "already");
    for tensor in checkpoint.tensors.values_mut().filter(|(shape, _)| shape.len() == 2) {
        let rows = tensor.0[0];
        *tensor = (vec![rows, 64], vec![f32::NAN; rows * 64]);
    }
    checkpoint.write(&small, Dtype::F32);
    refused(&small, &to, &spec(CodecId::S4), "cannot be coded");
    let mut left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["s3", "small"], "no partial folder");
}

/// Any header gives a one-line error, or the same model.
#[test]
fn damaged_headers_of_coded_weights_end_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let coded = compressed(CodecId::T2, folder.path());
    let file = coded.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let text = std::str::from_utf8(&bytes[8..8 + header]).unwrap();
    for (from, to, said) in [
        (r#"\"codec\":\"t2\""#, r#"\"codec\":\"t3\""#, "blocks of"),
        (r#"\"codec\":\"t2\""#, r#"\"codec\":\"zz\""#, "codec zz is not known"),
        (r#"\"group\":64"#, r#"\"group\":63"#, "63"),
        (r#"\"group\":64"#, r#"\"grout\":64"#, "grout"),
    ] {
        assert!(text.contains(from), "{text}");
        let mut damaged = bytes[..8].to_vec();
        damaged.extend(text.replace(from, to).bytes());
        damaged.extend(&bytes[8 + header..]);
        std::fs::write(&file, damaged).unwrap();
        let error = Model::load(&coded).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains('\n'), "{to}: {error}");
    }
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..200 {
        let mut damaged = bytes.clone();
        damaged[rng.usize(..header + 8)] ^= 1 << rng.u8(..8);
        std::fs::write(&file, damaged).unwrap();
        if let Err(error) = Model::load(&coded) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
