//! Texts of the command: errors, lists, help and notes, and its end when the reader of stdout is gone.

use serde_json::Value;

use tqkv::unstable::cache::OptionPart;

use crate::arrays::folder;
use crate::printed::{cells, document, rows};
use crate::support::{error, json, tqkv};

fn text(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = tqkv(folder.path(), args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn numbers_that_an_option_does_not_take_are_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let generate = ["generate", "--prompt", "a"];
    for (args, expected) in [
        (["--tokens", "-5"], "--tokens <N>: '-5' is negative: expected a whole number without a sign"),
        (["--sequences", "-2"], "--sequences <N>: '-2' is negative"),
        (["--threads", "-2"], "--threads <N>: '-2' is negative"),
        (["--tokens", "x"], "--tokens <N>: 'x' is not a whole number"),
        (["--tokens", "1.5"], "--tokens <N>: '1.5' is not a whole number"),
        (["--tokens", "99999999999999999999"], "'99999999999999999999' is too large"),
        (["--threads", "0"], "--threads <N>: '0' is out of range: expected 1 or more"),
        (["--sequences", "2000"], "--sequences <N>: '2000' is out of range: expected 1 to 1024"),
        (["--temperature", "-1"], "-1"),
    ] {
        let message = error(folder.path(), &[&generate[..], &args].concat(), 2);
        assert!(message.contains(expected) && !message.contains("unexpected"), "{args:?}: {message}");
    }
    let plan = ["plan", "--kv-heads", "8", "--head-dim", "128", "--layers", "-80"];
    assert!(error(folder.path(), &plan, 2).contains("--layers <N>: '-80' is "));
}

#[test]
fn codecs_are_read_in_any_case_and_refused_in_few_words() {
    let folder = folder();
    let at = folder.path();
    json(at, &["encode", "--codec", "S4", "in.npy", "x.tqk"]);
    assert_eq!(json(at, &["inspect", "x.tqk"])["codec"], "s4");
    let plan = ["plan", "--layers", "8", "--kv-heads", "1", "--head-dim", "128", "--kv"];
    let kv = |kv: &str| json(at, &[&plan[..], &[kv]].concat())["rows"].clone();
    assert_eq!(kv("I8,S4"), kv("Safe-Lowbit"));
    let part = "'balanced' is a preset, which stands for both parts of K,V";
    for (args, expected) in [
        ([&plan[..], &["balanced,s4"]].concat(), part),
        ([&plan[..], &["s4,balanced"]].concat(), part),
        ([&plan[..], &["s4,s4,s4"]].concat(), "'s4,s4,s4' has 3 parts"),
        (
            [&plan[..], &["s9"]].concat(),
            "(eight-bit, safe-lowbit, near-lossless, balanced, compact, small, tiered, tiny)",
        ),
        ([&plan[..], &["s4,s9"]].concat(), "'s9' is not a codec"),
        (vec!["encode", "--codec", "s9", "in.npy", "y.tqk"], "tqkv codecs --all lists them"),
    ] {
        let message = error(at, &args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
        let named = message.split([',', ' ']).filter(|word| ["t2s8", "m2", "c25", "turbo3k"].contains(word));
        assert_eq!(named.count(), 0, "the laboratory is not named: {message}");
    }
}

#[test]
fn codecs_lists_presets_then_ten_codecs_and_the_laboratory_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let (short, all) = (text(&["codecs"]), text(&["codecs", "--all", "--dim", "64"]));
    for text in [&short, &all] {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let at = |name: &str| {
            text.lines().position(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
        };
        assert!(at("balanced ") < at("f16 ") && at("eight-bit ") < at("tiny "), "{text}");
    }
    let balanced = short.lines().find(|line| line.starts_with("balanced ")).unwrap();
    let cells: Vec<_> = balanced.split_whitespace().collect();
    assert_eq!(cells[..4], ["balanced", "4.125", "132", "s4,s4"], "{balanced}");
    assert!(
        !short.contains("turbo4")
            && !short.contains("t2s8")
            && all.contains("\nturbo4 ")
            && all.contains("\nt2s8 ")
    );
    let report = json(folder.path(), &["codecs"]);
    let names = |list: &str| -> Vec<String> {
        report[list].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names("presets").len(), names("codecs").len(), names("yardsticks").len()), (8, 10, 0));
    // A block of q4_0 has 32 values, so there is none at head dim 16.
    let narrow = json(folder.path(), &["codecs", "--all", "--dim", "16"]);
    let q4_0 = narrow["codecs"].as_array().unwrap().iter().find(|row| row["name"] == "q4_0").unwrap();
    assert_eq!((&q4_0["bytes"], &q4_0["bits"]), (&Value::Null, &Value::Null));
    assert!(error(folder.path(), &["codecs", "--dim", "100"], 2).contains("expected 16, 32"));
}

#[test]
fn a_group_without_a_command_names_its_commands() {
    let folder = tempfile::tempdir().unwrap();
    for (group, commands) in [("session", "pack, unpack, inspect or serve"), ("weights", "compress")] {
        let expected = format!("tqkv {group} needs a command: expected {commands} (see tqkv {group} --help)");
        assert!(error(folder.path(), &[group], 2).contains(&expected), "{group}");
    }
    let shells = error(folder.path(), &["completions"], 2);
    assert!(
        ["bash", "elvish", "fish", "powershell", "zsh"].iter().all(|shell| shells.contains(shell)),
        "{shells}"
    );
    assert_eq!(text(&["help", "--help"]), text(&["--help"]));
}

#[test]
fn exit_codes_and_settings_stand_where_a_user_looks() {
    let (help, page, settings) = (text(&["--help"]), text(&["man"]), text(&["help", "kv"]));
    for (code, meaning) in [
        (0, "all went well"),
        (2, "the command line or a file is not usable"),
        (3, "there is no GPU to check"),
    ] {
        assert!(help.contains(&format!("{code}: {meaning}")), "{code}");
        assert!(page.contains(&format!("\\fB{code}\\fR\n{meaning}")), "{code}");
    }
    // The page about the command has the list of the help.
    let listed = rows(&document("docs/command.md"), "| code | meaning");
    let listed: Vec<_> = listed.iter().map(|row| cells(row).join(": ")).collect();
    let codes = help.split_once("Exit codes:\n").unwrap().1;
    assert_eq!(codes.lines().map(str::trim).collect::<Vec<_>>(), listed);
    for option in tqkv::unstable::cache::OPTIONS.iter().filter(|option| option.part == OptionPart::Policy) {
        assert!(settings.contains(&format!("{}={}", option.name, option.value)), "{}", option.name);
        let default = option.default().map_or(String::new(), |default| format!("[default: {default}]"));
        assert!(settings.contains(&default), "{}: {default}", option.name);
    }
    let generate = text(&["generate", "--help"]);
    assert!(generate.contains("`tqkv help kv` lists the settings") && !generate.contains("narrow-at=SIZE"));
}

/// Measured results stand where a user chooses the option.
#[test]
fn what_measuring_speaks_against_says_so_in_its_help() {
    let all = text(&["codecs", "--all"]);
    for (name, says) in [
        ("experimental-max", "larger than balanced, and 13 times its KL"),
        ("p4r2", "residual of 2: error .038, of s5 .002"),
        ("p4r4", "residual of 4"),
        ("p3", "one of QJL: dot error .43, of s3 .19"),
        ("tq3", "dense rotation: the error of s3"),
    ] {
        let line = all.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        assert!(line.contains(says), "{line}");
    }
    let help = text(&["help", "kv"]);
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("These are simulated, so they save no memory"), "{words}");
}

#[test]
fn help_has_groups_and_the_laboratory_stands_last() {
    for command in ["generate", "eval", "demo"] {
        let help = text(&[command, "--help"]);
        let at = |what: &str| help.find(what).unwrap_or_else(|| panic!("{what} in {command}: {help}"));
        let options = at("\nOptions:\n");
        let laboratory = at("\nLaboratory:\n");
        let headings = ["\nModel:\n", "\nSampling:\n", "\nCache:\n"];
        for heading in headings.into_iter().filter(|heading| help.contains(heading)) {
            assert!(options < at(heading) && at(heading) < laboratory, "{command}: {heading}");
        }
        assert!(help.contains("\nCache:\n"), "{command}");
        assert!(at("      --no-bos") > laboratory, "{command}");
    }
    let help = text(&["generate", "--help"]);
    let at = |what: &str| help.find(&format!("  {what}")).unwrap_or_else(|| panic!("{what}: {help}"));
    assert!(at("-p, --prompt <") < at("    --kv <") && at("    --kv <") < at("    --no-bos"), "{help}");
    assert!(text(&["encode", "--help"]).find("Laboratory").is_none(), "encoding is what encode is about");
}

#[test]
fn generate_says_when_nothing_is_compressed_yet() {
    let generate = ["generate", "--prompt", "The borrow", "--tokens", "8"];
    let note = "nothing is compressed yet: all 17 tokens lie in the window of sinks= and hot=;\nat the model's full context of";
    let short = text(&generate);
    assert!(short.contains(note) && short.contains("times those of s4,s4"), "{short}");
    let two = text(&[&generate[..], &["--kv", "f16", "--kv", "i8", "--kv", "t4,t2"]].concat());
    assert!(
        two.contains(note) && two.contains("times those of i8,i8,") && two.contains("times those of t4,t2"),
        "{two}"
    );
    assert!(!two.contains("times those of f16"), "{two}");
    let many = text(&[&generate[..], &["--sequences", "2"]].concat());
    assert!(many.contains(note), "{many}");
    let spilled = text(&[&generate[..], &["--kv", "s4 spill=4096:/tmp"]].concat());
    assert!(spilled.contains("window of sinks= and hot=\n"), "{spilled}");
    for quiet in [&["--kv", "s4 hot=0 sinks=0"][..], &["--kv", "f16"], &["--tokens", "80"]] {
        let text = text(&[&["generate", "--prompt", "The borrow"][..], quiet].concat());
        assert!(!text.contains("nothing is compressed"), "{quiet:?}: {text}");
    }
}

/// Every example that generates with a tier has a cold page at its end.
#[test]
fn examples_of_tiers_reach_them() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tiers.md");
    let page = std::fs::read_to_string(page).unwrap() + &text(&["generate", "--help"]);
    let has_tier = |line: &&str| {
        line.starts_with("tqkv generate") && (line.contains(" tier=") || line.contains(" spill="))
    };
    let lines: Vec<_> = page.lines().map(str::trim).filter(has_tier).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in lines {
        let words = shlex::split(line).unwrap();
        let words: Vec<_> = words[1..].iter().map(String::as_str).collect();
        let said = text(&words);
        assert!(said.contains("cache bytes") && !said.contains("no tier"), "{line}: {said}");
        // With the usual number of tokens it has none.
        let short: Vec<_> = words.iter().copied().filter(|word| !["--tokens", "-n"].contains(word)).collect();
        let short: Vec<_> = short.into_iter().filter(|word| word.parse::<usize>().is_err()).collect();
        assert!(text(&short).contains("no tier is reached yet: "), "{line}");
    }
    let many =
        ["generate", "--prompt", "The borrow", "--tokens", "90", "--kv", "s4", "--kv", "s4 tier=128:s2"];
    let note = "no tier is reached yet: s4 tier=128:s2 has one from 260 tokens on, and has 99";
    for more in [&[][..], &["--sequences", "2"]] {
        let said = text(&[&many[..], more].concat());
        assert!(said.contains(note), "{said}");
    }
}

/// The ratio in the note equals the ratio of a cache of that length.
#[test]
fn the_promised_ratio_is_what_plan_says() {
    let short = text(&["generate", "--prompt", "The borrow", "--tokens", "8"]);
    let (before, after) = short.split_once(" times those of s4,s4").unwrap();
    assert!(after.trim().is_empty(), "{after}");
    let promised: f64 = before.rsplit(' ').next().unwrap().parse().unwrap();
    let tokens = before.split_once("full context of ").unwrap().1.split(' ').next().unwrap().replace(',', "");
    // The shape of the shipped model.
    let folder = tempfile::tempdir().unwrap();
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shipped/config.json");
    let plan =
        json(folder.path(), &["plan", "--config", config, "--tokens", &tokens, "--kv", "f16", "--kv", "s4"]);
    let bytes = |row: usize| plan["rows"][row]["cache_bytes"].as_f64().unwrap();
    assert!((promised / (bytes(0) / bytes(1)) - 1.0).abs() < 0.01, "{promised}: {plan}");
}

#[test]
fn demo_marks_where_a_text_departs_and_says_what_comes_next() {
    let demo = ["demo", "--context", "256", "--windows", "1", "--tokens", "48", "--prompt", "fn main() {"];
    let text = text(&[&demo[..], &["--kv", "i8 hot=0 sinks=0", "--kv", "t1 hot=0 sinks=0"]].concat());
    let parts: Vec<_> = text.split("\n\n[").collect();
    let of = |name: &str| {
        parts.iter().find(|part| part.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"))
    };
    let body = |part: &str| part.split_once('\n').unwrap().1.to_owned();
    let first = body(of("f16,f16]"));
    let other = of("t1 hot=0 sinks=0]");
    assert!(other.starts_with("t1 hot=0 sinks=0] other words from » on\n"), "{text}");
    let other = body(other);
    let (same, rest) = other.split_once('»').unwrap();
    assert!(
        first.starts_with(same)
            && !first.starts_with(&format!("{same}{}", rest.split_inclusive(' ').next().unwrap()))
    );
    assert!(of("i8 hot=0").starts_with("i8 hot=0 sinks=0] the same text"), "{text}");
    assert!(
        text.contains("\nNext:\n  tqkv generate --model") && text.trim_end().ends_with("--kv takes"),
        "{text}"
    );
    assert!(text.contains("holds the most: "), "{text}");
}

#[test]
fn bytes_have_binary_units_beside_them() {
    let plan = ["plan", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--tokens", "131072"];
    let plan = text(&[&plan[..], &["--memory", "34GB", "--kv", "f16"]].concat());
    assert!(plan.contains("34,000,000,000 bytes (31.7 GiB) of cache"), "{plan}");
    assert!(plan.contains("17,210,699,776 (16.0 GiB)"), "{plan}");
    let generated = text(&["generate", "--prompt", "a", "--tokens", "2"]);
    if cfg!(target_os = "linux") {
        let line = generated.lines().find(|line| line.starts_with("peak memory ")).unwrap();
        assert!(
            line.contains("MiB), with 4,067,840 bytes (3.88 MiB) of weights, ")
                && line.ends_with(" of them outside the layers"),
            "{line}"
        );
    }
}

/// The command ends like any program with a closed pipe: by SIGPIPE, which shells show as 141, and without a
/// message.
#[test]
#[cfg(unix)]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    for args in [&["codecs", "--all"][..], &["--help"], &["man", "generate"], &["codecs", "--json"]] {
        // The reader is gone before the first word.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_tqkv")).args(args).stdout(writer).output().unwrap();
        assert_eq!(output.status.signal(), Some(13), "{args:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}
