//! The layers of models of any architecture, from the headers of GGUF files.

use tqkv_model::{LayerKv, ModelKv};

/// A value of a header.
enum Written<'a> {
    Number(u32),
    Numbers(&'a [i32]),
    Switches(&'a [bool]),
}
use Written::{Number, Numbers, Switches};

/// A file without tensors.
fn header(architecture: &str, pairs: &[(&str, Written<'_>)]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
    bytes.extend((pairs.len() as u64 + 1).to_le_bytes());
    bytes.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text(architecture)].concat());
    for (key, value) in pairs {
        bytes.extend(text(&format!("{architecture}.{key}")));
        let list = |kind: u32, len: usize| {
            [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &(len as u64).to_le_bytes()].concat()
        };
        match value {
            Number(number) => bytes.extend([4u32.to_le_bytes(), number.to_le_bytes()].concat()),
            Numbers(numbers) => {
                bytes.extend(list(5, numbers.len()));
                numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            Switches(switches) => {
                bytes.extend(list(7, switches.len()));
                bytes.extend(switches.iter().map(|on| u8::from(*on)));
            }
        }
    }
    bytes
}

fn read(architecture: &str, pairs: &[(&str, Written<'_>)]) -> Result<ModelKv, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    std::fs::write(&path, header(architecture, pairs)).unwrap();
    ModelKv::of(&path).map_err(|error| error.to_string())
}

/// Windows, KV heads and widths of each layer; `-` for one that keeps nothing.
fn layers(kv: &ModelKv) -> String {
    let layer = |layer: &Option<LayerKv>| match layer {
        None => "-".to_owned(),
        Some(LayerKv { window, num_kv_heads, head_dim, value_dim, position_dim }) => {
            let window = window.map_or(String::new(), |tokens| format!("{tokens}:"));
            let position = if *position_dim > 0 { format!("+{position_dim}") } else { String::new() };
            format!("{window}{num_kv_heads}x{head_dim}/{value_dim}{position}")
        }
    };
    kv.layers.iter().map(layer).collect::<Vec<_>>().join(" ")
}

#[test]
fn headers_of_every_kind_are_read() {
    let whole = || {
        vec![
            ("block_count", Number(3)),
            ("embedding_length", Number(512)),
            ("attention.head_count", Number(8)),
        ]
    };
    for (architecture, more, expected) in [
        ("newcomer", vec![("attention.head_count_kv", Number(2))], "2x64/64 2x64/64 2x64/64"),
        ("newcomer", vec![], "8x64/64 8x64/64 8x64/64"),
        (
            "newcomer",
            vec![("attention.head_count_kv", Numbers(&[0, 2, 0])), ("shortconv.l_cache", Number(3))],
            "- 2x64/64 -",
        ),
        (
            "newcomer",
            vec![
                ("attention.key_length", Number(512)),
                ("attention.value_length", Number(512)),
                ("attention.key_length_swa", Number(256)),
                ("attention.value_length_swa", Number(256)),
                ("attention.head_count_kv", Numbers(&[16, 16, 4])),
                ("attention.sliding_window", Number(1024)),
                ("attention.sliding_window_pattern", Switches(&[true, true, false])),
            ],
            "1024:16x256/256 1024:16x256/256 4x512/512",
        ),
        ("newcomer", vec![("nextn_predict_layers", Number(1))], "8x64/64 8x64/64"),
        ("newcomer", vec![("attention.shared_kv_layers", Number(2))], "8x64/64 - -"),
        (
            "qwen35",
            vec![("ssm.state_size", Number(16)), ("full_attention_interval", Number(3))],
            "- - 8x64/64",
        ),
        (
            "falcon-h1",
            vec![("ssm.state_size", Number(16)), ("attention.head_count_kv", Number(2))],
            "2x64/64 2x64/64 2x64/64",
        ),
        ("gpt-oss", vec![("attention.sliding_window", Number(128))], "128:8x64/64 8x64/64 128:8x64/64"),
        ("llama", vec![("attention.sliding_window", Number(128))], "8x64/64 8x64/64 8x64/64"),
        ("gemma2", vec![], "4096:8x64/64 8x64/64 4096:8x64/64"),
        (
            "deepseek2",
            vec![
                ("attention.kv_lora_rank", Number(512)),
                ("attention.head_count_kv", Number(1)),
                ("attention.key_length", Number(576)),
                ("attention.value_length", Number(512)),
            ],
            "1x576/512+64 1x576/512+64 1x576/512+64",
        ),
        (
            "deepseek2",
            vec![
                ("attention.kv_lora_rank", Number(512)),
                ("attention.key_length", Number(192)),
                ("attention.value_length", Number(128)),
            ],
            "8x192/128 8x192/128 8x192/128",
        ),
    ] {
        let pairs: Vec<_> = whole().into_iter().chain(more).collect();
        let kv =
            read(architecture, &pairs).unwrap_or_else(|error| panic!("{architecture}, {expected}: {error}"));
        assert_eq!(layers(&kv), expected, "{architecture}");
    }
}

#[test]
fn what_a_header_leaves_open_is_refused() {
    let whole = || {
        vec![
            ("block_count", Number(3)),
            ("embedding_length", Number(512)),
            ("attention.head_count", Number(8)),
        ]
    };
    for (more, word) in [
        (("attention.sliding_window", Number(128)), "which layers of newcomer slide"),
        (("ssm.state_size", Number(16)), "recurrent layers, and it is not known which"),
        (("attention.head_count_kv", Numbers(&[1, 2])), "2 entries for 3 layers"),
        (("attention.head_count_kv", Numbers(&[1, 2, 1, 1])), "4 entries for 3 layers"),
        (("block_count", Number(3)), "its key \"newcomer.block_count\" stands twice"),
        (("attention.key_length", Numbers(&[64, 64, 64])), "a whole number"),
    ] {
        let pairs: Vec<_> = whole().into_iter().chain([more]).collect();
        let said = read("newcomer", &pairs).unwrap_err();
        assert!(said.contains(word), "{word}: {said}");
    }
    let windows =
        [("attention.sliding_window", Number(8)), ("attention.sliding_window_pattern", Switches(&[true; 4]))];
    let pairs: Vec<_> = whole().into_iter().chain(windows).collect();
    assert!(read("newcomer", &pairs).unwrap_err().contains("4 entries for 3 layers"));
    // A layer that predicts a further token has its entry, and no cache.
    let predicting = [("nextn_predict_layers", Number(1)), ("attention.head_count_kv", Numbers(&[1, 2, 4]))];
    let pairs: Vec<_> = whole().into_iter().chain(predicting).collect();
    assert_eq!(layers(&read("newcomer", &pairs).unwrap()), "1x64/64 2x64/64");
    assert!(read("newcomer", &[]).unwrap_err().contains("newcomer.block_count is missing"));
    for (key, more) in [("block_count", None), ("embedding_length", Some(("block_count", Number(1))))] {
        let pairs = [Some((key, Number(0))), more, Some(("attention.head_count", Number(2)))];
        let said = read("newcomer", &pairs.into_iter().flatten().collect::<Vec<_>>()).unwrap_err();
        assert!(said.contains(&format!("newcomer.{key} is 0: expected 1 or more")), "{said}");
    }
    let none = [("block_count", Number(3)), ("attention.head_count", Number(0))];
    assert!(read("mamba", &none).unwrap_err().contains("no layer with attention"));
}

/// Writers differ in the type of numbers; the alignment of tensors is one of them.
#[test]
fn an_alignment_is_a_power_of_two_of_any_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let read = |kind: u32, alignment: i32| {
        let mut bytes = header(
            "newcomer",
            &[
                ("block_count", Number(1)),
                ("attention.head_count", Number(1)),
                ("attention.key_length", Number(64)),
            ],
        );
        bytes[16..24].copy_from_slice(&5u64.to_le_bytes());
        let key = "general.alignment";
        bytes.extend(
            [
                &(key.len() as u64).to_le_bytes()[..],
                key.as_bytes(),
                &kind.to_le_bytes(),
                &alignment.to_le_bytes(),
            ]
            .concat(),
        );
        std::fs::write(&path, bytes).unwrap();
        ModelKv::of(&path).map(|kv| kv.layers.len()).map_err(|error| error.to_string())
    };
    assert_eq!((read(4, 32), read(5, 32)), (Ok(1), Ok(1)));
    for alignment in [0, -32, 24] {
        let said = read(5, alignment).unwrap_err();
        assert!(
            said.contains(&format!("general.alignment is {alignment}; expected a power of two")),
            "{said}"
        );
    }
}

/// llama.cpp takes such a name too. A key that is read is another matter.
#[test]
fn a_name_may_be_no_utf8() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let read = |key: &str| {
        let pairs = [
            ("block_count", Number(1)),
            ("attention.head_count", Number(1)),
            ("attention.key_length", Number(64)),
        ];
        let mut bytes = header("newcomer", &pairs);
        bytes[16..24].copy_from_slice(&5u64.to_le_bytes());
        let length = |text: &[u8]| (text.len() as u64).to_le_bytes();
        let name = [0xff, 0xfe, 0x80];
        let parts = [&length(key.as_bytes())[..], key.as_bytes(), &8u32.to_le_bytes(), &length(&name), &name];
        bytes.extend(parts.concat());
        std::fs::write(&path, bytes).unwrap();
        ModelKv::of(&path).map(|kv| kv.layers.len()).map_err(|error| error.to_string())
    };
    assert_eq!(read("general.name"), Ok(1));
    assert!(read("newcomer.context_length").unwrap_err().contains("expected a whole number"));
}
