//! The part of a plan on stored tokens: loading them compared with computing them anew.

use serde::Serialize;

use crate::output::{grouped, sized, table};
use crate::plan::{CodingTime, Loads};

#[derive(Serialize)]
pub(super) struct Loading {
    tokens: u64,
    cores: u32,
    /// Tokens per second and seconds of computing anew; null without `--prefill`.
    prefill: Option<f64>,
    compute_seconds: Option<f64>,
    forms: Vec<StoredForm>,
}

#[derive(Serialize)]
struct StoredForm {
    name: String,
    bytes: u64,
    encode_seconds: f64,
    decode_seconds: f64,
    /// Bytes per second up to which it is there sooner than f16; null for f16.
    sooner_than_f16_to: Option<f64>,
    /// Bytes per second from which loading beats computing anew; null if it never does.
    pays_from: Option<f64>,
    links: Vec<Link>,
}

/// Times at one of `--bandwidth`.
#[derive(Serialize)]
struct Link {
    bandwidth: u64,
    load_seconds: f64,
    store_seconds: f64,
    loads_to_pay: Option<f64>,
}

impl Loading {
    pub(super) fn new(
        loads: Loads,
        bandwidths: &[u64],
        forms: impl IntoIterator<Item = (String, u64, CodingTime)>,
    ) -> Self {
        let link = |bytes: u64, time: CodingTime, bandwidth: u64| {
            let times = loads.times(time, bytes, bandwidth);
            let (load_seconds, store_seconds) = (times.load, times.store);
            Link { bandwidth, load_seconds, store_seconds, loads_to_pay: times.loads_to_pay }
        };
        let form = |(name, bytes, time): (String, u64, CodingTime)| {
            let [encode_seconds, decode_seconds] = loads.coding(time);
            StoredForm {
                name,
                bytes,
                encode_seconds,
                decode_seconds,
                sooner_than_f16_to: loads.sooner_than_plain_to(time),
                pays_from: loads.pays_from(time, bytes),
                links: bandwidths.iter().map(|&bandwidth| link(bytes, time, bandwidth)).collect(),
            }
        };
        Self {
            tokens: loads.tokens,
            cores: loads.cores,
            prefill: loads.prefill,
            compute_seconds: loads.compute(),
            forms: forms.into_iter().map(form).collect(),
        }
    }

    pub(super) fn human(&self) -> String {
        let (tokens, cores) = (grouped(self.tokens), self.cores);
        let anew =
            self.compute_seconds.map_or(String::new(), |s| format!("; computing them anew takes {s:.2} s"));
        let links = self.forms.first().map_or(&[][..], |form| &form.links);
        let links: Vec<String> =
            links.iter().map(|link| format!("load at {}", speed(link.bandwidth as f64))).collect();
        let mut head = vec!["stored as", "bytes", "decode"];
        head.extend(links.iter().map(String::as_str));
        head.extend(["before f16 to", "before computing from"]);
        let rows = self.forms.iter().map(StoredForm::cells);
        format!(
            "loading {tokens} tokens with {cores} cores; coding and transfer overlap{anew}\n{}",
            table(&head, rows)
        )
    }
}

impl StoredForm {
    fn cells(&self) -> Vec<String> {
        let link = |link: &Link| match link.loads_to_pay {
            Some(loads) => format!("{:.2} s, pays after {loads:.1}", link.load_seconds),
            None => format!("{:.2} s", link.load_seconds),
        };
        let limit = |bound: Option<f64>| bound.map_or_else(|| "-".to_owned(), speed);
        let mut cells = vec![self.name.clone(), sized(self.bytes), format!("{:.2} s", self.decode_seconds)];
        cells.extend(self.links.iter().map(link));
        cells.extend([limit(self.sooner_than_f16_to), limit(self.pays_from)]);
        cells
    }
}

/// Bytes per second in the unit that fits.
fn speed(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{:.1} GB/s", bytes / 1e9) } else { format!("{:.0} MB/s", bytes / 1e6) }
}
