//! GGUF files with the same weights as Hugging Face checkpoints.

use crate::support::{CONTEXT, Checkpoint, HEADS, HIDDEN, INTER, KV_HEADS, LAYERS, VOCAB};
use safetensors::Dtype;
use serde_json::json;
use tqkv_model::{Model, ModelKv, SpecialTokens, WeightBytes};

/// A metadata value.
#[derive(Clone)]
pub(crate) enum Value {
    Number(u32),
    Float(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<u32>),
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A list of entries of one kind.
fn listed(kind: u32, len: usize, entries: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes(), entries].concat()
}

fn put(bytes: &mut Vec<u8>, key: &str, value: &Value) {
    text(bytes, key);
    let (kind, rest) = match value {
        Value::Number(number) => (4u32, number.to_le_bytes().to_vec()),
        Value::Float(float) => (6, float.to_le_bytes().to_vec()),
        Value::Bool(flag) => (7, vec![u8::from(*flag)]),
        Value::Text(words) => (8, {
            let mut rest = Vec::new();
            text(&mut rest, words);
            rest
        }),
        Value::Texts(list) => (9, {
            let mut all = Vec::new();
            list.iter().for_each(|words| text(&mut all, words));
            listed(8, list.len(), &all)
        }),
        Value::Numbers(list) => (
            9,
            listed(4, list.len(), &list.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>()),
        ),
        Value::Floats(list) => (
            9,
            listed(6, list.len(), &list.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>()),
        ),
        Value::Bytes(list) => (9, listed(0, list.len(), list)),
    };
    bytes.extend(kind.to_le_bytes());
    bytes.extend(rest);
}

/// The name, shape (outermost first) and f32 values of a tensor.
pub(crate) type Tensor = (String, Vec<usize>, Vec<f32>);

pub(crate) fn file(metadata: &[(String, Value)], tensors: &[Tensor]) -> Vec<u8> {
    let stored = |(name, shape, values): &Tensor| Stored {
        name: name.clone(),
        shape: shape.clone(),
        kind: 0,
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    file_of(metadata, &tensors.iter().map(stored).collect::<Vec<_>>())
}

/// A tensor in its stored form, with its shape outermost first.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn file_of(metadata: &[(String, Value)], tensors: &[Stored]) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    metadata.iter().for_each(|(key, value)| put(&mut bytes, key, value));
    let mut data = Vec::new();
    for tensor in tensors {
        text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|&extent| bytes.extend((extent as u64).to_le_bytes()));
        bytes.extend(tensor.kind.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    bytes
}

/// GPT-2's characters for bytes, by byte.
pub(crate) fn byte_tokens() -> Vec<String> {
    let shown = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 0..;
    let char_of = |byte: u32| if shown(byte) { byte } else { 256 + hidden.next().unwrap() };
    (0..256).map(char_of).map(|code| char::from_u32(code).unwrap().to_string()).collect()
}

/// Reorders rows for interleaved RoPE, where the halves of a head alternate.
fn interleaved(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let head_dim = values.len() / width / heads;
    let row = |head: usize, i: usize| (head * head_dim + i % 2 * (head_dim / 2) + i / 2) * width;
    let rows = (0..heads).flat_map(|head| (0..head_dim).map(move |i| row(head, i)));
    rows.flat_map(|at| values[at..at + width].to_vec()).collect()
}

const FAMILIES: [(&str, &str); 3] =
    [("LlamaForCausalLM", "llama"), ("Qwen2ForCausalLM", "qwen2"), ("Qwen3ForCausalLM", "qwen3")];

fn metadata(family: &str, head_dim: usize) -> Vec<(String, Value)> {
    let own = |key: &str, value| (format!("{family}.{key}"), value);
    let number = |number: usize| Value::Number(number as u32);
    vec![
        ("general.architecture".to_owned(), Value::Text(family.to_owned())),
        own("context_length", number(CONTEXT)),
        own("embedding_length", number(HIDDEN)),
        own("block_count", number(LAYERS)),
        own("feed_forward_length", number(INTER)),
        own("attention.head_count", number(HEADS)),
        own("attention.head_count_kv", number(KV_HEADS)),
        own("attention.key_length", number(head_dim)),
        own("attention.layer_norm_rms_epsilon", Value::Float(1e-5)),
        own("rope.freq_base", Value::Float(10_000.0)),
        ("tokenizer.ggml.model".to_owned(), Value::Text("gpt2".to_owned())),
        ("tokenizer.ggml.pre".to_owned(), Value::Text("gpt-2".to_owned())),
        ("tokenizer.ggml.tokens".to_owned(), Value::Texts(byte_tokens())),
        ("tokenizer.ggml.merges".to_owned(), Value::Texts(Vec::new())),
        ("tokenizer.ggml.eos_token_id".to_owned(), Value::Number(10)),
        ("tokenizer.ggml.bos_token_id".to_owned(), Value::Number(0)),
        ("tokenizer.ggml.add_bos_token".to_owned(), Value::Bool(true)),
    ]
}

fn tensors(checkpoint: &Checkpoint, family: &str) -> Vec<Tensor> {
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let tensor = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
        let here = parts.iter().fold(name.clone(), |name, (there, here)| name.replace(there, here));
        let heads = [("attn_q.", HEADS), ("attn_k.", KV_HEADS)];
        let heads = heads.iter().find(|(part, _)| family == "llama" && here.contains(part));
        let width = shape.iter().skip(1).product();
        let values = heads.map_or_else(|| values.clone(), |(_, heads)| interleaved(values, *heads, width));
        (here, shape.clone(), values)
    };
    checkpoint.tensors.iter().map(tensor).collect()
}

fn load(bytes: &[u8]) -> Result<Model, String> {
    Model::from_gguf("tiny", &[("tiny.gguf", bytes)]).map_err(|error| error.to_string())
}

fn logits(model: &Model) -> Vec<f32> {
    let tokens: Vec<u32> = (0..20).map(|i| i * 37 % VOCAB as u32).collect();
    model.forward(&tokens, 0, &mut model.config().dense_cache().unwrap()).unwrap()
}

#[test]
fn the_same_weights_give_the_same_logits() {
    for (architecture, family) in FAMILIES {
        for changes in [json!({}), json!({ "tie_word_embeddings": true })] {
            let checkpoint = Checkpoint::new(architecture, 8, changes);
            let bytes = file(&metadata(family, 8), &tensors(&checkpoint, family));
            let model = load(&bytes).unwrap();
            let config = checkpoint.config.to_string();
            let same =
                Model::from_bytes("tiny", config.as_bytes(), &checkpoint.bytes(Dtype::F32), None).unwrap();
            assert_eq!(logits(&model), logits(&same), "{family}");
            assert_eq!(model.config().eos_tokens, [10]);
        }
    }
}

#[test]
fn factors_of_frequencies_are_those_of_linear_scaling() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let mut all = tensors(&checkpoint, "llama");
    all.push(("rope_freqs.weight".to_owned(), vec![4], vec![2.0; 4]));
    let model = load(&file(&metadata("llama", 8), &all)).unwrap();
    let mut other = metadata("llama", 8);
    other.push(("llama.rope.scaling.type".to_owned(), Value::Text("linear".to_owned())));
    other.push(("llama.rope.scaling.factor".to_owned(), Value::Float(2.0)));
    let linear = load(&file(&other, &tensors(&checkpoint, "llama"))).unwrap();
    assert_eq!(logits(&model), logits(&linear));
    assert_ne!(
        logits(&model),
        logits(&load(&file(&metadata("llama", 8), &tensors(&checkpoint, "llama"))).unwrap())
    );
    all.last_mut().unwrap().1 = vec![2];
    all.last_mut().unwrap().2.truncate(2);
    assert!(load(&file(&metadata("llama", 8), &all)).unwrap_err().contains("2 factors"));
}

#[test]
fn text_becomes_tokens_and_comes_back() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let model = load(&file(&metadata("llama", 8), &tensors(&checkpoint, "llama"))).unwrap();
    let text = "two words, \u{e9}\u{1f980}\n";
    let tokens = model.tokenizer().encode(text.as_bytes(), SpecialTokens::Omit).unwrap();
    assert_eq!(tokens, text.bytes().map(u32::from).collect::<Vec<_>>(), "no merges: a token a byte");
    assert_eq!(model.tokenizer().decode(&tokens).unwrap(), text);
    assert_eq!(model.tokenizer().encode(b"a", SpecialTokens::Add).unwrap(), [0, u32::from(b'a')]);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let all = tensors(&checkpoint, "llama");
    let with = |key: &str, value: Value| {
        let mut metadata = metadata("llama", 8);
        metadata.retain(|(other, _)| other != key);
        metadata.push((key.to_owned(), value));
        load(&file(&metadata, &all)).unwrap_err()
    };
    let words = |text: &str| Value::Text(text.to_owned());
    for (key, value, said) in [
        (
            "general.architecture",
            words("mamba"),
            "architecture mamba is not supported; accepted: llama, qwen2, qwen3, gemma3",
        ),
        ("tokenizer.ggml.pre", words("gpt-4o"), "tokenizer.ggml.pre gpt-4o is not known"),
        ("tokenizer.ggml.model", words("t5"), "tokenizer of kind t5 is not supported; accepted: gpt2"),
        ("tokenizer.ggml.model", words("llama"), "tokenizer.ggml.scores is missing"),
        ("tokenizer.ggml.token_type", words("1"), "token_type is missing, or no list"),
        ("tokenizer.ggml.add_bos_token", words("yes"), "add_bos_token: true or false is accepted"),
        ("tokenizer.ggml.add_eos_token", Value::Bool(true), "add_eos_token"),
        ("llama.expert_count", Value::Number(8), "llama.expert_count: not computed"),
        ("llama.rope.scaling.type", words("yarn"), "yarn is not computed"),
        ("llama.rope.dimension_count", Value::Number(4), "another width"),
        ("llama.attention.head_count", Value::Texts(Vec::new()), "one whole number"),
        ("split.count", Value::Number(2), "one of 2 parts"),
    ] {
        let error = with(key, value);
        assert!(
            error.starts_with("tiny.gguf: ") && error.contains(said) && !error.contains('\n'),
            "{key}: {error}"
        );
    }
    let mut uneven = all.clone();
    for (_, shape, values) in uneven.iter_mut().filter(|(name, ..)| name.contains("attn_q.")) {
        shape[0] -= 3;
        values.truncate(shape[0] * shape[1]);
    }
    let error = load(&file(&metadata("llama", 8), &uneven)).unwrap_err();
    assert!(error.contains("has shape [29, 24], expected [32, 24]"), "{error}");
    // Nothing reads these: an unknown part, a layer too many, a bias of a norm, and norms of another family.
    for name in
        ["blk.0.attn_sinks.weight", "blk.2.ffn_up.weight", "blk.0.attn_norm.bias", "blk.0.attn_q_norm.weight"]
    {
        let mut more = all.clone();
        more.push((name.to_owned(), vec![4], vec![0.0; 4]));
        let error = load(&file(&metadata("llama", 8), &more)).unwrap_err();
        assert!(error.contains(&format!("tensor {name} is not read")), "{error}");
    }
    let mut fewer = all.clone();
    fewer.retain(|(name, ..)| name != "blk.1.ffn_up.weight");
    let error = load(&file(&metadata("llama", 8), &fewer)).unwrap_err();
    assert!(error.contains("model.layers.1.mlp.up_proj.weight"), "{error}");
}

#[test]
fn damaged_files_end_in_one_line() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let whole = file(&metadata("llama", 8), &tensors(&checkpoint, "llama"));
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..300 {
        let error = load(&whole[..random.usize(..whole.len() - 32)]).unwrap_err();
        assert!(!error.is_empty() && !error.contains('\n'), "{error}");
    }
    for _ in 0..1000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..8000);
            bytes[at] = random.u8(..);
        }
        if let Err(error) = load(&bytes) {
            assert!(!error.contains('\n'), "{error}");
        }
    }
}

/// For any metadata, memory stays in proportion to the file.
#[test]
fn lists_of_the_metadata_take_no_memory_of_their_own() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let all = tensors(&checkpoint, "llama");
    for list in [Value::Bytes(vec![7; 16 << 20]), Value::Texts(vec![String::new(); 2 << 20])] {
        let mut metadata = metadata("llama", 8);
        metadata.push(("general.other".to_owned(), list));
        let bytes = file(&metadata, &all);
        let used = allocation_counter::measure(|| drop(load(&bytes).unwrap())).bytes_max;
        assert!(used < 4 * bytes.len() as u64, "{used} bytes of memory for {} of a file", bytes.len());
    }
}

#[test]
fn more_entries_than_any_model_has_are_refused() {
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    let all = tensors(&checkpoint, "llama");
    let mut many = metadata("llama", 8);
    for (_, value) in many.iter_mut().filter(|(key, _)| key == "tokenizer.ggml.tokens") {
        *value = Value::Texts(vec![String::new(); (1 << 20) + 1]);
    }
    let error = load(&file(&many, &all)).unwrap_err();
    assert!(error.contains("tokenizer.ggml.tokens has 1048577 entries; expected up to 1048576"), "{error}");
    let pairs = (0..65_537).map(|i| (format!("k{i}"), Value::Bool(true)));
    let error = load(&file(&pairs.collect::<Vec<_>>(), &all)).unwrap_err();
    assert!(error.contains("65537 pairs of metadata"), "{error}");
    let tensors: Vec<Tensor> = (0..65_537).map(|i| (format!("t{i}"), vec![], vec![])).collect();
    let error = load(&file(&metadata("llama", 8), &tensors)).unwrap_err();
    assert!(error.contains("65537 tensors; expected up to"), "{error}");
}

/// A model with this chat template. It has its own tokens for the beginning of a text (0), the end of a turn
/// (9) and the end of a text.
pub(crate) fn conversing(template: Option<&str>) -> Model {
    let mut metadata = metadata("llama", 8);
    for (key, value) in &mut metadata {
        if let (Value::Texts(tokens), "tokenizer.ggml.tokens") = (value, key.as_str()) {
            for (id, name) in [(0, "<s>"), (9, "<end_of_turn>"), (10, "<e>")] {
                tokens[id] = name.to_owned();
            }
        }
    }
    metadata.extend(
        template.map(|template| ("tokenizer.chat_template".to_owned(), Value::Text(template.to_owned()))),
    );
    let kinds = (0..VOCAB).map(|id| if [0, 9, 10].contains(&id) { 3 } else { 1 });
    metadata.push(("tokenizer.ggml.token_type".to_owned(), Value::Numbers(kinds.collect())));
    let checkpoint = Checkpoint::new("LlamaForCausalLM", 8, json!({}));
    load(&file(&metadata, &tensors(&checkpoint, "llama"))).unwrap()
}

/// The bytes of a `llama` file with the weights of `checkpoint`.
pub(crate) fn tiny(checkpoint: &Checkpoint) -> Vec<u8> {
    file(&metadata("llama", 8), &tensors(checkpoint, "llama"))
}

/// The same file in two parts.
pub(crate) fn tiny_split(checkpoint: &Checkpoint) -> [Vec<u8>; 2] {
    let all = tensors(checkpoint, "llama");
    let (first, second) = all.split_at(all.len() / 2);
    let head = [metadata("llama", 8), split(0, 2)].concat();
    [file(&head, first), file(&split(1, 2), second)]
}

/// What a part says of itself.
fn split(number: u32, count: u32) -> Vec<(String, Value)> {
    [("split.no", number), ("split.count", count)]
        .map(|(key, value)| (key.to_owned(), Value::Number(value)))
        .to_vec()
}

#[test]
fn split_files_are_found_by_their_names() {
    let checkpoint = Checkpoint::new("Qwen3ForCausalLM", 8, json!({}));
    let all = tensors(&checkpoint, "qwen3");
    let (first, second) = all.split_at(all.len() / 2);
    let folder = tempfile::tempdir().unwrap();
    let path = |i: usize| folder.path().join(format!("tiny-{i:05}-of-00002.gguf"));
    let head = [metadata("qwen3", 8), split(0, 2)].concat();
    std::fs::write(path(1), file(&head, first)).unwrap();
    let error = Model::load(path(1)).unwrap_err().to_string();
    assert!(error.contains("tiny-00002-of-00002.gguf"), "{error}");
    // The header of the first part has the layers of all.
    assert_eq!(ModelKv::of(path(1)).unwrap().layers.len(), LAYERS);
    assert!(WeightBytes::of(path(1)).unwrap_err().to_string().contains("tiny-00002-of-00002.gguf"));
    std::fs::write(path(2), file(&split(1, 2), second)).unwrap();
    let config = checkpoint.config.to_string();
    let same = Model::from_bytes("tiny", config.as_bytes(), &checkpoint.bytes(Dtype::F32), None).unwrap();
    assert_eq!(logits(&Model::load(path(1)).unwrap()), logits(&same));
}

/// Files that do not belong together: by their numbers, and by a tensor that two of them have.
#[test]
fn parts_of_other_models_are_refused() {
    let checkpoint = Checkpoint::new("Qwen3ForCausalLM", 8, json!({}));
    let all = tensors(&checkpoint, "qwen3");
    let (first, second) = all.split_at(all.len() / 2);
    let folder = tempfile::tempdir().unwrap();
    let path = |i: usize| folder.path().join(format!("tiny-{i:05}-of-00002.gguf"));
    let head = |number, count| [metadata("qwen3", 8), split(number, count)].concat();
    let lay = |one: &[(String, Value)], two: &[(String, Value)], second: &[Tensor]| {
        std::fs::write(path(1), file(one, first)).unwrap();
        std::fs::write(path(2), file(two, second)).unwrap();
    };
    let again = [second, &first[..1]].concat();
    let stands_twice = format!("its tensor {} stands twice", first[0].0);
    for (one, two, second, said) in [
        (head(0, 2), split(0, 2), second, "tiny-00002-of-00002.gguf: its split.no is 0: expected 1"),
        (head(0, 2), split(1, 3), second, "tiny-00002-of-00002.gguf: it is one of 3 parts; here are 2"),
        (head(0, 2), Vec::new(), second, "tiny-00002-of-00002.gguf: it is one of 1 parts"),
        (head(1, 2), split(1, 2), second, "tiny-00001-of-00002.gguf: its split.no is 1: expected 0"),
        (head(0, 2), split(1, 2), &again[..], stands_twice.as_str()),
    ] {
        lay(&one, &two, second);
        for error in [
            Model::load(path(1)).map(drop).unwrap_err().to_string(),
            WeightBytes::of(path(2)).map(drop).unwrap_err().to_string(),
        ] {
            assert!(error.contains(said), "{said}: {error}");
        }
    }
    std::fs::write(path(1), file(&head(1, 2), first)).unwrap();
    assert!(ModelKv::of(path(1)).unwrap_err().to_string().contains("its split.no is 1: expected 0"));
    // One file alone may have a tensor twice as well.
    let error = load(&file(&metadata("qwen3", 8), &[&all[..], &all[3..4]].concat())).unwrap_err();
    assert!(error.contains(&format!("its tensor {} stands twice", all[3].0)), "{error}");
}
