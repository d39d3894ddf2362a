//! A tiny checkpoint of every architecture with changes to its config, its table of contents and its numbers.
//! Some weights claim to be codes. The checkpoint is refused with a reason, or it is a model that reads a
//! text.
#![no_main]

mod seeds;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tqkv_core::{CodecId, HEAD_DIMS};
use tqkv_model::{Config, Model};

/// Positions for which tables are worth making, and layers that are worth reading, because the file sets both
/// numbers.
const MOST: usize = 1 << 12;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    base: u8,
    changes: Vec<Change>,
    /// Bytes that replace the bytes of the numbers.
    numbers: &'a [u8],
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Change {
    /// Another value at a place of the config.
    Config(u16, Other),
    /// Another value at a place of the table of contents.
    Contents(u16, Other),
    /// A tensor becomes blocks of a codec, with `off` bytes too many or too few.
    Coded { tensor: u8, codec: u8, group: u8, seed: u8, off: i8 },
    /// Another byte in the table of contents.
    Byte(u16, u8),
    /// The end of the file.
    End(u16),
}

/// The value that replaces another.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Other {
    Gone,
    Null,
    Flag(bool),
    Number(i16),
    Power(u8),
    Fraction(i8),
    Word(u8),
    Copied(u16),
}

const WORDS: [&str; 12] = [
    "",
    "F16",
    "F32",
    "BF16",
    "U8",
    "I64",
    "linear",
    "llama3",
    "yarn",
    "dynamic",
    "full_attention",
    "sliding_attention",
];

struct Base {
    config: Value,
    contents: Map<String, Value>,
    numbers: Vec<u8>,
    tokenizer: Vec<u8>,
}

macro_rules! bases {
    ($($name:literal)*) => {
        [$((
            include_bytes!(concat!("../../host/model/tests/golden/", $name, "/config.json")).as_slice(),
            include_bytes!(concat!("../../host/model/tests/golden/", $name, "/model.safetensors")).as_slice(),
        )),*]
    };
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let files = bases!(
        "deepseek-v2" "deepseek-v2-lite" "gemma2" "gemma3" "gpt-oss" "llama-linear" "llama-llama3" "llama-yarn" "mistral"
        "phi3" "qwen2-yarn" "qwen3" "qwen3-moe" "qwen3-moe-unnormalised"
    );
    files.into_iter().map(|(config, tensors)| base(config, tensors)).collect()
});

fn base(config: &[u8], tensors: &[u8]) -> Base {
    let config: Value = serde_json::from_slice(config).expect("a config");
    let (length, rest) = tensors.split_first_chunk().expect("a file");
    let (contents, numbers) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let size = config["vocab_size"].as_u64().expect("a vocabulary");
    // One word per token.
    let vocab: Map<_, _> = (0..size).map(|token| (format!("w{token}"), token.into())).collect();
    let tokenizer = json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" } });
    Base {
        config,
        contents: serde_json::from_slice(contents).expect("a table of contents"),
        numbers: numbers.to_vec(),
        tokenizer: tokenizer.to_string().into_bytes(),
    }
}

fuzz_target!(|input: Input<'_>| {
    let base = &BASES[usize::from(input.base) % BASES.len()];
    let mut config = base.config.clone();
    let mut contents = Value::Object(base.contents.clone());
    let mut numbers = base.numbers.clone();
    numbers.iter_mut().zip(input.numbers).for_each(|(byte, change)| *byte ^= change);
    for change in &input.changes {
        match *change {
            Change::Config(place, other) => put(&mut config, place, other),
            Change::Contents(place, other) => put(&mut contents, place, other),
            Change::Coded { tensor, codec, group, seed, off } => {
                code(&mut contents, &mut numbers, [tensor, codec, group, seed], off);
            }
            Change::Byte(..) | Change::End(_) => {}
        }
    }
    let mut table = contents.to_string().into_bytes();
    for change in &input.changes {
        if let Change::Byte(at, byte) = *change {
            let at = usize::from(at) % table.len();
            table[at] = byte;
        }
    }
    let mut file = [&(table.len() as u64).to_le_bytes(), table.as_slice(), numbers.as_slice()].concat();
    for change in &input.changes {
        if let Change::End(at) = *change {
            file.truncate(usize::from(at));
        }
    }
    read(config.to_string().as_bytes(), &file, &base.tokenizer, input.changes.is_empty());
});

fn read(config: &[u8], file: &[u8], tokenizer: &[u8], is_whole: bool) {
    match Config::from_json(config) {
        Ok(config) if config.context.max(config.num_layers) > MOST => return,
        Ok(_) => {}
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return seeds::refused(error);
        }
    }
    let model = match Model::from_bytes("fuzzed", config, file, Some(tokenizer)) {
        Ok(model) => model,
        Err(error) => {
            assert!(!is_whole && !error.to_string().is_empty(), "{error}");
            return seeds::refused(error);
        }
    };
    let Ok(mut cache) = model.config().dense_cache() else { return };
    // A token outside of the vocabulary and a number that is not finite are errors.
    if let Ok(logits) = model.forward(&[0, 1, 0], 0, &mut cache) {
        assert_eq!(logits.len(), 3 * model.config().vocab_size);
    }
}

/// All places of a value, as JSON pointers.
fn places(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| places(value, format!("{at}/{i}"), all));
        }
        Value::Object(map) => {
            map.iter()
                .for_each(|(key, value)| places(value, format!("{at}/{}", key.replace('/', "~1")), all));
        }
        _ => {}
    }
    all.push(at);
}

fn put(value: &mut Value, place: u16, other: Other) {
    let mut all = Vec::new();
    places(value, String::new(), &mut all);
    let at = &all[usize::from(place) % all.len()];
    let new = match other {
        Other::Gone => {
            let parent =
                at.rsplit_once('/').and_then(|(parent, key)| Some((value.pointer_mut(parent)?, key)));
            if let Some((Value::Object(map), key)) = parent {
                map.remove(&key.replace("~1", "/"));
            }
            return;
        }
        Other::Null => Value::Null,
        Other::Flag(flag) => flag.into(),
        Other::Number(number) => number.into(),
        Other::Power(bits) => 1u64.checked_shl(bits.into()).unwrap_or(u64::MAX).into(),
        Other::Fraction(exponent) => 10f64.powi(i32::from(exponent) / 3).into(),
        Other::Word(word) => WORDS[usize::from(word) % WORDS.len()].into(),
        Other::Copied(from) => {
            value.pointer(&all[usize::from(from) % all.len()]).cloned().unwrap_or_default()
        }
    };
    if let Some(place) = value.pointer_mut(at) {
        *place = new;
    }
}

/// Replaces a tensor of numbers by a tensor of blocks at the end of the file, and updates the table of
/// contents.
fn code(contents: &mut Value, numbers: &mut Vec<u8>, [tensor, codec, group, seed]: [u8; 4], off: i8) {
    let Value::Object(map) = contents else { return };
    let names: Vec<String> = map.keys().filter(|name| *name != "__metadata__").cloned().collect();
    let Some(name) = names.get(usize::from(tensor) % names.len().max(1)).cloned() else { return };
    let (id, dim) =
        (CodecId::ALL[usize::from(codec) % CodecId::ALL.len()], HEAD_DIMS[usize::from(group) % 6]);
    let said = json!({ "codec": id.name(), "group": dim, "seed": seed }).to_string();
    let shape: Option<Vec<usize>> = map[&name]["shape"]
        .as_array()
        .map(|shape| shape.iter().map(|extent| extent.as_u64().unwrap_or(0) as usize % MOST).collect());
    let (Some(mut shape), Some(bytes)) = (shape, id.block_bytes(dim)) else { return };
    let Some(row) = shape.last_mut() else { return };
    *row = (*row / dim * bytes).saturating_add_signed(off.into());
    let from = numbers.len();
    let len = shape.iter().fold(1, |all: usize, extent| all.saturating_mul(*extent));
    if len > 1 << 16 {
        return;
    }
    numbers.extend((0..len).map(|i| (i * 31 + usize::from(seed)) as u8 & 0xbf));
    let end = numbers.len();
    let was = map.insert(name.clone(), json!({ "dtype": "U8", "shape": shape, "data_offsets": [from, end] }));
    if let Some(was) = was {
        // The old bytes stay in the file, and files must not have holes. A model does not read tensors of this name.
        let range = [0, 1].map(|i| was["data_offsets"][i].as_u64().unwrap_or(0));
        let filler =
            json!({ "dtype": "U8", "shape": [range[1].saturating_sub(range[0])], "data_offsets": range });
        map.insert(format!("was.{name}.rotary_emb.inv_freq"), filler);
    }
    let metadata = map.entry("__metadata__").or_insert_with(|| json!({}));
    if let Value::Object(metadata) = metadata {
        metadata.insert(format!("tqkv.{name}"), said.into());
    }
}
