//! `tqkv-lab compare` of files.

use serde_json::Value;

use crate::arrays::folder;
use crate::product::product;
use crate::support::{error, json, tqkv as lab};

#[test]
fn compare_reads_two_files_of_the_same_vectors() {
    let folder = folder();
    let at = folder.path();
    let encode = |codec: &str, seed: &str, out: &str| {
        let [from, to] = ["in.npy", out].map(|name| at.join(name).display().to_string());
        product(&["encode", "--codec", codec, "--seed", seed, &from, &to]);
    };
    encode("s4", "1", "a.tqk");
    encode("s4", "2", "b.tqk");
    encode("s2", "1", "c.tqk");
    let compare = |a: &str, b: &str| json(at, &["compare", a, b])["vectors"].clone();
    let same = compare("a.tqk", "a.tqk");
    assert_eq!((&same["code_agreement"], &same["equal_blocks"]), (&1.0.into(), &1.0.into()));
    assert_eq!((&same["relative_error"], &same["mean_cosine"]), (&0.0.into(), &1.0.into()));
    for other in ["b.tqk", "c.tqk"] {
        let found = compare("a.tqk", other);
        assert_eq!(
            found["code_agreement"],
            Value::Null,
            "codes of other seeds and codecs mean something else"
        );
        let error = found["relative_error"].as_f64().unwrap();
        assert!(error > 0.005 && error < 0.3, "{found}");
    }
    let text = lab(at, &["compare", "a.tqk", "c.tqk"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("equal blocks"));
}

#[test]
fn compare_says_which_file_is_missing() {
    let folder = folder();
    let at = folder.path();
    let [from, to] = ["in.npy", "a.tqk"].map(|name| at.join(name).display().to_string());
    product(&["encode", "--codec", "s4", &from, &to]);
    for args in
        [["compare", "a.tqk", "nosuch.tqk"], ["compare", "no/such", "s4"], ["compare", "s4", "nosuch.tqk"]]
    {
        let message = error(at, &args, 2);
        assert!(message.contains("no such file: expected a .tqk file, a snapshot, or a run"), "{message}");
    }
    assert!(
        error(at, &["compare", "a.tqk", "s9"], 2).contains("'s9' is no file and no run: kv=s9 is not valid")
    );
}
