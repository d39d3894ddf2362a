//! The command in a shell: help, completions, manual pages, narrow terminals.

use crate::support::{assert_help_fits, error, json, tqkv as lab, tqkv_with as lab_with};

fn text(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = lab(folder.path(), args);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tables_go_on_below_where_the_terminal_ends_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["stats", "--random", "300", "--codec", "s4,t2h"];
    let text = |columns: &str| {
        let output = lab_with(folder.path(), &args, ("COLUMNS", columns));
        String::from_utf8(output.stdout).unwrap()
    };
    let (wide, narrow) = (text("400"), text("40"));
    assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
    let words = |text: &str| {
        let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words.dedup();
        words
    };
    assert_eq!(words(&wide), words(&narrow));
    assert!(narrow.matches("t2h").count() > 1 && wide.matches("t2h").count() == 1, "{narrow}");
}

#[test]
fn help_fits_a_terminal_without_broken_paragraphs() {
    assert_help_fits(&["report", "eval", "needle", "stats", "compare", "codebook", "sweep", "picture"]);
}

#[test]
fn every_help_text_shows_an_example() {
    for command in ["report", "eval", "needle", "stats", "compare", "codebook", "sweep", "picture"] {
        let text = text(&[command, "--help"]);
        assert!(text.contains(&format!("\n  tqkv-lab {command}")), "{command}: {text}");
    }
    assert!(text(&["--version"]).starts_with("tqkv-lab "));
}

#[test]
fn help_has_groups_and_the_laboratory_stands_last() {
    for command in ["eval"] {
        let help = text(&[command, "--help"]);
        let at = |what: &str| help.find(what).unwrap_or_else(|| panic!("{what} in {command}: {help}"));
        let laboratory = at("\nLaboratory:\n");
        let headings = ["\nModel:\n", "\nCache:\n"];
        for heading in headings.into_iter().filter(|heading| help.contains(heading)) {
            assert!(at("\nOptions:\n") < at(heading) && at(heading) < laboratory, "{command}: {heading}");
        }
        assert!(help.contains("\nCache:\n"), "{command}");
        assert!(at("      --no-bos") > laboratory, "{command}");
    }
    let help = text(&["eval", "--help"]);
    assert!(help.find("      --outlier-variant") > help.find("\nLaboratory:\n"), "{help}");
    assert_eq!(help.matches("\nLaboratory:\n").count(), 1, "{help}");
}

#[test]
fn completions_and_manual_pages_are_those_of_this_program() {
    for script in ["bash", "zsh", "fish"].map(|shell| text(&["completions", shell])) {
        assert!(
            ["tqkv-lab", "needle", "outlier-variant"].iter().all(|word| script.contains(word)),
            "{script}"
        );
    }
    let page = text(&["man"]);
    assert!(page.contains(".TH tqkv-lab") && page.contains("needle"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(json(folder.path(), &["man", "stats"])["name"], "tqkv-lab-stats");
    assert!(error(folder.path(), &["man", "encode"], 2).contains("expected report, eval"));
}
