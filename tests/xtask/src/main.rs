//! Task runner: `cargo xtask TASK`.

mod trellis_search;

use clap::Parser;

#[derive(Parser)]
#[command(about)]
enum Task {
    /// Find the generators and levels of the trellis codes from scratch and print their table
    TrellisSearch(trellis_search::Args),
}

fn main() {
    match Task::parse() {
        Task::TrellisSearch(args) => trellis_search::run(&args),
    }
}
