//! Data of a report: the output of `tqkv` and `tqkv-lab` commands with `--json`.

use std::path::Path;

use serde_json::Value;
use tqkv_cli::Tqkv;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_cli::program::{self, Program};
use tqkv_model::Model;

/// Runs the words after the name of a program.
type Run = fn(&[&str], &mut Output) -> Result<(), CliError>;

/// Runs commands on one model, fully or quickly.
pub(crate) struct Source {
    /// Names of the programs, and how each runs.
    programs: [(&'static str, Run); 2],
    model: Option<String>,
    quick: bool,
}

/// The output of a command.
pub(crate) struct Answer {
    /// The command in the form that a user types.
    pub(crate) command: String,
    json: Value,
}

/// One object of a list.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a>(&'a Value);

impl Source {
    /// A source for the model at a path, or for the shipped model. `quick` takes a fraction of the time, for
    /// rough figures. `Lab` is the program next to `tqkv`.
    pub(crate) fn new<Lab: Program>(model: Option<String>, quick: bool) -> Self {
        let programs: [(_, Run); 2] = [(Tqkv::NAME, run::<Tqkv>), (Lab::NAME, run::<Lab>)];
        Self { programs, model, quick }
    }

    /// Returns `quick` in a quick report, otherwise `full`.
    pub(crate) fn full_or_quick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The dims of key and value that codecs must have for a cache of the model.
    pub(crate) fn dims(&self) -> Result<[usize; 2], CliError> {
        let path = self.model.as_deref().map(Path::new);
        let model =
            path.map_or_else(Model::shipped, Model::load).map_err(|error| CliError::model(path, &error))?;
        let shape = model.config().kv_shape();
        // Only the part of a latent vector without positions is encoded.
        let key = if model.config().latent.is_some() { shape.value_dim } else { shape.head_dim };
        Ok([key, shape.value_dim])
    }

    /// Number of windows of text that models predict.
    pub(crate) fn windows(&self) -> &'static str {
        self.full_or_quick("--windows 4", "--windows 1 --context 256")
    }

    /// Runs a command without a model, or with the shipped one. `line` is the program and its words, with
    /// spaces between, quoted as in a shell.
    pub(crate) fn run(&self, line: &str) -> Result<Answer, CliError> {
        self.answer(&words(line)?)
    }

    /// Runs a command with the model of the report.
    pub(crate) fn run_model(&self, line: &str) -> Result<Answer, CliError> {
        let model = self.model.iter().flat_map(|path| ["--model".to_owned(), path.clone()]);
        self.answer(&words(line)?.into_iter().chain(model).collect::<Vec<_>>())
    }

    fn answer(&self, words: &[String]) -> Result<Answer, CliError> {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let mut out = Output::keeping();
        let program = self.programs.iter().find(|(name, _)| words.first() == Some(name));
        let Some((_, run)) = program else {
            return Err(CliError::failure(format_args!("no program of {words:?}")));
        };
        run(&words[1..], &mut out)?;
        let json = serde_json::from_str(&out.kept()).map_err(CliError::failure)?;
        let quoted = |word: &str| if word.contains(' ') { format!("'{word}'") } else { word.to_owned() };
        let words: Vec<_> = words.into_iter().map(quoted).collect();
        Ok(Answer { command: words.join(" "), json })
    }
}

fn words(line: &str) -> Result<Vec<String>, CliError> {
    shlex::split(line).ok_or_else(|| CliError::failure(format_args!("a quote is open: {line}")))
}

fn run<P: Program>(words: &[&str], out: &mut Output) -> Result<(), CliError> {
    program::parse::<P>(words)?.run(out)
}

impl Answer {
    /// The whole object.
    pub(crate) fn all(&self) -> Row<'_> {
        Row(&self.json)
    }

    /// The objects of the list `name`.
    pub(crate) fn rows(&self, name: &str) -> Vec<Row<'_>> {
        self.all().rows(name)
    }
}

impl<'a> Row<'a> {
    #[cfg(test)]
    pub(crate) fn new(json: &'a Value) -> Self {
        Self(json)
    }

    /// The number `name`; NaN if it is absent, which no plot draws.
    pub(crate) fn number(self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(f64::NAN)
    }

    /// The count `name`.
    pub(crate) fn count(self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    /// The text `name`; empty if it is absent.
    pub(crate) fn text(self, name: &str) -> &'a str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// The object `name`.
    pub(crate) fn of(self, name: &str) -> Self {
        Self(&self.0[name])
    }

    /// The objects of the list `name`; none if it is absent.
    pub(crate) fn rows(self, name: &str) -> Vec<Self> {
        self.0[name].as_array().into_iter().flatten().map(Self).collect()
    }
}
