//! `tqkv-lab eval`: the evaluation of `tqkv eval`, also on variants of a model and on stored prefixes.

use tqkv_cli::command::eval;
use tqkv_cli::error::CliError;
use tqkv_cli::output::Output;
use tqkv_model::{Model, ModelError};

use super::stored::StorageArgs;

/// Measure how compressed caches change the predictions of a model or of a variant of it.
///
/// All options of `tqkv eval` work here; its help explains the columns.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(after_help = "Example: keys with a large constant, as in some models, with centring and without
  tqkv-lab eval --biased-keys 30 --kv s4
  tqkv-lab eval --biased-keys 30 --kv \"s4 centring=off\"
Example: keys with a few large channels
  tqkv-lab eval --outlier-variant --kv t4 --kv q4_0
Example: store prefixes of 768 tokens and read them back, in a basis from the same kind of text
  tqkv basis --text manual.txt manual.tqb
  tqkv-lab eval --text other.txt --storage 1.1 --storage 2.1 --basis manual.tqb")]
pub(crate) struct Args {
    #[command(flatten)]
    eval: eval::Args,
    #[command(flatten)]
    storage: StorageArgs,
    #[command(flatten)]
    variant: VariantArgs,
}

/// The variant of the model.
#[derive(Debug, clap::Args)]
struct VariantArgs {
    /// Give the keys outliers: scale some key channels up and the same query channels down. The function of
    /// the model stays the same.
    #[arg(long, help_heading = "Laboratory", conflicts_with = "stream_weights")]
    outlier_variant: bool,
    /// Give the keys a bias, as in some large models: add FACTOR times the mean key norm, in the first and
    /// last layer. The function of the model stays the same. Example: --biased-keys 30.
    #[arg(long, value_name = "FACTOR", help_heading = "Laboratory", conflicts_with = "stream_weights")]
    biased_keys: Option<f32>,
}

impl VariantArgs {
    fn of(&self, model: Model) -> Result<Model, ModelError> {
        let model = if self.outlier_variant { model.into_outlier_variant()? } else { model };
        match self.biased_keys {
            Some(factor) => model.into_biased_variant(factor),
            None => Ok(model),
        }
    }
}

pub(crate) fn run(args: &Args, out: &mut Output) -> Result<(), CliError> {
    let variant = |model| args.variant.of(model).map_err(|error| CliError::model(None, &error));
    let subject = args.eval.subject(variant)?;
    if args.storage.is_asked() {
        return args.storage.run(&subject, args.eval.pairs("--storage")?, out);
    }
    eval::evaluate_subject(&args.eval, &subject, out)
}
