//! Takes bytes as what a program of `--kv program=` answers, one answer after the other. Each is refused, or read as a
//! second reader reads it that has all bytes before it, and the next begins where it ends.
#![no_main]

mod seeds;

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;

#[path = "../../host/reference/src/answer.rs"]
#[allow(dead_code, unreachable_pub, reason = "the crate uses all of it")]
mod answer;

/// Bytes of the first line at most, with its end.
const LINE: usize = 64;

// The first byte is how many bytes the pipe gives at a time, the second how many numbers are expected.
fuzz_target!(|bytes: &[u8]| {
    let [pipe, numbers, answers @ ..] = bytes else { return };
    let mut rest = answers;
    let mut from = BufReader::with_capacity(usize::from(*pipe) + 1, answers);
    let mut rows = vec![0.0; usize::from(*numbers)];
    loop {
        let expected = second(rest, rows.len());
        match answer::answer(&mut from, &mut rows) {
            Ok(count) => {
                let (again, back, length) = expected.expect("only an answer is taken");
                assert_eq!((count, bits(&rows)), (again, bits(&back)));
                rest = &rest[length..];
            }
            Err(why) => {
                assert!(expected.is_none(), "{why}");
                assert!(!why.is_empty() && why.len() < 1 << 10 && !why.contains('\n'), "{why}");
                // A seed ends after its last answer.
                if !rest.is_empty() {
                    seeds::refused(why);
                }
                return;
            }
        }
    }
});

/// The bytes of codes, the numbers, and the length of the answer.
fn second(bytes: &[u8], numbers: usize) -> Option<(usize, Vec<f32>, usize)> {
    let end = bytes.iter().take(LINE).position(|byte| *byte == b'\n')?;
    let count = std::str::from_utf8(&bytes[..end]).ok()?.trim_end().parse().ok()?;
    let body = bytes[end + 1..].get(..4 * numbers)?;
    let back: Vec<f32> = body.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
    back.iter().all(|x| x.is_finite()).then_some((count, back, end + 1 + 4 * numbers))
}

fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}
