//! Runs a launch in the interpreter.

use crate::parse::Kernel;
use crate::state::{Failure, ILLEGAL_ADDRESS, INVALID_VALUE, Machine};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tqkv_gpu_kernels::args::Argument;

/// A kernel, with a flag per parameter that is true for pointers.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) context: usize,
    kernel: Arc<Kernel>,
    pub(crate) pointers: Vec<bool>,
}

/// A launch, with the values of its parameters.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    /// Warps along x over all blocks together, because kernels count them like that; then blocks along y and
    /// z.
    pub(crate) warps: [u32; 3],
    pub(crate) values: Vec<u64>,
}

impl Function {
    /// Reads kernel `name` of a text, if the text has it.
    pub(crate) fn new(context: usize, text: &str, name: &str) -> Option<Self> {
        let start = text.find(&format!(".entry {name}("))?;
        let head = text[start..].split(")\n").next()?;
        let parameters = head.lines().filter(|line| line.trim_start().starts_with(".param"));
        let pointers = parameters.map(|line| line.contains(".u64")).collect();
        Some(Self { context, kernel: Arc::new(Kernel::new(text, name)), pointers })
    }
}

impl Machine {
    pub(crate) fn launch(&mut self, launch: &Launch) -> Result<(), Failure> {
        let mut places = Vec::new();
        let mut arguments = Vec::new();
        for (&value, &is_pointer) in launch.values.iter().zip(&launch.function.pointers) {
            if !is_pointer {
                arguments.push(Argument::Word(value as u32));
                continue;
            }
            let (start, offset) = self.locate(value).ok_or(ILLEGAL_ADDRESS)?;
            if self.memory[&start].context != launch.function.context {
                return Err(ILLEGAL_ADDRESS);
            }
            arguments.push(Argument::Memory(places.len()));
            places.push((start, offset));
        }
        // For the interpreter each pointer is a separate buffer, up to the end of its allocation.
        let before: Vec<Vec<u8>> =
            places.iter().map(|(start, offset)| self.memory[start].bytes[*offset..].to_vec()).collect();
        let mut buffers = before.clone();
        let [x, y, z] = launch.warps;
        let run = AssertUnwindSafe(|| {
            for (z, y, x) in (0..z)
                .flat_map(|z| (0..y).map(move |y| (z, y)))
                .flat_map(|(z, y)| (0..x).map(move |x| (z, y, x)))
            {
                launch.function.kernel.run((x, y, z), &arguments, &mut buffers);
            }
        });
        if std::panic::catch_unwind(run).is_err() {
            return Err(ILLEGAL_ADDRESS);
        }
        for ((start, offset), (before, after)) in places.iter().zip(before.iter().zip(&buffers)) {
            let Some(allocation) = self.memory.get_mut(start) else { return Err(INVALID_VALUE) };
            let bytes = allocation.bytes[*offset..].iter_mut();
            for (byte, (before, after)) in bytes.zip(before.iter().zip(after)) {
                if before != after {
                    *byte = *after;
                }
            }
        }
        Ok(())
    }
}
