//! Compares the examples of SPEC.md with the code.

use std::io::Cursor;

use tqkv::file::{Header, Reader, TqkView, Writer};
use tqkv_core::{AnyCodec, CodecId, Effort, Options, ScaleMode};

const SPEC: &str = include_str!("../../../SPEC.md");

/// The lines of the only fenced block in that language.
fn fenced(language: &str) -> Vec<&'static str> {
    let open = format!("```{language}");
    let mut lines = SPEC.lines().skip_while(|line| *line != open);
    assert_eq!(lines.next(), Some(open.as_str()), "SPEC.md has no {open} block");
    lines.take_while(|line| *line != "```").collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn dump(bytes: &[u8]) -> Vec<String> {
    let line = |(i, line): (usize, &[u8])| {
        let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x}  {}", 16 * i, hex.join(" "))
    };
    bytes.chunks(16).enumerate().map(line).collect()
}

fn vectors() -> [[f32; 16]; 3] {
    let mut last = [0.0; 16];
    last[15] = 1.0;
    [std::array::from_fn(|i| i as f32), std::array::from_fn(|i| -0.5 * i as f32), last]
}

fn example_file() -> Vec<u8> {
    let codec = AnyCodec::new(CodecId::F16, 16, Options::default()).unwrap();
    let header = Header { blocks_per_chunk: 2, ..Header::new(&codec, None) };
    let mut writer = Writer::new(Cursor::new(Vec::new()), header).unwrap();
    let mut block = [0; 32];
    for x in vectors() {
        codec.encode(&x, &mut block).unwrap();
        writer.push(&block).unwrap();
    }
    let (out, count) = writer.finish().unwrap();
    assert_eq!(count, 3);
    out.into_inner()
}

#[test]
fn the_worked_example_is_what_the_code_writes() {
    assert_eq!(fenced("hex"), dump(&example_file()));
}

#[test]
fn the_worked_example_reads_back() {
    let lines = fenced("hex");
    let file: Vec<u8> = lines.iter().flat_map(|line| bytes(line.split_once("  ").unwrap().1)).collect();
    let view = TqkView::new(file.as_slice()).unwrap();
    let codec = view.header().codec().unwrap();
    let mut decoded = [0.0; 16];
    for (i, x) in vectors().iter().enumerate() {
        codec.decode(view.block(i as u64).unwrap(), &mut decoded).unwrap();
        assert_eq!(&decoded, x);
    }
    let mut reader = Reader::new(file.as_slice()).unwrap();
    let mut blocks = 0;
    while let Some(chunk) = reader.next_chunk().unwrap() {
        blocks += chunk.len() / 32;
    }
    assert_eq!(blocks, 3);
}

#[test]
fn the_test_vector_is_what_the_codec_writes() {
    let options = Options::DEFAULT.scale_mode(ScaleMode::Raw).effort(Effort::Fast);
    let codec = AnyCodec::new(CodecId::S4, 16, options).unwrap();
    let x: [f32; 16] = std::array::from_fn(|i| i as f32 + 1.0);
    let mut block = [0; 10];
    codec.encode(&x, &mut block).unwrap();
    let text: Vec<_> = block.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(fenced("block"), [text.join(" ")]);
}

/// The numbers in the first cell of the table row that names `name`.
fn documented(name: &str) -> Vec<u8> {
    let cell = format!("`{name}`");
    let row = SPEC.lines().find(|line| line.starts_with("| ") && line.contains(&cell));
    let row = row.unwrap_or_else(|| panic!("{name} is in no table"));
    let codes = row.split('|').nth(1).unwrap();
    codes.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

#[test]
fn the_tables_of_codes_are_those_of_the_code() {
    for (first, last) in
        [("f16", "f16"), ("i8", "i8"), ("s2", "s5"), ("n2", "n4"), ("q8_0", "q8_0"), ("q4_0", "q4_0")]
    {
        let code = |name| CodecId::from_name(name).unwrap().code();
        for name in [first, last] {
            let codes = documented(name);
            assert_eq!([codes.first(), codes.last()], [Some(&code(first)), Some(&code(last))], "{name}");
        }
    }
    for mode in ScaleMode::ALL {
        assert_eq!(documented(mode.name()), [mode.code()], "{}", mode.name());
    }
}

#[test]
fn the_levels_are_those_of_the_code() {
    let mut seen = 0;
    for id in CodecId::ALL {
        let Some(book) = id.codebook(128) else { continue };
        let bytes = book.bytes().iter().filter(|byte| **byte > 0).map(ToString::to_string);
        let row = format!("| {} | {} | {} |", id.name(), bytes.collect::<Vec<_>>().join(" "), book.unit());
        assert!(SPEC.lines().any(|line| line == row), "SPEC.md lacks: {row}");
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn the_signs_are_those_of_the_codec() {
    let codec = AnyCodec::new(CodecId::S4, 128, Options::default()).unwrap();
    let signs: String = (0..32).map(|i| if codec.signs().is_negative(i) { '-' } else { '+' }).collect();
    assert!(SPEC.contains(&format!("`{signs}`")), "{signs}");
}
