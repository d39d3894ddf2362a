//! Damaged and malicious files. Each gives a working tokeniser or a one-line error, and soon.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tqkv_model::{SpecialTokens, Tokenizer};

const VOCAB: usize = 300;

/// A tokenizer.json with every part that occurs in files of language models.
fn whole() -> Value {
    let letters = (0x21..0x7f).chain([0x120, 0x10a]).filter_map(char::from_u32);
    let mut vocab: Map<String, Value> =
        letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
    let merges = [["h", "e"], ["t", "he"], ["\u{120}", "the"], ["i", "n"], ["in", "g"], ["\u{120}", "x"]];
    for pair in merges {
        vocab.insert(pair.concat(), vocab.len().into());
    }
    let token = |id: usize, content: &str, special: bool| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": !special, "special": special })
    };
    let after = vocab.len();
    json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 40 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "!" },
        "added_tokens": [token(after, "<s>", true), token(after + 1, "  ", false)],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "NFC" }, { "type": "Replace", "pattern": { "String": "\u{a0}" }, "content": " " } ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": r"\p{N}{1,3}|\s+(?!\S)|\s+" }, "behavior": "Isolated", "invert": false },
            { "type": "Digits", "individual_digits": true },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true } ] },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [after], "tokens": ["<s>"] } } },
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 } ] },
        "model": { "type": "BPE", "dropout": 0.5, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges },
    })
}

/// All places in `value`, as JSON pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| places(value, &format!("{at}/{i}"), found));
        }
        Value::Object(map) => {
            for (key, value) in map {
                places(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
            }
        }
        _ => {}
    }
}

/// A value to put in place of another.
fn other(random: &mut fastrand::Rng, value: &Value) -> Value {
    let huge = || json!(u32::MAX);
    match random.u32(..16) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => huge(),
        4 => json!(u64::MAX),
        5 => json!(1e300),
        6 => json!(""),
        7 => json!("\u{0}\u{1f980}"),
        8 => json!("x".repeat(random.usize(..6000))),
        9 => json!([]),
        10 => json!({}),
        11 => (0..random.usize(1..200)).fold(value.clone(), |inner, _| json!([inner])),
        12 => {
            let lists = ["normalizers", "pretokenizers", "decoders", "processors"];
            let list = lists[random.usize(..lists.len())];
            let depth = random.usize(1..100);
            (0..depth).fold(value.clone(), |inner, _| json!({ "type": "Sequence", list: [inner] }))
        }
        13 => json!(vec![value.clone(); random.usize(2..300)]),
        14 => {
            let patterns = ["(a+)+$", "((((x{99}){99}){99}){99})", "(?=(?=a*)*)*", "(", r"\p{L}{1000}", ""];
            json!({ "Regex": patterns[random.usize(..patterns.len())] })
        }
        _ => match value {
            Value::String(text) => json!(format!("{text}{text}")),
            Value::Number(number) => json!(number.as_u64().unwrap_or(0).wrapping_add(random.u64(..1000))),
            _ => json!("ByteLevel"),
        },
    }
}

/// The one-line error, or the number of tokens for some texts.
fn try_out(json: &[u8]) -> Result<usize, String> {
    let tokenizer = Tokenizer::new(Some(json), VOCAB).map_err(|error| error.to_string())?;
    let mut tokens = 0;
    for text in ["", "the thing is 1234  in\u{a0}things\n\n", &"hex the ".repeat(500), "\u{1f980}<s>\u{301}"]
    {
        let ids = tokenizer.encode(text.as_bytes(), SpecialTokens::Add).map_err(|error| error.to_string())?;
        assert!(ids.iter().all(|id| (*id as usize) < VOCAB));
        tokenizer.decode(&ids).map_err(|error| error.to_string())?;
        tokens += ids.len();
    }
    Ok(tokens)
}

fn check(json: &[u8], what: &str) -> bool {
    let clock = Instant::now();
    let result = try_out(json);
    assert!(clock.elapsed() < Duration::from_secs(10), "{what} takes {:?}", clock.elapsed());
    if let Err(error) = &result {
        assert!(error.starts_with("tokenizer.json: ") && !error.contains('\n'), "{what}: {error}");
        assert!(error.len() < 5000, "{what}: {} bytes of error", error.len());
    }
    result.is_ok()
}

#[test]
fn mutants_work_or_end_in_one_line() {
    let whole = whole();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    // The vocabulary has many letters, and all are alike.
    let (letters, mut all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|at| at.starts_with("/model/vocab/"));
    all.extend(letters.into_iter().step_by(20));
    let mut random = fastrand::Rng::with_seed(11);
    let mut working = 0;
    for i in 0..800 {
        let mut mutant = whole.clone();
        let mut changes = Vec::new();
        for _ in 0..random.usize(1..3) {
            let at = &all[random.usize(..all.len())];
            let Some(value) = mutant.pointer_mut(at) else { continue };
            *value = other(&mut random, value);
            changes.push(at.as_str());
        }
        working += usize::from(check(mutant.to_string().as_bytes(), &format!("mutant {i} of {changes:?}")));
    }
    assert!((50..700).contains(&working), "{working} of 800 work: others are needed");
}

#[test]
fn missing_parts_and_cut_files_end_in_one_line() {
    let whole = whole();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    for at in all.iter().filter(|at| !at.starts_with("/model/vocab/")) {
        let mut mutant = whole.clone();
        let Some((parent, key)) = at.rsplit_once('/') else { continue };
        if let Some(Value::Object(map)) = mutant.pointer_mut(parent) {
            map.remove(&key.replace("~1", "/").replace("~0", "~"));
            check(mutant.to_string().as_bytes(), at);
        }
    }
    let bytes = whole.to_string().into_bytes();
    for len in (0..bytes.len()).step_by(61) {
        assert!(!check(&bytes[..len], "cut"));
    }
}

#[test]
fn truncation_padding_and_dropout_are_off() {
    let bytes = whole().to_string().into_bytes();
    let tokenizer = Tokenizer::new(Some(&bytes), VOCAB).unwrap();
    let encode = |special| tokenizer.encode(b"the thing is 12", special).unwrap();
    let ids = encode(SpecialTokens::Add);
    assert_eq!(ids.len(), 12, "{ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the thing is 12");
    assert!((0..20).all(|_| encode(SpecialTokens::Add) == ids));
    assert_eq!(encode(SpecialTokens::Omit), ids[1..]);
}

#[test]
fn what_would_take_all_memory_or_time_is_refused_by_name() {
    let refused = |at: &str, value: Value, said: &str| {
        let mut file = whole();
        *file.pointer_mut(at).unwrap() = value;
        let error = try_out(file.to_string().as_bytes()).unwrap_err();
        assert!(error.contains(said), "{at}: {error}");
    };
    let long = |len: usize| json!("x".repeat(len));
    let nested = |depth: usize| {
        (0..depth)
            .fold(json!({ "type": "NFC" }), |inner, _| json!({ "type": "Sequence", "normalizers": [inner] }))
    };
    let replace = json!({ "type": "Replace", "pattern": { "String": "x" }, "content": "x".repeat(100) });
    let steps =
        |step: &Value, count: usize| json!({ "type": "Sequence", "normalizers": vec![step.clone(); count] });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let unigram = |pieces: Value| json!({ "type": "Unigram", "unk_id": 0, "vocab": pieces });
    refused("/normalizer", nested(20), "nested more than 12 deep");
    refused("/normalizer", steps(&replace, 2), "could grow more than 1024 times");
    refused("/normalizer", steps(&json!({ "type": "NFC" }), 100), "more than 64 steps");
    refused(
        "/normalizer",
        json!({ "type": "Precompiled", "precompiled_charsmap": "AAAAAAAA" }),
        "the library",
    );
    refused("/normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "/////w" }), "cut short");
    refused(
        "/normalizer",
        json!({ "type": "Precompiled", "precompiled_charsmap": format!("AAAAAHh4{}", "eHh4".repeat(100)) }),
        "a text of 302 bytes",
    );
    refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", long(5000), "a text of 5000 bytes");
    refused("/pre_tokenizer", json!({ "type": "FixedLength", "length": 0 }), "FixedLength: length is 0");
    refused("/post_processor/single", json!(vec![text; 3]), "has the text more than once");
    refused("/model", unigram(json!([["a", -1.0], ["", -1.0]])), "an empty piece");
    refused("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix");
    refused(
        "/decoder",
        json!({ "type": "Strip", "content": " ", "start": 0, "stop": 9 }),
        "the library that reads it fails",
    );
    refused("/added_tokens/0/id", json!(5000), "the added token \"<s>\" has the id 5000");
    refused(
        "/post_processor/special_tokens/<s>/ids/0",
        json!(70000),
        "is 70000, and the model's vocab_size is 300",
    );
}
