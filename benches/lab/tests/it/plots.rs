//! `tqkv-lab sweep` and `codebook`, and existing files that plots do not replace.

use std::fs;

use serde_json::Value;

use crate::arrays::folder;
use crate::support::{json, tqkv as lab};

#[test]
fn a_sweep_measures_every_length_and_draws_it() {
    let folder = folder();
    let command = ["sweep", "--codec", "s2", "--dim", "32", "--seconds", "1", "growth.svg", "--json"];
    let output = lab(folder.path(), &command);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tokens: Vec<_> = report["results"].as_array().unwrap().iter().map(|row| &row["tokens"]).collect();
    assert_eq!((tokens.len(), tokens[0].as_u64(), tokens[10].as_u64()), (11, Some(1 << 10), Some(1 << 20)));
    let svg = fs::read_to_string(folder.path().join("growth.svg")).unwrap();
    for name in ["s2, 1 head, D = 32", "f16, 1 head, D = 32", "reading f16, D = 32", "1024k"] {
        assert!(svg.contains(name), "{name}");
    }
    // An existing file is replaced only with permission.
    let again = lab(folder.path(), &command);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert_eq!(fs::read_to_string(folder.path().join("growth.svg")).unwrap(), svg);
}

#[test]
fn codebook_prints_coordinates_of_unit_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let book = json(folder.path(), &["codebook", "--dim", "128", "--bits", "2"]);
    let numbers = |field: &str| -> Vec<f64> {
        book[field].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let centroids = [-0.13304152, -0.03999160, 0.03999160, 0.13304152];
    assert!(numbers("centroids").iter().zip(centroids).all(|(a, b)| (a - b).abs() < 1e-8));
    let boundaries = [-0.08651656, 0.0, 0.08651656];
    assert!(numbers("boundaries").iter().zip(boundaries).all(|(a, b)| (a - b).abs() < 1e-8));
    assert_eq!((numbers("centroids").len(), numbers("boundaries").len()), (4, 3));
    assert!((book["relative_mse"].as_f64().unwrap() - 0.11600).abs() < 1e-5);
}

/// A pipe waits for its other end, which nobody opens here.
#[test]
#[cfg(unix)]
fn an_output_that_is_a_pipe_is_refused_at_once() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    let folder = folder();
    let at = folder.path();
    assert!(Command::new("mkfifo").arg(at.join("pipe")).status().unwrap().success());
    for command in ["report", "sweep"] {
        for force in [&[][..], &["--force"]] {
            let mut child = Command::new(crate::PROGRAM)
                .current_dir(at)
                .args([&[command, "pipe"], force].concat())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let begun = Instant::now();
            while child.try_wait().unwrap().is_none() {
                if begun.elapsed() > Duration::from_secs(60) {
                    child.kill().unwrap();
                    panic!("{command} waits for a pipe");
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.contains("not a regular file"), "{said}");
        }
    }
}

#[test]
#[cfg(unix)]
fn a_killed_comparison_leaves_its_snapshots_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let compare = ["compare", "s4", "s2", "--context", "64", "--save", "x.tqs"];
    crate::kill::kill_often(folder.path(), &compare, &["x.tqs"], true);
}
