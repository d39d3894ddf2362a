//! `tqkv-lab compare`, `stats --delta` and `report` on the shipped model. Each section of the report stands
//! alone.

use std::fs;

use serde_json::Value;

use crate::printed::number;
use crate::support::{json, tqkv as lab};

#[test]
fn runs_and_snapshots_are_compared_layer_by_layer() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let compare = |a: &str, b: &str| json(at, &["compare", a, b, "--context", "256"]);
    let every = "s4 hot=0 sinks=0";
    let same = compare(every, "s4 hot=0 sinks=0@portable");
    let layers = same["layers"].as_array().unwrap();
    assert_eq!((layers.len(), &same["tokens"]), (4, &256.into()));
    for layer in layers {
        for side in ["keys", "values"] {
            let figures = &layer[side];
            assert_eq!(
                (&figures["code_agreement"], &figures["equal_blocks"]),
                (&1.0.into(), &1.0.into()),
                "{layer}"
            );
            assert_eq!(figures["relative_error"], 0.0, "two instruction sets agree to the bit: {layer}");
        }
        assert!(number(layer, "hidden_cosine") > 1.0 - 1e-9, "{layer}");
    }
    // The keys of the first layer are equal, so their error is the error of the codec. Other codecs have no
    // common code.
    let narrow = compare("f16", "s2 hot=0 sinks=0");
    let first = &narrow["layers"][0];
    assert!((0.05..0.2).contains(&number(&first["values"], "relative_error")), "{first}");
    assert_eq!(first["values"]["code_agreement"], Value::Null);
    let hidden: Vec<_> =
        narrow["layers"].as_array().unwrap().iter().map(|l| number(l, "hidden_cosine")).collect();
    assert!(hidden.iter().all(|cosine| (0.9..0.99999).contains(cosine)), "{hidden:?}");

    let saved = lab(at, &["compare", every, "s2 hot=0 sinks=0", "--context", "256", "--save", "a.tqs"]);
    let text = String::from_utf8_lossy(&saved.stdout).into_owned();
    assert!(text.contains("codes K") && text.contains("hidden"), "{text}");
    let kept = compare("a.tqs", every);
    assert_eq!(kept["layers"][3]["keys"]["equal_blocks"], 1.0, "{kept}");
    assert_eq!(kept["layers"][3]["hidden_cosine"], Value::Null, "a snapshot has no hidden states");
    assert_eq!(compare("a.tqs", "a.tqs")["layers"][0]["values"]["mean_cosine"], 1.0);

    fs::write(at.join("junk"), [0u8; 64]).unwrap();
    let refused = |args: &[&str], word: &str| {
        let failed = lab(at, &[&["compare", "--context", "256"][..], args].concat());
        let error = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(2) && error.contains(word), "{args:?}: {error}");
    };
    refused(&["a.tqs", "nothing-there"], "no file and no run");
    refused(&["s4@avx9", "s4"], "s4@avx9");
    refused(&["junk", "junk"], "junk");
    refused(&["a.tqs", "junk"], "no layers");
    refused(&["a.tqs", "s4", "--save", "b.tqs"], "--save");
    let shorter = lab(at, &["compare", "a.tqs", "s4", "--context", "128"]);
    assert!(String::from_utf8_lossy(&shorter.stderr).contains("256 tokens"));
    assert!(!at.join("b.tqs").exists());
}

#[test]
fn layers_of_the_shipped_model_say_little_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let report = json(folder.path(), &["stats", "--delta"]);
    let rows = report["delta"].as_array().unwrap();
    let row = |what: &str| rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("{report}"));
    for what in
        ["keys", "values", "weights q", "weights k", "weights v", "weights o", "weights gate", "weights down"]
    {
        let row = row(what);
        assert_eq!(row["pairs"], 3);
        // A difference is larger than the layer itself, and the best prediction saves a hundredth of a bit.
        assert!(number(row, "difference_energy") > 1.5 && number(row, "bits_saved") < 0.05, "{row}");
        assert!(number(row, "entropy") - number(row, "entropy_given_last") < 0.1, "{row}");
    }
    let text = String::from_utf8(lab(folder.path(), &["stats", "--delta"]).stdout).unwrap();
    assert!(text.contains("difference energy"), "{text}");
}

/// One page that needs no other file, with all sections and their commands.
#[test]
fn a_report_is_one_page_that_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let output = lab(at, &["report", "--quick", "--csv", "cells.csv", "page.html", "--json"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    // A machine that runs another program meanwhile measures unreliable times, and the report has a note.
    assert!(
        output.status.success() && stderr.lines().all(|line| line.contains("too noisy to count")),
        "{stderr}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let page = fs::read_to_string(at.join("page.html")).unwrap();
    assert_eq!(report["bytes"], page.len());
    assert_eq!(page.matches("<section ").count() as u64, report["sections"].as_u64().unwrap());
    for section in [
        "What it saves",
        "Error against bits",
        "Quality against bytes",
        "The life of a token",
        "Speed against length",
        "Memory against context",
        "Layers and heads",
        "An outlier before and after",
        "A cliff at 1.5 bits?",
        "FP8 at equal bytes",
        "Differences between layers",
        "Published figures",
        "The same prompt",
    ] {
        assert!(page.contains(section), "{section}");
    }
    // Every section names the commands of its data, and every drawing has two widths.
    assert_eq!(page.matches("<section ").count(), page.matches("</section>").count());
    for section in page.split("<section ").skip(1) {
        assert!(section.contains("<code>tqkv ") || section.contains("<code>tqkv-lab "), "{section}");
    }
    assert_eq!(page.matches("class=\"wide\"").count(), page.matches("class=\"narrow\"").count());
    assert!(page.matches("class=\"wide\"").count() >= 9);
    // Every codec of the list has a row.
    for codec in tqkv_core::CodecId::ALL {
        assert!(page.contains(&format!("<td>{}</td>", codec.name())), "{}", codec.name());
    }
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["<script", "http:", "https:", "src=", "@import", "NaN", "/tmp"] {
        assert!(!outside.contains(word), "{word}");
    }
    // The claim about QJL refers to a table at the scale that the claim names.
    let sketches = page.split("<section ").skip(1).find(|text| text.contains("A bit of QJL")).unwrap();
    assert!(sketches.contains("--scale-mode unbiased") && !sketches.contains("mmse"), "{sketches}");
    assert!(page.contains("1 window of 256 tokens of held-out text"));
    for (contexts, bytes) in
        [("108,608", "327,680"), ("535,630", "66,560"), ("409,600", "87,040"), ("217,600", "163,840")]
    {
        assert!(page.contains(contexts) && page.contains(bytes), "{contexts}");
    }
    // Each cell of each table is a line of the other file.
    let cells = fs::read_to_string(at.join("cells.csv")).unwrap();
    assert!(cells.starts_with("section,table,line,column,value\n") && !cells.contains("NaN"), "{cells}");
    assert_eq!(cells.lines().count() - 1, page.matches("<td").count());
    let again = lab(at, &["report", "--quick", "page.html"]);
    assert_eq!(again.status.code(), Some(2), "a page that is there stays");
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
}
