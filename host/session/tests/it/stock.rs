//! Stock libraries of llama.cpp save states, and load them after a pack and an unpack.

use crate::common::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use tqkv_session::{Layout, Mode, inspect};

/// The path in a variable. Without it, a line says that nothing is tested.
fn variable(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    if path.is_none() {
        assert!(std::env::var_os("TQKV_REQUIRE_LLAMA").is_none(), "{name} is not set");
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "not tested beside llama.cpp: {name} is not set");
    }
    path
}

struct Engine {
    program: PathBuf,
    libraries: PathBuf,
    model: PathBuf,
    folder: tempfile::TempDir,
}

impl Engine {
    fn new() -> Option<Self> {
        let headers = variable("TQKV_LLAMA_HEADERS")?;
        let headers = std::env::split_paths(&headers).next()?;
        let (libraries, model) = (variable("TQKV_LLAMA_LIBS")?, variable("TQKV_LLAMA_MODEL")?);
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("session");
        let mut gcc = Command::new("cc");
        gcc.arg("-O1").arg("-o").arg(&program);
        gcc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session.c"));
        for part in ["include", "ggml/include"] {
            gcc.arg("-I").arg(headers.join(part));
        }
        for file in std::fs::read_dir(&libraries).unwrap().map(|file| file.unwrap().path()) {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if ["libllama.", "libggml.", "libggml-base."].iter().any(|start| name.starts_with(start)) {
                gcc.arg(file);
            }
        }
        gcc.arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-Wl,--allow-shlib-undefined");
        let done = gcc.output().expect("a C compiler");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(Self { program, libraries, model, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Saves or restores `state`, and gives the vocabulary and the logits of the next tokens.
    fn run(
        &self,
        command: &str,
        state: &Path,
        variables: &[(&str, &str)],
    ) -> Result<(usize, Vec<f32>), String> {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/shipped/heldout.txt");
        let logits = self.path("logits");
        let mut program = Command::new(&self.program);
        program.arg(&self.libraries).arg(&self.model).arg(text).arg(command).arg(state).arg(&logits);
        let done = program.envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        let words = said.split_whitespace().nth(1).unwrap().parse().unwrap();
        let bytes = std::fs::read(&logits).unwrap();
        Ok((words, bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()))
    }
}

/// Mean KL divergence of the second from the first.
fn divergence(words: usize, first: &[f32], second: &[f32]) -> f64 {
    let normalise = |logits: &[f32]| {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
        logits.iter().map(|x| f64::from(x - most) - sum.ln()).collect::<Vec<f64>>()
    };
    let rows = first.chunks_exact(words).zip(second.chunks_exact(words));
    let each = rows.map(|(p, q)| {
        let (p, q) = (normalise(p), normalise(q));
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()
    });
    each.sum::<f64>() / (first.len() / words) as f64
}

#[test]
fn an_engine_loads_what_was_packed_and_predicts_nearly_the_same() {
    let Some(engine) = Engine::new() else { return };
    let (saved, restored) = (engine.path("saved"), engine.path("restored"));
    for variables in [
        &[][..],
        &[("FA", "0")],
        &[("DATA", "1")],
        &[("TYPE", "q8_0")],
        &[("TYPE", "q4_0")],
        &[("DATA", "1"), ("FA", "0")],
    ] {
        engine.run("save", &saved, variables).unwrap();
        let state = std::fs::read(&saved).unwrap();
        let layout = Layout::read(&mut std::io::Cursor::new(&state)).unwrap();
        assert_eq!((layout.caches.len(), layout.caches[0].cells, layout.unread_bytes), (1, 512, 0));
        let (words, before) = engine.run("restore", &saved, variables).unwrap();
        let through = |mode: Mode| {
            let (packed, sizes) = pack(&state, mode).unwrap();
            assert_eq!(inspect(&mut &packed[..]).unwrap().sizes, sizes);
            let unpacked = unpack(&packed).unwrap();
            assert!(!matches!(mode, Mode::Exact) || unpacked == state, "{variables:?}");
            std::fs::write(&restored, unpacked).unwrap();
            let after = engine.run("restore", &restored, variables).unwrap().1;
            (after.clone(), divergence(words, &before, &after), sizes.state as f64 / sizes.pack as f64)
        };
        assert!(through(Mode::Exact).0 == before, "{variables:?}");
        let is_coded = variables.contains(&("TYPE", "q4_0"));
        let (_, kl, factor) = through(codecs("t4"));
        println!("{variables:?} t4: KL {kl:.5}, {factor:.2}");
        assert!(kl < 0.03 && (is_coded || factor > 1.7), "{variables:?}: {kl}, {factor}");
        let (_, kl_2, factor_2) = through(codecs("t2"));
        println!("{variables:?} t2: KL {kl_2:.5}, {factor_2:.2}");
        assert!(kl_2 > kl && kl_2 < 0.15 && factor_2 > factor, "{variables:?}: {kl_2}, {factor_2}");
    }
}

#[test]
fn an_engine_refuses_what_another_setting_saved() {
    let Some(engine) = Engine::new() else { return };
    let saved = engine.path("saved");
    engine.run("save", &saved, &[]).unwrap();
    let error = engine.run("restore", &saved, &[("TYPE", "q8_0")]).unwrap_err();
    assert!(error.contains("mismatched key type"), "{error}");
}
