//! Figures that others published, beside those of this machine.

use super::{Section, Table, Wanted, digits};
use crate::error::CliError;

pub(super) fn sections(wanted: &Wanted<'_>) -> Result<Vec<Section>, CliError> {
    let random = wanted.source.full_or_quick(20_000, 400);
    let raw = wanted.source.run(&format!("stats --random {random} --scale-mode raw --codec s1,s2,s3,s4"))?;
    let step = wanted.source.run(
        "plan --layers 32 --kv-heads 32 --head-dim 128 --hot 0 --sinks 0 --tokens 32768 --bandwidth 2TB/s --kv f16 --kv s4 \
         --other turbo4=68",
    )?;
    let error = |codec: &str| {
        let row = raw.rows("codecs").into_iter().find(|row| row.text("codec") == codec);
        row.map_or_else(String::new, |row| digits(row.number("relative_mse")))
    };
    let ms = |at: usize| step.rows("rows").get(at).map_or(f64::NAN, |row| row.number("read_ms"));
    let row = |what: &str, there: &str, here: String| vec![what.to_owned(), there.to_owned(), here];
    let rows = vec![
        row("squared error, 1 bit", ".36 (paper)", error("s1")),
        row("squared error, 2 bits", ".117 (paper)", error("s2")),
        row("squared error, 3 bits", ".034 (paper), .0341, .035 (measured)", error("s3")),
        row("squared error, 4 bits", ".009 (paper), .00925 (measured)", error("s4")),
        row("reading 32k tokens at 2 TB/s, f16", "8.6 ms", format!("{:.2} ms", ms(0))),
        row("the same, 68 bytes a vector", "2.3 ms", format!("{:.2} ms", ms(2))),
        row("the same, s4 (66 bytes)", "", format!("{:.2} ms", ms(1))),
    ];
    let bounds = (1..=4).map(|bits: i32| {
        let fourth = 4f64.powi(-bits);
        let upper = 3f64.sqrt() * std::f64::consts::FRAC_PI_2 * fourth;
        vec![bits.to_string(), digits(fourth), error(&format!("s{bits}")), digits(upper)]
    });
    Ok(vec![Section {
        title: "Published figures beside these",
        lead: vec![
            "Other implementations of the same paper reported these. Errors are of random directions at D = 128 with the norm as \
             scale, which is what they measured; the default of this program chooses its scale for unbiased dot products."
                .to_owned(),
        ],
        tables: vec![
            Table::new("There and here", &["what", "published", "here"], rows).open(),
            Table::new("Between the bounds of the paper", &["bits", "no code is below", "here", "the paper's bound"], bounds.collect()).open(),
        ],
        commands: vec![raw.command.clone(), step.command.clone()],
        ..Section::default()
    }])
}
