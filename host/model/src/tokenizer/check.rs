//! Limits of a `tokenizer.json`. A file that would take unbounded memory or time is refused before the
//! library reads it.

use serde_json::Value;

/// The most bytes of a file. A file of 262,144 tokens takes 33 MB.
const BYTES: usize = 128 << 20;

/// The most commas, which bounds the number of values. 262,144 tokens have two million.
const COMMAS: usize = 16 << 20;

/// The deepest nesting of lists and objects.
const DEPTH: usize = 12;

/// The longest text in bytes, except for [`CHARSMAP`].
const TEXT: usize = 4096;

/// The key of the one long text, its most bytes, and the most bytes that it may put in place of a character.
const CHARSMAP: (&str, usize, usize) = ("precompiled_charsmap", 4 << 20, 256);

/// The most steps in all sequences together.
const STEPS: usize = 64;

/// The largest factor by which a text may grow.
const GROWTH: usize = 1024;

/// The most tokens that a template adds.
const PIECES: usize = 16;

/// Parses and checks the file. Removes truncation and padding, which would cut or fill up prompts. Removes
/// dropout as well, which would tokenise prompts at random.
pub(super) fn checked(json: &[u8]) -> Result<Value, String> {
    let commas = json.iter().filter(|byte| **byte == b',').count();
    if json.len() > BYTES || commas > COMMAS {
        return Err(format!(
            "{} bytes with {commas} commas; expected up to {BYTES} bytes with {COMMAS}",
            json.len()
        ));
    }
    let mut value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    sizes(&value, 0)?;
    let root = value.as_object_mut().ok_or("no JSON object")?;
    root.remove("truncation");
    root.remove("padding");
    if let Some(Value::Object(model)) = root.get_mut("model") {
        model.remove("dropout");
    }
    if let Some(model) = root.get("model") {
        check_model(model)?;
    }
    let mut steps = 0;
    for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        let mut growth = 1;
        let walked = root.get(part).map_or(Ok(()), |step| walk(step, &mut steps, &mut growth));
        walked.map_err(|error| format!("{part}: {error}"))?;
    }
    Ok(value)
}

/// Refuses deep nesting and long texts.
fn sizes(value: &Value, depth: usize) -> Result<(), String> {
    let fits = |text: &str| match text.len() {
        0..=TEXT => Ok(()),
        len => Err(format!("a text of {len} bytes; expected up to {TEXT}")),
    };
    if depth > DEPTH {
        return Err(format!("nested more than {DEPTH} deep"));
    }
    match value {
        Value::String(text) => fits(text),
        Value::Array(list) => list.iter().try_for_each(|value| sizes(value, depth + 1)),
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            fits(key)?;
            if key == CHARSMAP.0 { Ok(()) } else { sizes(value, depth + 1) }
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Refuses models on which the library would loop forever or read past the end of a token.
fn check_model(model: &Value) -> Result<(), String> {
    if !model["continuing_subword_prefix"].as_str().is_none_or(str::is_empty) && model["merges"].is_array() {
        return Err("model: continuing_subword_prefix with merges is not supported".into());
    }
    let is_empty = |piece: &Value| piece[0].as_str().is_some_and(str::is_empty);
    if model["vocab"].as_array().is_some_and(|pieces| pieces.iter().any(is_empty)) {
        return Err("model: vocab has an empty piece".into());
    }
    Ok(())
}

/// Checks a step and the steps within it. `growth` is the factor by which a text may have grown so far.
fn walk(step: &Value, steps: &mut usize, growth: &mut usize) -> Result<(), String> {
    if step.is_null() {
        return Ok(());
    }
    let kind = step["type"].as_str().ok_or("a step has no type")?;
    *steps += 1;
    if *steps > STEPS {
        return Err(format!("more than {STEPS} steps"));
    }
    match kind {
        "Replace" => {
            *growth = growth.saturating_mul(replaced(step));
            if *growth > GROWTH {
                return Err(format!("a text could grow more than {GROWTH} times"));
            }
        }
        "FixedLength" if step["length"].as_u64() == Some(0) => return Err("FixedLength: length is 0".into()),
        "TemplateProcessing" => check_template(step)?,
        "Precompiled" => check_charsmap(step[CHARSMAP.0].as_str().unwrap_or_default())?,
        _ => {}
    }
    let lists = ["normalizers", "pretokenizers", "processors", "decoders"];
    let within = lists.iter().filter_map(|list| step[*list].as_array()).flatten();
    within.into_iter().try_for_each(|step| walk(step, steps, growth))
}

/// The factor by which a text may grow when its pattern is replaced.
fn replaced(step: &Value) -> usize {
    let content = step["content"].as_str().map_or(0, str::len);
    match step["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()).max(1),
        // A regular expression may match between any two characters.
        Some(_) | None => content + 1,
    }
}

/// Refuses templates that make a short text long.
fn check_template(step: &Value) -> Result<(), String> {
    let pieces = step["single"].as_array().map_or(&[][..], Vec::as_slice);
    let texts = pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count();
    let ids = step["special_tokens"].as_object().into_iter().flatten();
    let ids = ids.map(|(_, token)| token["ids"].as_array().map_or(0, Vec::len));
    if pieces.len() > PIECES || texts > 1 || ids.max().unwrap_or(0) > PIECES {
        return Err(format!("a template that has the text more than once, or more than {PIECES} tokens"));
    }
    Ok(())
}

/// Refuses a map that replaces a character by a long text. Its bytes are the table's length, the table, then
/// texts that end in 0.
fn check_charsmap(encoded: &str) -> Result<(), String> {
    let (name, most, longest) = CHARSMAP;
    if encoded.len() > most {
        return Err(format!("{name} has {} bytes; expected up to {most}", encoded.len()));
    }
    // Decodes as the library does.
    let bytes = base64::decode(encoded).map_err(|error| format!("{name}: {error}"))?;
    let table = bytes.first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    let texts = bytes.get(4..).and_then(|rest| rest.get(table..)).ok_or(format!("{name} is cut short"))?;
    match texts.split(|byte| *byte == 0).map(<[u8]>::len).max() {
        Some(len) if len > longest => {
            Err(format!("{name} has a text of {len} bytes; expected up to {longest}"))
        }
        Some(_) | None => Ok(()),
    }
}
