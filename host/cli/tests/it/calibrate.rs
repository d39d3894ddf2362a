//! `tqkv calibrate`, and policies with its files.

use std::fs;

use tqkv::cache::Calibrator;
use tqkv_model::Model;

use crate::printed::number;
use crate::support::{error, json};

#[test]
fn moments_of_a_text_serve_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let made = json(at, &["calibrate", "--context", "512", "--windows", "2", "--out", "m.tqm"]);
    assert_eq!(made["tokens"], 1024);
    assert_eq!(made["bytes"], fs::metadata(at.join("m.tqm")).unwrap().len());
    assert_eq!(fs::read_dir(at).unwrap().count(), 1);
    let again = ["calibrate", "--context", "512", "--windows", "1", "--out", "m.tqm"];
    assert!(error(at, &again, 2).contains("m.tqm: exists, --force replaces it"));
    // With a window the model has as much loss under either code.
    let kv = ["t2 hot=0 sinks=0", "m2,t2 map=m.tqm hot=0 sinks=0"];
    let eval = ["eval", "--context", "512", "--windows", "1", "--kv", kv[0], "--kv", kv[1]];
    let rows = &json(at, &eval)["results"];
    let kl = |row: usize| number(&rows[row], "kl_to_f16");
    assert!(kl(2) < 0.95 * kl(1), "{rows}");
    let planned = json(
        at,
        &["plan", "--layers", "9", "--kv-heads", "2", "--head-dim", "64", "--kv", "m2,t2 map=m.tqm"],
    );
    assert_eq!(planned["rows"][0]["policy"], "m2,t2 map=m.tqm");
}

#[test]
fn files_that_do_not_fit_the_model_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = Model::shipped().unwrap();
    let spec = model.config().cache_spec();
    Calibrator::new(&spec).unwrap().finish([0; 32]).save(at.join("foreign.tqm")).unwrap();
    let mut other = spec;
    other.shape.num_layers += 1;
    Calibrator::new(&other).unwrap().finish(model.config().identity()).save(at.join("longer.tqm")).unwrap();
    let whole = fs::read(at.join("foreign.tqm")).unwrap();
    fs::write(at.join("cut.tqm"), &whole[..whole.len() - 1]).unwrap();
    for (file, why) in [
        (
            "foreign.tqm",
            "m2,t2 map=foreign.tqm: moments of another model: expected a file that tqkv calibrate made",
        ),
        ("longer.tqm", "longer.tqm: it is of"),
        ("cut.tqm", "cut.tqm: cut short"),
        ("none.tqm", "none.tqm: "),
    ] {
        let policy = format!("m2,t2 map={file}");
        let said = error(at, &["eval", "--context", "256", "--windows", "1", "--kv", &policy], 2);
        assert!(said.contains(why), "{said}");
        let said = error(at, &["generate", "--prompt", "a", "--kv", &policy], 2);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_calibration_that_cannot_be_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (args, why) in [
        (&["--out", "m.tqb"][..], "expected a name that ends in .tqm"),
        (&["--context", "131", "--out", "m.tqm"], "windows of 131 tokens: expected 132 to 1024"),
        (&["--context", "1025", "--out", "m.tqm"], "expected 132 to 1024"),
        (&["--windows", "100000", "--out", "m.tqm"], "windows of 1024 tokens"),
        (&["--text", "none.txt", "--out", "m.tqm"], "none.txt"),
        (&["--context", "256", "--windows", "1", "--out", "none/m.tqm"], "none/m.tqm"),
    ] {
        let output = crate::support::tqkv(at, &[&["calibrate"], args].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why) && said.lines().count() == 1, "{said}");
        assert_eq!(fs::read_dir(at).unwrap().count(), 0, "{args:?}");
    }
}
