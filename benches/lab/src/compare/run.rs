//! A run of a model over a text, to compare with another run.

use std::path::PathBuf;

use tqkv::Level;
use tqkv::cache::KvCache;
use tqkv_cli::cache_args::{ModelArgs, check_stored};
use tqkv_cli::error::CliError;
use tqkv_cli::input;
use tqkv_cli::policy::Policy;
use tqkv_model::{Model, shipped};

/// The model and the text of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text of a run, - for standard input [default: the shipped held-out text].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Number of tokens of a run, from the start of the text.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    context: usize,
}

/// Setting of a run: a policy, and an instruction set if it is not the machine's default.
pub(crate) struct RunSetting {
    what: String,
    policy: Policy,
    level: Option<Level>,
}

impl RunSetting {
    /// Reads `POLICY` or `POLICY@LEVEL`. The name of a file is refused.
    pub(crate) fn parse(what: &str) -> Result<Self, CliError> {
        // Codec names have no dot and no slash.
        if what.split_whitespace().next().is_some_and(|first| first.contains(['.', '/', '\\'])) {
            return Err(CliError::bad_input(format_args!(
                "{what}: no such file: expected a .tqk file, a snapshot, or a run such as s4 or \"t4 hot=0\""
            )));
        }
        let bad =
            |error: String| CliError::bad_input(format_args!("'{what}' is no file and no run: {error}"));
        let (policy, level) =
            what.split_once('@').map_or((what, None), |(policy, level)| (policy, Some(level)));
        let policy: Policy = policy.parse().map_err(bad)?;
        check_stored("compare", std::slice::from_ref(&policy))?;
        let level = level.map(|level| Level::from_name(level).map_err(|e| bad(e.to_string()))).transpose()?;
        Ok(Self { what: what.to_owned(), policy, level })
    }
}

/// The cache after a run, and the hidden states of each layer.
pub(crate) struct ModelRun {
    /// The cache.
    pub(crate) cache: KvCache,
    hidden: Vec<Vec<f32>>,
    width: usize,
}

/// The model and the tokens of all runs.
pub(crate) struct Runner {
    model: Model,
    tokens: Vec<u32>,
}

impl RunArgs {
    /// Loads the model and the text.
    pub(crate) fn runner(&self) -> Result<Runner, CliError> {
        let text = match &self.text {
            Some(path) => input::read(path)?,
            None => shipped::HELDOUT_TEXT.to_vec(),
        };
        let model = self.model.load()?;
        let tokens = model.first_tokens(&text, self.context).map_err(|e| CliError::model(None, &e))?;
        if self.context == 0 || tokens.len() < self.context {
            return Err(CliError::bad_input(format_args!(
                "--context {} does not fit the text ({} tokens read): expected 1 up to the length of the text",
                self.context,
                tokens.len()
            )));
        }
        Ok(Runner { model, tokens })
    }
}

impl Runner {
    /// Runs the text with a cache of `setting`.
    pub(crate) fn run(&self, setting: &RunSetting) -> Result<ModelRun, CliError> {
        let RunSetting { what, policy, level } = setting;
        let config = self.model.config();
        let spec = policy.apply(config.cache_spec());
        let spec = match level {
            Some(level) => spec.level(*level),
            None => spec,
        };
        let refused = |error| CliError::bad_input(format_args!("{what}: {error}"));
        let mut cache = KvCache::new(spec).map_err(refused)?;
        let mut hidden: Vec<Vec<f32>> = vec![Vec::new(); config.num_layers];
        self.model
            .hidden(&self.tokens, 0, &mut cache, &mut |layer, _, rows| hidden[layer].extend_from_slice(rows))
            .map_err(|e| CliError::model(None, &e))?;
        Ok(ModelRun { cache, hidden, width: config.hidden_size })
    }
}

impl ModelRun {
    /// Mean cosine between the hidden states after a layer in two runs of the same model and text.
    pub(crate) fn hidden_cosine(&self, other: &Self, layer: usize) -> f64 {
        let mut alike = super::Alike::default();
        alike.rows(self.width, &self.hidden[layer], &other.hidden[layer]);
        alike.figures().mean_cosine
    }
}
