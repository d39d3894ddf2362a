//! Commands that are killed at any moment leave complete files or none.

use std::fs;

use crate::arrays::{DIM, npy, raw, values};
use crate::kill::kill_often;
use crate::session::STATE;
use crate::support::json;

#[test]
fn what_a_killed_command_writes_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/shipped");
    let rows = 20_000;
    npy(&at.join("in.npy"), "<f4", &format!("({rows}, {DIM})"), &raw(&values(rows)));
    json(at, &["encode", "--codec", "s4", "in.npy", "in.tqk"]);
    let basis = ["basis", "--context", "512", "--windows", "2", "m.tqb"];
    json(at, &basis);
    let shape = tqkv_model::Model::shipped().unwrap().config().kv_shape();
    let tokens = 600;
    let all = values(shape.num_layers * tokens * shape.num_kv_heads * shape.head_dim / DIM);
    let shape = format!("({}, {tokens}, {}, {})", shape.num_layers, shape.num_kv_heads, shape.head_dim);
    npy(&at.join("k.npy"), "<f4", &shape, &raw(&all));
    npy(&at.join("v.npy"), "<f4", &shape, &raw(&all));
    let stored = ["encode", "--force", "--storage", "2", "--basis", "m.tqb", "--values", "v.npy", "k.npy"];
    json(at, &[&stored[..], &["in.tqc"]].concat());
    fs::write(at.join("chat.bin"), STATE).unwrap();
    let pack = ["session", "pack", "--force", "--head-dim", "64", "chat.bin"];
    json(at, &[&pack[..], &["chat.tqs"]].concat());
    let commands: [(&[&str], &[&str], bool); 9] = [
        (&[&pack[..], &["x.tqs"]].concat(), &["x.tqs"], true),
        (&["session", "unpack", "--force", "chat.tqs", "x.bin"], &["x.bin"], true),
        (&["encode", "--force", "--codec", "s4", "in.npy", "x.tqk"], &["x.tqk"], true),
        (&["decode", "--force", "in.tqk", "x.npy"], &["x.npy"], true),
        (&[&stored[..], &["x.tqc"]].concat(), &["x.tqc"], true),
        (
            &["decode", "--force", "--basis", "m.tqb", "--values", "y.npy", "in.tqc", "x.npy"],
            &["x.npy", "y.npy"],
            true,
        ),
        (&["export", "--force", "--target", "mcu", model, "x.tqlm"], &["x.tqlm"], true),
        (&["basis", "--context", "512", "--windows", "2", "x.tqb"], &["x.tqb"], true),
        (&["weights", "compress", model, "coded", "--codec", "s4"], &["coded"], false),
    ];
    for (args, outputs, replaces) in commands {
        kill_often(at, args, outputs, replaces);
    }
}
