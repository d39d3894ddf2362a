//! `cargo xtask tidy`: the rules of the source that no compiler checks.
//!
//! A rule fails where something is wrong: a circle of files, unsafe code that no list names, a document that
//! names what is not there, a dependency that points the wrong way, a public item that no list has, a licence.
//! How the source looks (lengths, counts, prose) is reported, and fails nothing. `opt_out` has exceptions.

mod arrows;
mod card;
mod circles;
mod documents;
mod guide;
mod metadata;
mod opt_out;
mod prose;
mod publish;
mod reports;
mod surface;
mod tree;

use opt_out::Exceptions;
use std::process::ExitCode;
use tree::Tree;

/// The arguments of the task.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print every line behind the numbers of the report
    #[arg(long)]
    all: bool,
    /// Write the lists of public items (tests/surface) anew
    #[arg(long)]
    write_surface: bool,
}

/// A rule: its name, and what finds its faults.
type Rule = (&'static str, fn(&Tree) -> Vec<String>);

const RULES: [Rule; 19] = [
    ("no circles of files", circles::circles_of_files),
    ("unsafe code is in the inventory", guide::unsafe_inventory),
    ("paths in documents", documents::paths),
    ("links in documents", documents::links),
    ("numbers of decisions and measurements", documents::numbers),
    ("tasks and steps in documents", documents::tasks),
    ("the test command", documents::test_command),
    ("tests of the mathematics", documents::formulas),
    ("the table of crates", guide::crates),
    ("the table of seams", guide::seams),
    ("dependencies between crates", arrows::between_crates),
    ("no plots in the command", arrows::no_plots_in_the_command),
    ("public items are listed", surface::differences),
    ("packages of the card", card::packages_and_folders),
    ("published crates introduce themselves", publish::introductions),
    ("one version", publish::version),
    ("one oldest toolchain", publish::toolchain),
    ("licences of dependencies", publish::licences),
    ("published crates fit the registry", publish::sizes),
];

/// The manifests of the crates that go to the registry, from the root on.
pub(crate) fn published_manifests() -> Vec<String> {
    let metadata = metadata::Metadata::read();
    let path = |package: &serde_json::Value| {
        let path = std::path::Path::new(metadata::text(package, "manifest_path"));
        path.strip_prefix(tree::root()).unwrap_or(path).display().to_string()
    };
    metadata.published().into_iter().map(path).collect()
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if args.write_surface
        && let Err(error) = surface::write()
    {
        eprintln!("xtask tidy: tests/surface: {error}");
        return ExitCode::FAILURE;
    }
    let tree = Tree::read();
    let exceptions = Exceptions::of(&tree);
    let mut failed = print_faults("exceptions", &exceptions.faults);
    for (name, rule) in RULES {
        failed += print_faults(name, &rule(&tree));
    }
    for report in reports::all(&tree, &exceptions) {
        println!("{}", report.summary);
        let shown = report.details.iter().take(if args.all { usize::MAX } else { 0 });
        shown.for_each(|line| println!("  {line}"));
    }
    println!("{} rules, {failed} of them broken", RULES.len() + 1);
    ExitCode::from(u8::from(failed > 0))
}

/// Prints the faults of a rule. Returns 1 if there are any.
fn print_faults(rule: &str, faults: &[String]) -> usize {
    if !faults.is_empty() {
        println!("BROKEN: {rule}");
        faults.iter().for_each(|fault| println!("  {fault}"));
    }
    usize::from(!faults.is_empty())
}
