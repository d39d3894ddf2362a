//! The layers of a model: all in memory, or streamed. Each streamed layer is read while the one before it is
//! computed.

use std::thread;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::ModelError;
use crate::layer::Layer;
use crate::size::WeightBytes;

/// The decoder layers, in order.
#[derive(Debug)]
pub(crate) enum Layers {
    Resident(Vec<Layer>),
    Streamed(Box<Stream>),
}

/// Layers that are read each time they run.
#[derive(Debug)]
pub(crate) struct Stream {
    tensors: Checkpoint,
    config: Config,
}

impl Layers {
    /// Reads all layers into memory. Refuses tensors that nothing has read by then.
    pub(crate) fn resident(config: &Config, tensors: &Checkpoint) -> Result<Self, ModelError> {
        let layers = (0..config.num_layers).map(|index| Layer::read(tensors, config, index));
        let layers = layers.collect::<Result<_, _>>()?;
        tensors.refuse_unread(config.tie_word_embeddings)?;
        Ok(Self::Resident(layers))
    }

    /// Keeps no layer. Each one is read once now, so that missing, malformed and unread tensors are errors
    /// now, and the bytes of all tensors are known.
    pub(crate) fn streamed(config: &Config, tensors: Checkpoint) -> Result<(Self, WeightBytes), ModelError> {
        let stream = Stream { tensors, config: config.clone() };
        stream.each(&mut |_, _| Ok(()))?;
        stream.tensors.refuse_unread(config.tie_word_embeddings)?;
        let bytes = WeightBytes::of_requested(&stream.tensors);
        Ok((Self::Streamed(Box::new(stream)), bytes))
    }

    /// Runs every layer.
    ///
    /// The first error of `run`, or of reading a layer.
    /// The first of `run`, or of reading a layer.
    pub(crate) fn each(
        &self,
        run: &mut dyn FnMut(usize, &Layer) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        match self {
            Self::Resident(layers) => {
                layers.iter().enumerate().try_for_each(|(index, layer)| run(index, layer))
            }
            Self::Streamed(stream) => stream.each(run),
        }
    }

    pub(crate) fn are_streamed(&self) -> bool {
        matches!(self, Self::Streamed(_))
    }

    /// The layers in memory, to change them.
    ///
    /// # Errors
    /// [`ModelError::Streamed`] if the layers are streamed.
    pub(crate) fn resident_mut(&mut self) -> Result<&mut [Layer], ModelError> {
        match self {
            Self::Resident(layers) => Ok(layers),
            Self::Streamed(_) => Err(ModelError::Streamed),
        }
    }
}

impl Stream {
    fn each(&self, run: &mut dyn FnMut(usize, &Layer) -> Result<(), ModelError>) -> Result<(), ModelError> {
        let read = |index| Layer::read(&self.tensors, &self.config, index);
        thread::scope(|scope| {
            // If no thread can be started, the next layer is read when it is needed.
            let ahead = |index| {
                let is_there = index < self.config.num_layers;
                let thread = || thread::Builder::new().spawn_scoped(scope, move || read(index)).ok();
                is_there.then(thread).flatten()
            };
            let mut next = None;
            for index in 0..self.config.num_layers {
                let layer = match next.take() {
                    Some(thread) => join(thread)?,
                    None => read(index)?,
                };
                next = ahead(index + 1);
                run(index, &layer)?;
            }
            Ok(())
        })
    }
}

fn join(thread: thread::ScopedJoinHandle<'_, Result<Layer, ModelError>>) -> Result<Layer, ModelError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
