//! The sections of a report, in the order of the page.

mod delta;
mod experiments;
mod heads;
mod known;
mod life;
mod memory;
mod outlier;
mod overview;
mod published;
mod quality;
mod rate;
mod recall;
mod speed;
mod wanted;

use tqkv_cli::error::CliError;

use super::{Section, Table};
pub(crate) use wanted::Wanted;
use wanted::{by_family, digits, pair, percent};

/// Makes one or more sections.
type Make = fn(&Wanted<'_>) -> Result<Vec<Section>, CliError>;

/// All sections by name, for progress.
pub(crate) const SECTIONS: [(&str, Make); 11] = [
    ("what it saves", overview::sections),
    ("error against bits", rate::sections),
    ("quality against bytes", quality::sections),
    ("what stands far back", recall::sections),
    ("the life of a token", life::sections),
    ("speed against length", speed::sections),
    ("memory against context", memory::sections),
    ("layers and heads", heads::sections),
    ("an outlier before and after", outlier::sections),
    ("experiments", experiments::sections),
    ("published figures", published::sections),
];
