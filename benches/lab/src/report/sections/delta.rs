//! Differences between layers, which save nothing.

use tqkv_cli::error::CliError;

use super::{Section, Table, Wanted};

pub(super) fn section(wanted: &Wanted<'_>) -> Result<Section, CliError> {
    let answer = wanted.source.run("tqkv-lab stats --delta")?;
    let rows = answer.rows("delta").into_iter().map(|row| {
        let mut cells = vec![row.text("what").to_owned()];
        let number = |name: &str| row.number(name);
        cells.extend([
            format!("{:+.4}", number("correlation")),
            format!("{:.3}", number("difference_energy")),
            format!("{:.4}", number("bits_saved")),
            format!("{:.3}", number("entropy")),
            format!("{:.3}", number("entropy_given_last")),
        ]);
        cells
    });
    let head = [
        "each layer from the last",
        "correlation",
        "energy of the difference",
        "bits saved",
        "entropy",
        "given the last",
    ];
    Ok(Section {
        title: "Differences between layers",
        lead: vec![
            "If a layer resembled the one before it, its difference would take fewer bits. It does not: layers are all but \
             uncorrelated, so a difference has more energy than the layer itself, and the best multiple of the last layer \
             saves less than a hundredth of a bit. Measured on keys, values and weights of the shipped model."
                .to_owned(),
        ],
        tables: vec![Table::new("What a layer says about the next", &head, rows.collect()).open()],
        commands: vec![answer.command.clone()],
        ..Section::default()
    })
}
