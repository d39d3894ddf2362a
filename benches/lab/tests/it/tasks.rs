//! `tqkv-lab tasks` with the shipped model.

use serde_json::Value;

use crate::printed::number;
use crate::support::{error, json};

#[test]
fn policies_answer_the_same_questions() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // The model knows bytes, so its tasks have many tokens.
    let args = ["tasks", "--context", "900", "--kv", "t4 hot=0 sinks=0", "--kv", "s2 hot=0 sinks=0"];
    let report = json(at, &args);
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|row| row["kv"].as_str().unwrap()).collect();
    assert_eq!(names, ["f16,f16", "t4,t4", "s2,s2"]);
    let tasks = |row: &Value| row["tasks"].as_array().unwrap().clone();
    // Two facts fit the context of the model.
    let sizes = [("recall", 16), ("arithmetic", 48), ("turns", 2)];
    for row in results {
        for (task, (name, questions)) in tasks(row).iter().zip(sizes) {
            assert_eq!((&task["task"], &task["questions"]), (&name.into(), &questions.into()));
            assert!(task["right"].as_u64().unwrap() <= questions && number(task, "nll") > 0.0, "{task}");
        }
        assert_eq!(tasks(row)[0]["tokens"], 900);
    }
    for i in 0..3 {
        let [exact, wide, narrow] = [0, 1, 2].map(|row: usize| tasks(&results[row])[i].clone());
        assert_eq!(exact["agreed"], exact["questions"]);
        let away = |task: &Value| (number(task, "nll") - number(&exact, "nll")).abs();
        assert!(away(&wide) < 0.2 && away(&narrow) > 0.0, "{exact} {wide} {narrow}");
        assert!(number(&narrow, "cache_bytes") < number(&wide, "cache_bytes"));
    }
}

#[test]
fn a_text_that_is_too_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("short.txt"), "short").unwrap();
    let said = error(at, &["tasks", "--text", "short.txt", "--context", "4096", "--kv", "t4"], 2);
    assert!(said.contains("the text has 5 tokens: expected at least"), "{said}");
    let said = error(at, &["tasks", "--kv", "tq3"], 2);
    assert!(said.contains("tasks"), "{said}");
}
