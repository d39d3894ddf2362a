//! `tqkv eval --recall`: its kinds of text, and its tables in Markdown.

use serde_json::Value;

use crate::model_commands::{parts, rows};
use crate::printed::number;
use crate::support::{error, json, tqkv};

/// A table of the kinds of text, the row of f16 first, where nothing is lost, and one by depth.
#[test]
fn eval_asks_for_what_stands_far_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args =
        ["eval", "--recall", "--context", "1024", "--kv", "s4 hot=0 sinks=0", "--kv", "s2 hot=0 sinks=0"];
    let report = json(at, &args);
    assert_eq!(parts(&report), ["context", "model", "results", "seconds", "windows"]);
    assert_eq!(report["windows"], 1, "one text of each kind");
    let results = rows(&report);
    assert_eq!(results.len(), 3);
    let texts = |row: &Value| row["texts"].as_array().unwrap().clone();
    for (i, kind) in KINDS.iter().enumerate() {
        let cell = |row: &Value| texts(row)[i].clone();
        assert!(results.iter().all(|row| cell(row)["text"] == *kind), "{report}");
        let kl: Vec<_> = results.iter().map(|row| number(&cell(row), "kl_to_f16")).collect();
        assert!(kl[0] == 0.0 && kl[1] > 0.0 && kl[1] < kl[2], "{kind}: {kl:?}");
        assert!((0.0..=1.0).contains(&number(&cell(&results[0]), "right")), "{report}");
        let tells_everywhere = ["table", "facts", "json", "chat"].contains(kind);
        for row in results {
            let depths = &cell(row)["kl_by_depth"];
            assert_eq!(depths.is_object(), tells_everywhere, "{kind}: {depths}");
            if tells_everywhere {
                let kl = ["first_page", "middle", "end"].map(|depth| number(depths, depth));
                let mean = number(&cell(row), "kl_to_f16");
                let between = |least: f64, most: f64| (least - 1e-6..=most + 1e-6).contains(&mean);
                assert!(
                    between(kl.into_iter().fold(9.0, f64::min), kl.into_iter().fold(0.0, f64::max)),
                    "{row}"
                );
                assert_eq!(kl == [0.0; 3], row == &results[0], "{kind}: {depths}");
            }
        }
    }
    let table = String::from_utf8(tqkv(at, &args).stdout).unwrap();
    assert!(table.lines().nth(1).unwrap().ends_with("bytes/token") && table.lines().count() == 32, "{table}");
    assert!(table.contains("first page, middle, end"), "{table}");
    answers_are_shown(&table, results);
    let some = json(at, &[&args[..], &["--kinds", "turns,copy"]].concat());
    let names: Vec<_> = texts(&rows(&some)[0]).iter().map(|cell| cell["text"].clone()).collect();
    assert_eq!(names, ["turns", "copy"], "in the order of the option");
    assert_eq!(texts(&rows(&some)[1])[1], texts(&results[1])[1], "the same texts");
    let unknown = error(at, &["eval", "--recall", "--kinds", "songs"], 2);
    assert!(unknown.contains("'songs'") && unknown.contains("expected prose, copy"), "{unknown}");
    for (kind, expected) in [("calls", "expected 512"), ("chat", "the text 'chat'; expected 1024")] {
        let args = ["eval", "--recall", "--kinds", kind, "--context", "128", "--kv", "s4 hot=0 sinks=0"];
        let short = error(at, &args, 2);
        assert!(short.contains(expected), "{short}");
    }
}

/// A row for each kind that asks for answers, with the figures of --json, f16 first. Rows where it has fewer than half say
/// nothing.
fn answers_are_shown(table: &str, results: &[Value]) {
    let lines: Vec<_> = table.lines().skip_while(|line| *line != "answers that are right").skip(2).collect();
    let lines = lines.split(|line| line.is_empty()).next().unwrap();
    let asking: Vec<_> =
        KINDS.iter().enumerate().filter(|(_, kind)| !["prose", "copy", "change"].contains(*kind)).collect();
    assert_eq!(lines.len(), asking.len(), "{table}");
    for (line, (i, kind)) in lines.iter().zip(asking) {
        let scores = results.iter().map(|row| number(&row["texts"][i], "answers"));
        let scores: Vec<_> = scores.map(|score| format!("{:.0} %", 100.0 * score)).collect();
        let nothing = number(&results[0]["texts"][i], "answers") < 0.5;
        assert!(line.starts_with(kind) && line.ends_with("says nothing") == nothing, "{line}");
        let shown: Vec<_> = line.split_whitespace().collect();
        assert!(shown.join(" ").starts_with(&format!("{kind} {}", scores.join(" "))), "{line}: {scores:?}");
    }
    assert!(results[0]["texts"][0].get("answers").is_none(), "prose asks for nothing");
}

const KINDS: [&str; 18] = [
    "prose",
    "copy",
    "list",
    "table",
    "facts",
    "json",
    "chat",
    "code",
    "turns",
    "calls",
    "sums",
    "change",
    "needles",
    "variables",
    "words",
    "documents",
    "tools",
    "arithmetic",
];

/// A text with marks has the figures of the tokens between them, and is otherwise the text without them.
#[test]
fn eval_scores_what_stands_between_marks() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = &tqkv_model::shipped::HELDOUT_TEXT[..576];
    let (from, to) = (400, 512);
    std::fs::write(at.join("plain.txt"), text).unwrap();
    let marked = [&text[..from], b"<<", &text[from..to], b">>", &text[to..]].concat();
    std::fs::write(at.join("marked.txt"), &marked).unwrap();
    let eval = |more: &[&str]| {
        let args = ["eval", "--context", "192", "--kv", "s2 hot=0 sinks=0", "--text"];
        json(at, &[&args[..], more].concat())
    };
    let by_marks = eval(&["marked.txt", "--marks", "<<", ">>"]);
    assert_eq!(by_marks["windows"], 1, "the window with the answer: {by_marks}");
    let row = &rows(&by_marks)[1];
    assert_eq!(row["kl_of_windows"], serde_json::json!([row["kl_to_f16"]]), "{row}");
    // The sums over positions from one on give the mean between two of them: byte 400 is at 16 in the third window.
    let sums = |from: usize| {
        let report = eval(&["plain.txt", "--windows", "3", "--from", &from.to_string()]);
        let kl = rows(&report)[1]["kl_of_windows"].as_array().unwrap()[2].as_f64().unwrap();
        kl * (192 - from) as f64
    };
    let [first, last] = [from, to].map(|byte| byte - 2 * 192 - 1);
    let expected = (sums(first) - sums(last)) / (to - from) as f64;
    assert!((number(row, "kl_to_f16") - expected).abs() < 1e-6, "{row}: {expected}");
    for (args, said) in [
        (vec!["plain.txt", "--marks", "<<", ">>"], "has no '<<'"),
        (vec!["marked.txt", "--marks", "<<", "<<"], "expected two different ones"),
        (vec!["marked.txt", "--marks", "<<", ">>", "--windows", "2"], "expected 1 to 1"),
        (vec!["marked.txt", "--marks", "<<", ">>", "--from", "9"], "cannot be used with"),
    ] {
        let refused = error(at, &[&["eval", "--context", "192", "--text"], &args[..]].concat(), 2);
        assert!(refused.contains(said), "{refused}");
    }
}

/// An answer of one token is predicted by the last token of the question, which a cold prompt has among exact keys.
#[test]
fn prompts_read_exact_keys_or_codes() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = &tqkv_model::shipped::HELDOUT_TEXT[..400];
    std::fs::write(
        at.join("marked.txt"),
        [&text[..300], b"<<", &text[300..301], b">>", &text[301..]].concat(),
    )
    .unwrap();
    let kl = |prompt: &str, text: &[&str]| {
        let args =
            ["eval", "--context", "384", "--windows", "1", "--kv", "s2 hot=0 sinks=0", "--prompt", prompt];
        rows(&json(at, &[&args[..], text].concat()))[1]["kl_to_f16"].as_f64().unwrap()
    };
    let marked = ["--text", "marked.txt", "--marks", "<<", ">>"];
    let [codes, restored, cold] = ["codes", "restored", "cold"].map(|prompt| kl(prompt, &marked));
    assert!(cold < 1e-6 && restored > 1e-4 && codes > 1e-4 && codes != restored, "{codes} {restored} {cold}");
    // Of 200 tokens, the first is that of a prompt.
    let [restored, cold] = ["restored", "cold"].map(|prompt| kl(prompt, &["--from", "184"]));
    assert!(cold < restored && cold > 0.5 * restored, "{restored} {cold}");
    for (args, expected) in [
        (&["eval", "--kv", "s2", "--prompt", "cold"][..], "--prompt: nothing comes before what is scored"),
        (
            &["eval", "--recall", "--prompt", "warm"],
            "prompts do not read 'warm': expected codes, restored, cold",
        ),
    ] {
        assert!(error(at, args, 2).contains(expected), "{args:?}");
    }
}

/// Tables of a document: the figures of --json, the spread over the texts, and the bytes that plan counts.
#[test]
fn eval_prints_its_tables_in_markdown() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["eval", "--recall", "--context", "1024", "--kinds", "copy,facts", "--windows", "2"];
    let args = [&args[..], &["--kv", "tiny", "--kv", "q4_0", "--kv", "t4 hot=0 sinks=0"]].concat();
    let said = tqkv(at, &[&args[..], &["--markdown"]].concat());
    let said = String::from_utf8(said.stdout).unwrap();
    let cells = |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect();
    let tables: Vec<Vec<Vec<String>>> = said
        .split("\n\n")
        .filter(|part| part.starts_with('|'))
        .map(|table| table.lines().map(cells).collect())
        .collect();
    let sizes: Vec<_> = tables.iter().map(|table| [table.len(), table[0].len()]).collect();
    assert_eq!(sizes, [[5, 4], [5, 3], [5, 2], [6, 3], [3, 6], [6, 4]], "{said}");
    assert!(
        tables
            .iter()
            .enumerate()
            .all(|(i, table)| i == 4 || table.iter().flatten().all(|cell| !cell.is_empty())),
        "{said}"
    );
    let names: Vec<_> = tables[5][2..].iter().map(|row| &*row[0]).collect();
    assert_eq!(names, ["`f16,f16`", "`tiny`", "`q4_0,q4_0`", "`t4 hot=0 sinks=0`"]);
    assert!(tables[4][0].starts_with(&["text".to_owned(), "`f16,f16`".to_owned()]), "{said}");
    let report = json(at, &args);
    let planned = json(
        at,
        &[
            "plan",
            "--layers",
            "4",
            "--kv-heads",
            "1",
            "--head-dim",
            "128",
            "--tokens",
            "4096",
            "--kv",
            "tiny",
        ],
    );
    let bytes = planned["rows"][0]["cache_bytes"].as_f64().unwrap() / 4096.0;
    assert_eq!(tables[5][3][2], format!("{bytes:.0}"), "{said}");
    for (row, shown) in rows(&report)[1..].iter().zip(&tables[0][2..]) {
        for (i, cell) in row["texts"].as_array().unwrap().iter().enumerate() {
            assert_eq!(shown[2 + i], format!("{:.4}", number(cell, "kl_to_f16")), "{said}");
            let each: Vec<_> =
                cell["kl_of_texts"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            assert!(each.len() == 2 && each[0] != each[1], "{cell}");
            // Texts of a kind have about as many scored tokens.
            assert!((each.iter().sum::<f64>() / 2.0 / number(cell, "kl_to_f16") - 1.0).abs() < 0.1, "{cell}");
        }
    }
    let (least, most) = tables[1][2][1].split_once(" to ").unwrap();
    assert!(least.parse::<f64>().unwrap() < most.parse::<f64>().unwrap(), "{said}");
    let both = error(at, &["eval", "--recall", "--markdown", "--json"], 2);
    assert!(both.contains("--markdown and --json: expected one of them"), "{both}");
}
