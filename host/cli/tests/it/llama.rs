//! `tqkv llama` against programs that say what builds of llama.cpp say.

use crate::support::{error, json, tqkv};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::tempdir;

/// A program that lists our device where the library is named, refuses one policy, and lists nothing else.
const LLAMA: &str = r#"#!/bin/sh
[ "$1" = --list-devices ] || exit 3
[ "$TQKV_KV" = q9 ] && { echo "tqkv: TQKV_KV=q9: 'q9': expected s4" >&2; exit 0; }
echo "Available devices:"
[ -n "$GGML_BACKEND_PATH" ] && echo "  TQKV: KV cache in tqkv codes (0 MiB, 50 MiB free)"
exit 0
"#;

fn program(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_command_line_is_checked_with_the_binary_that_it_names() {
    let folder = tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    fs::create_dir(folder.join("the bin")).unwrap();
    program(&folder.join("the bin"), "llama-cli", LLAMA);
    fs::write(folder.join("lib.so"), "").unwrap();
    let args = ["llama", "--library", "lib.so", "--model", "a model.gguf", "--kv", "t4,t2 hot=8", "the bin"];
    let report = json(&folder, &args);
    assert_eq!(report["device"], "TQKV: KV cache in tqkv codes (0 MiB, 50 MiB free)");
    let root = folder.display();
    let expected = format!(
        "GGML_BACKEND_PATH={root}/lib.so TQKV_KV='t4,t2 hot=8' '{root}/the bin/llama-cli' -m 'a model.gguf' -ngl 99 -fa on"
    );
    assert_eq!(report["command"], expected);
    assert_eq!(report["environment"]["TQKV_KV"], "t4,t2 hot=8");
    assert_eq!(report["arguments"][2], "a model.gguf");
    let text = String::from_utf8(tqkv(&folder, &args).stdout).unwrap();
    assert!(
        text.starts_with(&expected) && text.contains("loads there: TQKV") && text.contains("-fit off"),
        "{text}"
    );
    // Weights lie on a GPU that the binary has.
    let with_gpu = LLAMA.replace("  TQKV:", "  Vulkan0: a card (8 MiB, 4 MiB free)\n  TQKV:");
    program(&folder.join("the bin"), "llama-cli", &with_gpu);
    let report = json(&folder, &args);
    let command = format!("{expected} -dev TQKV,Vulkan0 -ts 1,0 -ot '.*=Vulkan0'");
    assert_eq!((&report["command"], &report["weights"]), (&command.into(), &"Vulkan0".into()));
    let text = String::from_utf8(tqkv(&folder, &args).stdout).unwrap();
    assert!(text.contains("The weights lie on Vulkan0, and the cache in main memory"), "{text}");
    // Without binaries the command line is that of those on the path.
    let report = json(&folder, &["llama", "--library", "lib.so"]);
    assert!(report["device"].is_null() && report["arguments"][0] == "llama-server", "{report}");
}

#[test]
fn what_does_not_load_says_why() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("lib.so"), "").unwrap();
    program(folder, "fixed", "#!/bin/sh\necho 'Available devices:'\n");
    program(folder, "broken", "#!/bin/sh\necho 'unknown argument: --list-devices' >&2; exit 1\n");
    program(folder, "llama-server", LLAMA);
    fs::create_dir(folder.join("empty")).unwrap();
    for (args, code, expected) in [
        (&["--library", "no.so"][..], 2, "no.so: no such library; cargo build --release"),
        (&["--library", "lib.so", "empty"], 2, "neither llama-server nor llama-cli lies there"),
        (&["--library", "lib.so", "none"], 2, "none"),
        (&["--library", "lib.so", "fixed"], 1, "GGML_BACKEND_DL"),
        (&["--library", "lib.so", "broken"], 1, "unknown argument: --list-devices"),
        (&["--library", "lib.so", "--kv", "q9", "."], 1, "expected s4"),
    ] {
        let said = error(folder, &[&["llama"], args].concat(), code);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}
